"""Deliveries, and the futures behind them."""

"""Deliveries, and what a response makes of a batch."""

"""Deliveries: the outcomes of records, as ``send`` returns them."""

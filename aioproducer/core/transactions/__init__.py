"""Transactions of a producer: its states, its transactional requests, and what each response changes."""

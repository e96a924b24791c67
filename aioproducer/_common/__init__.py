"""Private: texts, log prefixes and views of bytes, used by all rooms."""

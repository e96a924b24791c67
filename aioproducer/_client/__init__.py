"""Private: the parts of a client, of which ``factory`` builds it."""

"""Private. The parts of a client, which ``factory`` assembles."""

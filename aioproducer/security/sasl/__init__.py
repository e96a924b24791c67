"""SASL mechanisms: step machines without I/O, one file each, which the client and the embedded broker share.

Each has a class ``...Client`` that follows ``core/requests/authenticator.py``: ``step`` takes the broker's challenge
and returns the next message, or None when both sides are authenticated. A login makes one for each connection
(``security/login.py``, ``security/tokens.py``).
"""

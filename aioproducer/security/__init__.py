"""TLS for the connections to brokers."""

from aioproducer.security.tls import client_context, ssl_context_from

__all__ = ["client_context", "ssl_context_from"]

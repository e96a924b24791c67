"""A proxy for clients of another transport, such as RDMA, in front of a broker that uses TCP.

Each broker has a ``Gateway`` beside it. For every client the gateway opens a connection to the broker, and passes bytes
in both directions. All properties of a connection (order, correlation ids, authentication, quotas) therefore hold from
the client to the broker. The gateway changes only the addresses of brokers: an ``AddressMap`` replaces those in
responses by the addresses of the brokers' gateways. It uses transports only through ``aioproducer.transport.base``.

* ``AddressMap`` translates addresses; ``versions`` has the requests and versions that clients may use, those with known
  addresses; ``plans`` has the position of the addresses in each response.
* ``walking`` finds a position in a message that arrives in pieces, by the schemas in ``aioproducer.protocol``, and
  ``rewriting`` changes the bytes there.
* ``login`` authenticates a connection to the broker with the gateway's own credentials, if it has any, before bytes of
  the client pass.
* ``requests`` and ``responses`` are the two directions of a connection, sans-IO; ``session`` connects them to
  transports.
"""

from __future__ import annotations

from aioproducer.gateway.addresses import AddressMap
from aioproducer.gateway.gateway import Gateway, GatewaySettings

__all__ = ["AddressMap", "Gateway", "GatewaySettings"]

"""Clients of another transport, RDMA before all, in front of a broker that speaks TCP.

A ``Gateway`` stands beside each broker. Its clients' bytes pass through it in both directions, a connection to the
broker for each of theirs, so that whatever holds of a connection (order, correlation ids, authentication, quotas) holds
from the client to the broker. The one thing it changes is where clients are told that brokers are: responses that carry
addresses are given those of the brokers' gateways, as an ``AddressMap`` says. It knows transports by their seam alone
(``aioproducer.transport.base``), never what they are made of.

* ``AddressMap`` is the rule for addresses; ``versions`` has the requests and versions that a client may use, which are
  those whose addresses are known; ``plans`` says where in a response they are.
* ``walking`` finds a place in a message that comes in pieces, by the declarations in ``aioproducer.protocol``, and
  ``rewriting`` changes what is there.
* ``login`` authenticates a connection to the broker with the gateway's own credentials, if it has some, before a
  client's bytes pass.
* ``requests`` and ``responses`` are the two directions of a connection, sans-IO; ``session`` joins them to transports.
"""

from __future__ import annotations

from aioproducer.gateway.addresses import AddressMap
from aioproducer.gateway.gateway import Gateway, GatewaySettings

__all__ = ["AddressMap", "Gateway", "GatewaySettings"]

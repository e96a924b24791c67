"""Records over RDMA: the card writes them into memory that the peer has registered."""

from aioproducer.transport.rdma.channel import RdmaTransport
from aioproducer.transport.rdma.connecting import RdmaConnector, RdmaListener, RdmaListening
from aioproducer.transport.rdma.counters import Counters
from aioproducer.transport.rdma.fallback import FallbackConnector
from aioproducer.transport.rdma.handshake import HandshakeError, NotRdmaError
from aioproducer.transport.rdma.verbs import RdmaUnavailableError, VerbsError

__all__ = [
    "Counters",
    "FallbackConnector",
    "HandshakeError",
    "NotRdmaError",
    "RdmaConnector",
    "RdmaListener",
    "RdmaListening",
    "RdmaTransport",
    "RdmaUnavailableError",
    "VerbsError",
]

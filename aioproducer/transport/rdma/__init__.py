"""Records over RDMA: written by the card into memory that the peer has registered."""

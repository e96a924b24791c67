"""Partitions of this node, as leader or follower, and the fetcher that follows other nodes."""

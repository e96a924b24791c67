"""What carries the producer's bytes: one seam (``base``), and the transports behind it."""

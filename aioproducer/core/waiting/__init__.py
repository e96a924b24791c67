"""Records without a batch, and the futures that wait for many records."""

"""Topics, partitions and brokers, merged from Metadata responses."""

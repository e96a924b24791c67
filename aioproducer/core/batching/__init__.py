"""Record batches: filled by ``send``, queued for their partition, drained by the sender."""

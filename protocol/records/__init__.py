"""Record batches <-> Arrow columns: `read_batch_headers`, `decode`, `encode`. Knows bytes and columns, no sockets."""

"""Record batches <-> Arrow columns: `scan` (headers only), `decode`, `encode`. Knows bytes and columns, no sockets."""

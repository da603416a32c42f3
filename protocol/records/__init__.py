"""Convert between record batches and Arrow columns: `read_batch_headers`, `decode`, `encode_batches`. Sans-IO."""

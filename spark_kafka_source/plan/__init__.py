"""Plan micro-batches from brokers' replies: offsets, limits, ranges and data loss. Sans-IO, without Spark."""

"""Administration of groups, topics and transactions; see docs/architecture.md."""

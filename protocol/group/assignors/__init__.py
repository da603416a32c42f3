"""Partition assignors of the classic protocol; see docs/architecture.md."""

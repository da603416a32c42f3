"""Exactly-once writes: each task writes in a transaction, and the driver decides once for all tasks of a batch.

See "Exactly once" in docs/architecture.md.
"""

"""Exactly-once writes: each task in a transaction, and one decision of the driver for all of a batch.

See "Exactly once" in docs/architecture.md.
"""

"""Records and offsets of partitions from brokers: bounded ranges, open partitions, ListOffsets.

Knows nothing of groups. See docs/architecture.md.
"""

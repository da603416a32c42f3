"""Consumer groups: membership, assignors, and committed offsets. See docs/architecture.md."""

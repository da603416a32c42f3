"""Sockets: the only folder that opens one. See docs/architecture.md."""

"""Produce records from columns or single messages: partition, batch, encode, send. See docs/architecture.md."""

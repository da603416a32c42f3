"""Kafka's wire format: message schemas, their codec, and frames. Sans-IO; see docs/architecture.md."""

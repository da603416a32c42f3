"""Schemas of Kafka's messages, one file per API, with the API key in its name; see docs/architecture.md."""

"""Metrics of a client, with the names of Kafka's Java client: sensors, definitions, and readers."""

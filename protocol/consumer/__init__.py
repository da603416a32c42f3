"""Consumers that may be members of a group: `KafkaConsumer` (Java's API) and `ConsumerGroup` (sarama's API).

They combine `fetch` and `group`, which do not know each other. See docs/architecture.md.
"""

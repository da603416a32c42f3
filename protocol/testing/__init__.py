"""Test doubles for code that uses Kafka: an in-memory cluster, and a broker with scripted replies."""

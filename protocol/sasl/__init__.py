"""SASL: credentials from Kafka's properties, and the mechanisms. Sans-IO."""

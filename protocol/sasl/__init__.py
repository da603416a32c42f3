"""Who one is to a broker: credentials in Kafka's words, and the mechanisms of SASL. Bytes in, bytes out; no sockets."""

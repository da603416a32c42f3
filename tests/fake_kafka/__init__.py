"""A model of a Kafka 4 cluster, for what a real one cannot do on demand: requests in, replies out, on any clock.

`server.FakeKafka` puts it behind sockets. `tests/contract` holds it and a real Kafka to the same behaviour.
"""

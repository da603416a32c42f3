"""A model of a Kafka 4 cluster, for behaviour that a real cluster does not show on demand; works with any clock.

`server.FakeKafka` adds sockets. `tests/contract` requires the same behaviour of the model and of a real Kafka.
"""

"""The Kafka clients of this Python process, one for each set of connection options.

Spark reuses its Python workers from batch to batch: a client kept here keeps its connections and metadata, so that
a task of a small batch costs one round trip. Connections are checked for life, and for a fork, by the pool.
"""

from __future__ import annotations

from functools import lru_cache

from protocol.cluster.client import Client
from protocol.config import ClientConfig
from spark_kafka_source.remedies import in_options


@lru_cache(maxsize=16)
def client_for(config: ClientConfig) -> Client:
    """The process's client for this configuration. Opens nothing until it is used; never closed."""
    return Client(config, format_error=in_options)

"""The Kafka clients of this Python process, one for each set of connection options.

Spark reuses its Python workers: a cached client keeps its connections and metadata, so that a task of a small batch
costs one round trip. The connection pool replaces closed connections and handles forks.
"""

from __future__ import annotations

from functools import lru_cache

from protocol.cluster.client import Client
from protocol.config import ClientConfig
from spark_kafka_source.error_messages import with_option_names


@lru_cache(maxsize=16)
def client_for(config: ClientConfig) -> Client:
    """Return the process's client for this configuration. It connects when first used, and is never closed."""
    return Client(config, format_error=with_option_names)

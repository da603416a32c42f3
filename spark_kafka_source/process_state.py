"""Objects that all queries and tasks of one Python process share.

Spark reuses its Python workers. A cached client keeps its connections and metadata, so that a task of a small batch
costs one round trip; an idle producer also keeps its thread and its producer id.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from protocol.base import once
from protocol.cluster.client import Client
from protocol.config import ClientConfig
from spark_kafka_source.error_messages import with_option_names

if TYPE_CHECKING:
    from protocol.schemas.reader_schema import Part, ReaderSchema
    from protocol.schemas.registry import SchemaRegistry
    from protocol.schemas.registry_config import RegistryConfig
    from protocol.schemas.values import ColumnDecoder

_MAX_CLUSTERS = 16


class ProcessState:
    """The shared objects. Created when the package is first imported, on the driver and in each worker. Thread-safe.

    `idle_producers`: producers between two tasks, by process id, client and configuration: `sink.producers`.
    `ledger_identities`: producer id and last ledger of each exactly-once query that this process has written for, by
    process id and query: `sink.exactly_once.ledger_group`.

    A forked child inherits the object. Keys with the process id hide the parent's producers and identities from it; the
    connection pool of a client opens new connections.
    """

    def __init__(self) -> None:
        self.idle_producers: dict[Any, Any] = {}
        self.ledger_identities: dict[Any, Any] = {}
        self._client = lru_cache(maxsize=_MAX_CLUSTERS)(_new_client)
        self._record_bytes = lru_cache(maxsize=_MAX_CLUSTERS)(_no_record_bytes)
        self._registry = lru_cache(maxsize=_MAX_CLUSTERS)(_new_registry)
        self._decoder = lru_cache(maxsize=_MAX_CLUSTERS)(_new_decoder)

    def client(self, config: ClientConfig) -> Client:
        """Return the client for a configuration. It connects when first used, and is never closed."""
        return self._client(config)

    def record_bytes(self, client: Client) -> dict[str, float]:
        """Return the bytes per offset by topic that earlier tasks measured; tasks update it."""
        return self._record_bytes(client)

    def registry(self, config: RegistryConfig) -> SchemaRegistry:
        """Return the client of a schema registry. It keeps the schemas that it has fetched."""
        return self._registry(config)

    def decoder(self, schema: ReaderSchema, config: RegistryConfig | None, part: Part) -> ColumnDecoder:
        """Return the decoder of keys or values. It keeps what it has made of the schemas of writers."""
        return self._decoder(schema, config, part)

    def reset(self) -> None:
        """Forget everything, as in a new process; abort idle producers. For tests.

        Also forgets the warnings that were logged once, and frees the scratch memory for decompressed records.
        """
        from protocol.records.decompressed_batches import SCRATCH

        producers = list(self.idle_producers.values())
        self.idle_producers.clear()
        for producer in producers:
            producer.abort()
        self.ledger_identities.clear()
        self._client.cache_clear()
        self._record_bytes.cache_clear()
        self._registry.cache_clear()
        self._decoder.cache_clear()
        once.reset()
        SCRATCH.reset()


def _new_client(config: ClientConfig) -> Client:
    return Client(config, format_error=with_option_names)


def _new_registry(config: RegistryConfig) -> SchemaRegistry:
    from protocol.schemas.glue import open_registry

    return open_registry(config)


def _new_decoder(schema: ReaderSchema, config: RegistryConfig | None, part: Part) -> ColumnDecoder:
    from protocol.schemas.values import ColumnDecoder

    return ColumnDecoder(schema, None if config is None else PROCESS.registry(config), part)


def _no_record_bytes(client: Client) -> dict[str, float]:
    return {}


PROCESS = ProcessState()

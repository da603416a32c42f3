"""How far a query is behind the ends of the logs, from its progress alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from protocol.errors import ConfigurationError, UsageError
from protocol.kafka_terms import TopicPartition
from spark_kafka_source.clients import client_for
from spark_kafka_source.lag.seconds import SAMPLE_MS, Options, configs, with_seconds
from spark_kafka_source.lag.table import Lag, PartitionLag
from spark_kafka_source.plan.offsets import Offsets


def lag_of_query(query: Any, *, options: Options | None = None, sample_ms: float = SAMPLE_MS) -> Lag:
    """How far the batch that a query has finished last ends behind the logs as they were when it was planned.

    `query` is a StreamingQuery, its progress (`query.lastProgress`), or the progress as a dict or as JSON. All its
    Kafka sources count, those of Spark's own connector too. With `options` also in seconds: the brokers are asked for
    the first records that are not read yet, for at most `sample_ms`.

    Raises `UsageError` for a query that has no progress yet, and `ConfigurationError` for options that are wrong.
    """
    lag = _lag_of_progress(_progress(query))
    if options is None:
        return lag
    config, consumer = configs(options)
    return with_seconds(lag, client_for(config), consumer, sample_ms)


def _progress(query: Any) -> Mapping[str, Any]:
    found = query.lastProgress if hasattr(query, "lastProgress") else query
    # Not the object's fields: over Spark Connect they hold offsets as Python's repr.
    found = getattr(found, "json", found)
    if isinstance(found, str):
        found = json.loads(found)
    if not isinstance(found, Mapping):
        raise UsageError("this query has no progress yet: wait for its first trigger")
    return found


def _lag_of_progress(progress: Mapping[str, Any]) -> Lag:
    found: dict[TopicPartition, PartitionLag] = {}
    for source in progress["sources"]:
        reached, latest = _offsets(source["endOffset"]), _offsets(source["latestOffset"])
        # Spark's own connector, which writes neither, does not count them.
        counted = bool(reached.ids or reached.epochs or reached.skipped)
        for key in reached.ends.keys() | reached.skipped.keys():
            skipped = reached.skipped.get(key, 0) if counted else None
            found[key] = PartitionLag(*key, reached.ends.get(key), latest.ends.get(key), skipped=skipped)
    return Lag(tuple(found[key] for key in sorted(found)))


def _offsets(text: Any) -> Offsets:
    """One of a progress' offsets; there is nothing in those of other sources."""
    try:
        rows = json.loads(text) if isinstance(text, str) else text
        return Offsets.from_json_dict(rows)
    except (ValueError, ConfigurationError):
        return Offsets({})

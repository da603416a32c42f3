"""The lag of a query, from its progress, and with `options` from the brokers' log end offsets."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from operator import attrgetter
from typing import Any

from protocol.errors import ConfigurationError, DataLoss, KafkaError, UsageError
from protocol.fetch.list_offsets import list_offsets
from protocol.fetch.log_offsets import ListedOffset
from protocol.kafka_terms import LATEST, TopicPartition
from spark_kafka_source.error_messages import with_remedies
from spark_kafka_source.lag.seconds import SAMPLE_MS, Options, configs, with_seconds
from spark_kafka_source.lag.table import Lag, PartitionLag
from spark_kafka_source.plan.offsets import Offsets
from spark_kafka_source.plan.ranges import offset_ranges, unresolved
from spark_kafka_source.process_state import PROCESS

log = logging.getLogger(__name__)


@with_remedies()
def lag_of_query(
    query: Any, *, options: Options | None = None, sample_ms: float = SAMPLE_MS, timeout_ms: float | None = None
) -> Lag:
    """Return the distance of a query's last completed batch from the log ends.

    Without `options` these are the log ends when the batch was planned: a query that reads all records has no lag then,
    however long its batches take.

    Parameters
    ----------
    query : StreamingQuery, StreamingQueryProgress, dict or str
        A query, its progress (`query.lastProgress`), or the progress as a dict or as JSON. All its Kafka sources count,
        including those of Spark's own connector.
    options : str or mapping, optional
        Bootstrap servers, or the options of the source. With them, the current log ends are requested from the brokers,
        and lag is also in seconds, from requests for the first unread records. Required before PySpark 4.2: Spark does
        not report the log end offsets.
    sample_ms : float
        The time limit of the requests for the first unread records, within `timeout_ms`.
    timeout_ms : float, optional
        The time limit of all requests, by default `kafka.default.api.timeout.ms`.

    Raises
    ------
    UsageError
        The query has no progress yet, or its progress lacks the log end offsets and there are no `options`.
    ConfigurationError, DeadlineExceeded, BrokerError
        Wrong options; no reply from the brokers in time; an unknown topic, or one without authorization.
    """
    lag, without_ends = _lag_of_progress(_progress(query))
    if options is None:
        if without_ends:
            raise UsageError(
                "the query's progress does not say where the logs end: Spark reports that from version 4.2 on. To ask "
                "the brokers instead, pass options={'kafka.bootstrap.servers': …} to lag_of_query or LagListener"
            )
        return lag
    config, consumer = configs(options)
    client = PROCESS.client(config)
    ends: dict[TopicPartition, ListedOffset] = {}
    times = {(row.topic, row.partition): LATEST for row in lag if row.committed is not None}
    deadline = client.deadline(timeout_ms)
    try:
        list_offsets(client, times, isolation_level=consumer.isolation_level, deadline=deadline, into=ends)
    except KafkaError as error:
        if without_ends:
            raise
        log.warning("some lags are those at the time of the batch's plan, without the current log ends: %s", error)
    lag = Lag(
        tuple(
            row._replace(end=offset.offset) if (offset := ends.get((row.topic, row.partition))) is not None else row
            for row in lag
        )
    )
    return with_seconds(lag, client, consumer, min(sample_ms, deadline.remaining_ms()))


def _progress(query: Any) -> Mapping[str, Any]:
    progress = query.lastProgress if hasattr(query, "lastProgress") else query
    # Offsets are objects in the JSON, and strings in the fields of the progress.
    progress = getattr(progress, "json", progress)
    if isinstance(progress, str):
        progress = json.loads(progress)
    if not isinstance(progress, Mapping):
        raise UsageError("this query has no progress yet: wait for its first trigger")
    return progress


def _lag_of_progress(progress: Mapping[str, Any]) -> tuple[Lag, set[int]]:
    """Return the lag, and the indexes of the sources whose `latestOffset` is not the log end.

    Before version 4.2 Spark takes no log end from a Python source and reports the end of the batch instead.
    """
    rows: list[PartitionLag] = []
    without_ends = set()
    for source, offsets in enumerate(progress["sources"]):
        reached, latest = _offsets(offsets["endOffset"]), _offsets(offsets["latestOffset"])
        # Spark's own connector writes neither ids nor epochs, and does not count skipped offsets.
        counted = bool(reached.ids or reached.has_epochs or reached.skipped)
        ends = latest.ends
        if latest.is_batch_end:
            ends = {}
            without_ends.add(source)
        keys = reached.ends.keys() | reached.skipped.keys() if reached.skipped else reached.ends.keys()
        rows += [
            PartitionLag(
                *key,
                reached.ends.get(key),
                ends.get(key),
                skipped=reached.skipped.get(key, 0) if counted else None,
                source=source,
            )
            for key in sorted(keys)
        ]
    if len(progress["sources"]) > 1:
        rows.sort(key=attrgetter("topic", "partition", "source"))
    return Lag(tuple(rows)), without_ends


def offsets_of_batch(progress: Mapping[str, Any]) -> int | None:
    """Return the number of offsets that the tasks of the last batch read; None if its start or a loss is unknown.

    The batch has fewer rows by those that the option `filter` left out, and by gaps (compaction, markers).
    """
    total = 0
    for source in progress["sources"]:
        start, end = _offsets(source.get("startOffset")), _offsets(source["endOffset"])
        if unresolved(start, end):
            return None
        try:
            total += sum(offsets.size for offsets in offset_ranges(start, end))
        except DataLoss:  # the query has told it, if it is one
            return None
    return total


def groups_of_progress(progress: Mapping[str, Any]) -> dict[int | None, str]:
    """Return the group that each source commits to, by its index; before PySpark 4.2, the progress has none."""
    groups = {source: _offsets(offsets["latestOffset"]).group for source, offsets in enumerate(progress["sources"])}
    return {source: group for source, group in groups.items() if group is not None}


def _offsets(offset: Any) -> Offsets:
    """Parse the offsets of a source; return empty ones for a source other than Kafka."""
    try:
        return Offsets.from_progress(offset)
    except ConfigurationError:
        return Offsets({})

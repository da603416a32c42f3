"""How far a query or a group is behind the ends of the logs: a table, Spark's own figures, a listener, a plot.

Runs on the driver, or wherever the session's client is: a query's lag is worked out from its progress alone, which
Spark Connect carries too; a group's lag, and lag in seconds, are asked of the brokers.

    from spark_kafka_source.lag import LagListener, lag_of_group, lag_of_query

    lag_of_query(query.lastProgress).offsets_behind     # all partitions together
    lag_of_query(query).metrics()                       # {"minOffsetsBehindLatest": 0, …}, as Spark's connector has
    lag_of_query(query).skipped                         # offsets that were gone before they were read
    lag_of_group("broker-1:9092", "orders-etl")         # a table, also in a notebook
    lag_of_group("broker-1:9092", "orders-etl").plot()

    listener = LagListener(options={"kafka.bootstrap.servers": "broker-1:9092"})
    spark.streams.addListener(listener)                 # then listener.latest, listener.to_pandas(), listener.plot()
"""

from __future__ import annotations

import json
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.streaming.listener import StreamingQueryListener

from protocol.broker_errors import ErrorCode, broker_error
from protocol.clock import Deadline
from protocol.cluster.client import Client
from protocol.config import ClientConfig, ConsumerConfig, parse_client, parse_consumer
from protocol.consumer.list_offsets import LATEST, list_offsets
from protocol.errors import ConfigurationError, UsageError
from protocol.group.offsets import fetch_offsets
from spark_kafka_source.clients import client_for
from spark_kafka_source.first_unread import first_unread_ms
from spark_kafka_source.offsets import Offsets, TopicPartition
from spark_kafka_source.stray_options import PREFIX

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

log = logging.getLogger(__name__)

Options = str | Mapping[str, str]
"""Bootstrap servers, or the options of a source: only those that start with `kafka.` are looked at."""

SCHEMA = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("committed", pa.int64()),
        pa.field("end", pa.int64()),
        pa.field("offsets_behind", pa.int64()),
        pa.field("seconds_behind", pa.float64()),
        pa.field("skipped", pa.int64()),
    ]
)
HISTORY_SCHEMA = pa.schema(
    [
        pa.field("time", pa.timestamp("ms", tz="UTC")),
        pa.field("query", pa.string()),
        pa.field("batch", pa.int64()),
        *SCHEMA,
    ]
)
_SAMPLE_MS = 2_000
_KEPT = 1_000


@dataclass(frozen=True)
class PartitionLag:
    """One partition. None is what is not known.

    Attributes
    ----------
    committed : the next offset to read, as the group has committed it or the query's last batch has reached it.
    end : the end of the log: the high watermark, or with `read_committed` the last stable offset.
    seconds_behind : the age of the first record that is not committed; 0.0 if there is none. Only where it was asked
        for; left out for a partition that did not answer in time, and for records without a time.
    skipped : of a query: how many offsets it has left out so far (with `failOnDataLoss=false`) because they were not in
        the log any more when their batch was planned. Not in it: what is lost between that and the reading.
    """

    topic: str
    partition: int
    committed: int | None
    end: int | None
    seconds_behind: float | None = None
    skipped: int | None = None

    @property
    def offsets_behind(self) -> int | None:
        """As Kafka's tools count lag: offsets, of which compaction and transactions leave some without a record.

        Negative where the log is shorter than what was committed: it was truncated, or made anew.
        """
        return None if self.committed is None or self.end is None else self.end - self.committed


@dataclass(frozen=True)
class Lag:
    """The lag of some partitions, sorted by topic and partition."""

    partitions: tuple[PartitionLag, ...]

    def __iter__(self) -> Iterator[PartitionLag]:
        return iter(self.partitions)

    def __len__(self) -> int:
        return len(self.partitions)

    @property
    def offsets_behind(self) -> int:
        """Of all partitions together, as far as known."""
        return sum(self._known())

    @property
    def seconds_behind(self) -> float | None:
        """That of the partition that is behind most; None if it is known of none."""
        return max((row.seconds_behind for row in self if row.seconds_behind is not None), default=None)

    @property
    def skipped(self) -> int:
        """Of all partitions together, as far as known."""
        return sum(row.skipped or 0 for row in self)

    def metrics(self) -> dict[str, float]:
        """Under the names, and with the values, that Spark's own connector reports; empty if nothing is known."""
        known = self._known()
        if not known:
            return {}
        return {
            "minOffsetsBehindLatest": min(known),
            "maxOffsetsBehindLatest": max(known),
            "avgOffsetsBehindLatest": sum(known) / len(known),
        }

    def to_arrow(self) -> pa.Table:
        """One row per partition, with the columns of `SCHEMA`."""
        return pa.Table.from_pylist([_row(partition) for partition in self], schema=SCHEMA)

    def to_pandas(self) -> pd.DataFrame:
        return self.to_arrow().to_pandas()

    def plot(self, axes: Axes | None = None) -> Axes:
        """A bar per partition. Needs matplotlib: `pip install 'spark-kafka-source[notebook]'`."""
        axes = _axes(axes)
        names = [f"{row.topic}-{row.partition}" for row in self]
        axes.barh(names, [row.offsets_behind or 0 for row in self])
        axes.invert_yaxis()
        axes.set_xlabel("offsets behind")
        return axes

    def __str__(self) -> str:
        header = ["TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG", "LAG-SECONDS", "SKIPPED"]
        lines = [header, *([_cell(value) for value in _row(row).values()] for row in self)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join("  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in lines)

    def _repr_html_(self) -> str:
        cells = ["".join(f"<td>{_cell(value)}</td>" for value in _row(row).values()) for row in self]
        header = "".join(f"<th>{name}</th>" for name in SCHEMA.names)
        return f"<table><tr>{header}</tr>{''.join(f'<tr>{row}</tr>' for row in cells)}</table>"

    def _known(self) -> list[int]:
        return [row.offsets_behind for row in self if row.offsets_behind is not None]


# -- of a query -----------------------------------------------------------------------------------


def lag_of_query(query: Any, *, options: Options | None = None, sample_ms: float = _SAMPLE_MS) -> Lag:
    """How far the batch that a query has finished last ends behind the logs as they were when it was planned.

    `query` is a StreamingQuery, its progress (`query.lastProgress`), or the progress as a dict or as JSON. All its
    Kafka sources count, those of Spark's own connector too. With `options` also in seconds: the brokers are asked for
    the first records that are not read yet, for at most `sample_ms`.

    Raises `UsageError` for a query that has no progress yet, and `ConfigurationError` for options that are wrong.
    """
    lag = _lag_of_progress(_progress(query))
    return lag if options is None else _with_seconds(lag, *_configs(options), sample_ms)


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
        counted = bool(reached.ids or reached.epochs)
        for key, committed in reached.ends.items():
            skipped = reached.skipped.get(key, 0) if counted else None
            found[key] = PartitionLag(*key, committed, latest.ends.get(key), skipped=skipped)
    return Lag(tuple(found[key] for key in sorted(found)))


def _offsets(text: Any) -> Offsets:
    """One of a progress' offsets; there is nothing in those of other sources."""
    try:
        rows = json.loads(text) if isinstance(text, str) else text
        return Offsets.from_json_dict(rows)
    except (ValueError, ConfigurationError):
        return Offsets({})


# -- of a group -----------------------------------------------------------------------------------


def lag_of_group(
    options: Options,
    group: str,
    topics: Iterable[str] | None = None,
    *,
    seconds: bool = True,
    sample_ms: float = _SAMPLE_MS,
    timeout_ms: float | None = None,
) -> Lag:
    """How far a group's committed offsets are behind the logs as they are now; any group, with or without members.

    Every partition of `topics`, by default of all topics that the group has offsets for: then a group without any,
    also one that is misspelled, has no rows, and `offsets_behind` 0. `kafka.isolation.level` says what counts as the
    end. Waits `timeout_ms`, by default `kafka.default.api.timeout.ms`, and `sample_ms` of that at most for lag in
    seconds, which `seconds=False` leaves out.

    Raises `ConfigurationError`, `DeadlineExceeded` or `BrokerError` (unknown topic, not authorized).
    """
    config, consumer = _configs(options)
    client = client_for(config)
    deadline = client.deadline(timeout_ms)
    committed = {
        key: entry.offset for key, entry in fetch_offsets(client, group, None, deadline, require_stable=False).items()
    }
    names = sorted({topic for topic, _ in committed} if topics is None else set(topics))
    keys = _partitions(client, names, deadline, must_exist=topics is not None)
    ends = list_offsets(
        client, dict.fromkeys(keys, LATEST), isolation_level=consumer.isolation_level, deadline=deadline
    )
    lag = Lag(tuple(PartitionLag(*key, committed.get(key), ends[key].offset) for key in sorted(keys)))
    return _with_seconds(lag, config, consumer, min(sample_ms, deadline.remaining_ms())) if seconds else lag


def _partitions(client: Client, topics: list[str], deadline: Deadline, *, must_exist: bool) -> list[TopicPartition]:
    found = client.metadata(topics, deadline).topics if topics else {}
    keys: list[TopicPartition] = []
    for name in topics:
        code = found[name].error_code if name in found else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if code == ErrorCode.NONE:
            keys += [(name, partition) for partition in found[name].partitions]
        elif must_exist or code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise broker_error(code, f"topic {name}", topic=name)
    return keys


def _configs(options: Options) -> tuple[ClientConfig, ConsumerConfig]:
    given = {f"{PREFIX}bootstrap.servers": options} if isinstance(options, str) else options
    kafka = {
        key.lower().removeprefix(PREFIX): str(value) for key, value in given.items() if key.lower().startswith(PREFIX)
    }
    return parse_client(kafka, prefix=PREFIX), parse_consumer(kafka, prefix=PREFIX)


def _with_seconds(lag: Lag, config: ClientConfig, consumer: ConsumerConfig, sample_ms: float) -> Lag:
    """Asks those first that are behind most."""
    client = client_for(config)
    behind = sorted((row for row in lag if (row.offsets_behind or 0) > 0), key=lambda row: -(row.offsets_behind or 0))
    offsets = {(row.topic, row.partition): row.committed for row in behind if row.committed is not None}
    first_ms = first_unread_ms(client, consumer, offsets, client.deadline(sample_ms))
    now_ms = client.clock.wall_ms()

    def seconds(row: PartitionLag) -> float | None:
        if row.offsets_behind == 0:
            return 0.0
        timestamp_ms = first_ms.get((row.topic, row.partition))
        return None if timestamp_ms is None else max(0, now_ms - timestamp_ms) / 1000

    return Lag(tuple(replace(row, seconds_behind=seconds(row)) for row in lag))


# -- as it goes -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class LagAtTime:
    """The lag of one query when one of its triggers had ended. `query` is its name, or its id if it has none."""

    time: datetime
    query: str
    batch: int
    lag: Lag


class LagListener(StreamingQueryListener):
    """Keeps the lag of every query of the session, trigger by trigger, the newest `kept` of them.

    `report`, if given, is called with each `LagAtTime`, on Spark's listener thread: it should be quick. With `options`
    lag in seconds is asked of the brokers, for at most `sample_ms` each time. Nothing that fails here reaches a query;
    it is logged. Works over Spark Connect too, where the events come to the client.
    """

    def __init__(
        self,
        report: Callable[[LagAtTime], None] | None = None,
        *,
        options: Options | None = None,
        sample_ms: float = _SAMPLE_MS,
        kept: int = _KEPT,
    ) -> None:
        self._report = report
        self._options = options
        self._sample_ms = sample_ms
        self._lock = threading.Lock()
        self._history: deque[LagAtTime] = deque(maxlen=kept)
        if options is not None:
            _configs(options)  # a mistake should be said here, not in a log

    @property
    def history(self) -> list[LagAtTime]:
        """Oldest first."""
        with self._lock:
            return list(self._history)

    @property
    def latest(self) -> dict[str, Lag]:
        """The newest lag of each query, by its name or id."""
        return {each.query: each.lag for each in self.history}

    def onQueryStarted(self, event: Any) -> None:
        pass

    def onQueryIdle(self, event: Any) -> None:
        pass

    def onQueryTerminated(self, event: Any) -> None:
        pass

    def onQueryProgress(self, event: Any) -> None:
        try:
            progress = json.loads(event.progress.json)
            lag = lag_of_query(progress, options=self._options, sample_ms=self._sample_ms)
            if not len(lag):
                return
            time = datetime.fromisoformat(progress["timestamp"].replace("Z", "+00:00"))
            seen = LagAtTime(time, progress.get("name") or progress["id"], progress["batchId"], lag)
            with self._lock:
                self._history.append(seen)
            if self._report is not None:
                self._report(seen)
        except Exception:
            log.exception("the lag of a query could not be told")

    def to_arrow(self) -> pa.Table:
        """One row per trigger and partition, with the columns of `HISTORY_SCHEMA`."""
        rows = [
            {"time": each.time, "query": each.query, "batch": each.batch, **_row(partition)}
            for each in self.history
            for partition in each.lag
        ]
        return pa.Table.from_pylist(rows, schema=HISTORY_SCHEMA)

    def to_pandas(self) -> pd.DataFrame:
        return self.to_arrow().to_pandas()

    def plot(self, axes: Axes | None = None) -> Axes:
        """A line per query, of all its partitions together. Needs matplotlib, as `Lag.plot`."""
        axes = _axes(axes)
        history = self.history
        for query in sorted({each.query for each in history}):
            seen = [each for each in history if each.query == query]
            times: Any = [each.time for each in seen]
            axes.plot(times, [each.lag.offsets_behind for each in seen], label=query)
        axes.set_ylabel("offsets behind")
        if history:
            axes.legend()
        return axes


# -- how it looks ---------------------------------------------------------------------------------


def _row(partition: PartitionLag) -> dict[str, Any]:
    return {name: getattr(partition, name) for name in SCHEMA.names}


def _cell(value: Any) -> str:
    return "-" if value is None else f"{value:.3f}" if isinstance(value, float) else str(value)


def _axes(axes: Axes | None) -> Axes:
    if axes is not None:
        return axes
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise UsageError("plot() needs matplotlib: pip install 'spark-kafka-source[notebook]'") from error
    return pyplot.subplots()[1]

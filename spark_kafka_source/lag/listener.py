"""The lag of every query of a session, trigger by trigger."""

from __future__ import annotations

import json
import logging
import threading
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.streaming.listener import StreamingQueryListener

from spark_kafka_source.lag.of_query import lag_of_query
from spark_kafka_source.lag.plot import lines
from spark_kafka_source.lag.seconds import SAMPLE_MS, Options, configs
from spark_kafka_source.lag.table import SCHEMA, Lag, row_of

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

log = logging.getLogger(__name__)

HISTORY_SCHEMA = pa.schema(
    [
        pa.field("time", pa.timestamp("ms", tz="UTC")),
        pa.field("query", pa.string()),
        pa.field("batch", pa.int64()),
        *SCHEMA,
    ]
)
_KEPT = 1_000


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
        sample_ms: float = SAMPLE_MS,
        kept: int = _KEPT,
    ) -> None:
        self._report = report
        self._options = options
        self._sample_ms = sample_ms
        self._lock = threading.Lock()
        self._history: deque[LagAtTime] = deque(maxlen=kept)
        if options is not None:
            configs(options)  # a mistake should be said here, not in a log

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
            {"time": each.time, "query": each.query, "batch": each.batch, **row_of(partition)}
            for each in self.history
            for partition in each.lag
        ]
        return pa.Table.from_pylist(rows, schema=HISTORY_SCHEMA)

    def to_pandas(self) -> pd.DataFrame:
        return self.to_arrow().to_pandas()

    def plot(self, axes: Axes | None = None) -> Axes:
        """A line per query, of all its partitions together. Needs matplotlib, as `Lag.plot`."""
        points: dict[str, list[tuple[datetime, int]]] = defaultdict(list)
        for each in sorted(self.history, key=lambda each: each.query):
            points[each.query].append((each.time, each.lag.offsets_behind))
        return lines(points, axes)

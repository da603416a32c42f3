"""A listener that records the lag of every query of a session after each trigger."""

from __future__ import annotations

import json
import logging
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.streaming.listener import StreamingQueryListener

from protocol.base.condition import Lock
from protocol.base.once import log_once
from protocol.errors import KafkaError, UsageError
from spark_kafka_source.lag.of_query import groups_of_progress, lag_of_query, offsets_of_batch
from spark_kafka_source.lag.plot import lines
from spark_kafka_source.lag.seconds import SAMPLE_MS, Options, configs
from spark_kafka_source.lag.table import SCHEMA, Lag, to_pandas

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
    """The lag of one query at the end of one trigger. `query` is its name, or its id if it has no name.

    The batch covered `offsets` offsets and had `rows` rows; the option `filter` may have left out the others.
    """

    time: datetime
    query: str
    batch: int
    lag: Lag
    rows: int = 0
    offsets: int | None = None

    def __str__(self) -> str:
        seconds = self.lag.seconds_behind
        behind = f"{self.lag.offsets_behind} offsets" + ("" if seconds is None else f" and {seconds:.1f} s")
        time = f"{self.time:%Y-%m-%d %H:%M:%S}"
        return f"{time} {self.query}: batch {self.batch} ended {behind} behind in {len(self.lag)} partition(s)"


@dataclass(frozen=True)
class _Trigger:
    """A `LagAtTime` of the history, with its lag as Arrow: a third of the memory of a `Lag`."""

    number: int
    ended: LagAtTime  # without its lag
    offsets_behind: int
    partitions: pa.Table


class LagListener(StreamingQueryListener):
    """Record the lag of the queries of a session after each trigger. Works over Spark Connect, too.

    An error in the listener or in `report` is logged and never reaches a query.

    Parameters
    ----------
    report : callable, optional
        Called with the `LagAtTime` of each trigger. It runs on Spark's listener thread, which all listeners of the
        session share, so it must return quickly; with `options` it runs on a thread of the listener.
    options : str or mapping, optional
        As in `lag_of_query`: with them lag is that of now, and also in seconds, from requests on a thread of the
        listener. If several triggers of a query end during a request, the next one is for the last of them. Required
        before PySpark 4.2, which does not report the log end offsets.
    sample_ms : float
        The time limit of the requests for one trigger.
    kept : int
        The number of triggers in `history`, of all queries together. The oldest ones are dropped.
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
        # Guards the fields below.
        self._lock = Lock()
        self._history: deque[_Trigger] = deque(maxlen=kept)
        self._number = 0
        self._latest: dict[str, tuple[int, Lag]] = {}
        self._progress: dict[str, Mapping[str, Any]] = {}  # the last one of each running query
        self._running: dict[str, str] = {}  # query id -> name
        self._ended: deque[str] = deque(maxlen=kept)  # names of ended queries without a first batch
        self._waiting: list[Mapping[str, Any]] = []
        self._sampling = False
        if options is not None:
            configs(options)  # report wrong options to the caller, not in the listener's thread

    @property
    def history(self) -> list[LagAtTime]:
        """The lag after each trigger, oldest first."""
        return [replace(trigger.ended, lag=Lag.from_arrow(trigger.partitions)) for trigger in self._triggers()]

    @property
    def latest(self) -> dict[str, Lag]:
        """The newest lag by query name or id, of all running queries and of ended ones in `history`."""
        with self._lock:
            return {query: lag for query, (_, lag) in self._latest.items()}

    def serve(self, port: int, address: str = "0.0.0.0") -> tuple[Any, Any]:  # noqa: S104
        """Serve lags, rates and times of triggers for Prometheus; docs/metrics.md has the names.

        With `options`, each scrape requests the current log ends, within `sample_ms` per running query. A query in its
        first batch, and an ended one, has no lag: only `spark_streaming_query_active` says 1 or 0. Ended queries are
        remembered as long as `history`.

        Parameters
        ----------
        port : int
            0: a free port.
        address : str

        Returns
        -------
        (server, thread)
            `server.server_port` is the port, `server.shutdown()` ends it and frees the port.

        Raises
        ------
        UsageError
            prometheus_client is not installed.
        """
        from spark_kafka_source.lag.prometheus import NamedLag, serve

        def read() -> list[NamedLag]:
            with self._lock:
                progresses, running = dict(self._progress), set(self._running.values())
                lags = {query: lag for query, (_, lag) in self._latest.items()}
                names = dict.fromkeys([*lags, *self._running.values(), *self._ended])
            served = []
            for name in names:
                if name not in running or name not in progresses:
                    served.append(NamedLag(name, Lag(()), active=name in running))
                    continue
                progress = progresses[name]
                lag, groups = self._lag_now(lags[name], progress), groups_of_progress(progress)
                served.append(NamedLag(name, lag, progress=progress, active=True, groups=groups))
            return served

        return serve(port, read, address)

    def _lag_now(self, lag: Lag, progress: Mapping[str, Any]) -> Lag:
        """Return the lag with the current log ends, or the last known one."""
        if self._options is None:
            return lag
        try:
            return lag_of_query(progress, options=self._options, sample_ms=self._sample_ms, timeout_ms=self._sample_ms)
        except KafkaError as error:
            log.debug("the last known lag of %s is served: %s", _name(progress), error)
            return lag

    def onQueryStarted(self, event: Any) -> None:
        """Remember the query as running."""
        with self._lock:
            self._running[str(event.id)] = str(event.name or event.id)

    def onQueryIdle(self, event: Any) -> None:
        """Do nothing; Spark requires the method."""

    def onQueryTerminated(self, event: Any) -> None:
        """Forget the query."""
        with self._lock:
            name = self._running.pop(str(event.id), None)
            if name is not None and name not in self._latest and name not in self._ended:
                self._ended.append(name)
            self._forget_ended()

    def onQueryProgress(self, event: Any) -> None:
        """Report the lag after a batch. Runs in Spark's listener thread."""
        try:
            progress = json.loads(event.progress.json)
        except Exception:
            log.exception("cannot read the progress of a query")
            return
        with self._lock:
            # Here, since a sample may be ready only after the query's end. It may have begun before the listener.
            self._running[progress["id"]] = _name(progress)
        if self._options is None:
            self._add(progress, None)
            return
        with self._lock:
            self._waiting.append(progress)
            if self._sampling:
                return
            self._sampling = True
        threading.Thread(target=self._sample, name="lag-listener", daemon=True).start()

    def _sample(self) -> None:
        """Process waiting progress events, with requests to the brokers, until none is left."""
        while True:
            with self._lock:
                waiting, self._waiting = self._waiting, []
                if not waiting:
                    self._sampling = False
                    return
            newest = {_name(progress): progress for progress in waiting}
            for progress in waiting:
                self._add(progress, self._options if newest[_name(progress)] is progress else None)

    def _add(self, progress: Mapping[str, Any], options: Options | None) -> None:
        try:
            try:
                lag = lag_of_query(progress, options=options, sample_ms=self._sample_ms, timeout_ms=self._sample_ms)
            except UsageError as error:
                # Before PySpark 4.2, also of a trigger that is older than the sampled one.
                if self._options is None:
                    log_once(str(error))
                return
            if not len(lag):
                return
            time = datetime.fromisoformat(progress["timestamp"].replace("Z", "+00:00"))
            rows = int(progress.get("numInputRows") or 0)
            ended = LagAtTime(time, _name(progress), progress["batchId"], lag, rows, offsets_of_batch(progress))
            self._keep(ended, progress)
            if self._report is not None:
                self._report(ended)
        except Exception:
            log.exception("cannot determine or report the lag of a query")

    def _keep(self, ended: LagAtTime, progress: Mapping[str, Any]) -> None:
        partitions = ended.lag.to_arrow()
        with self._lock:
            self._number += 1
            without_lag = replace(ended, lag=Lag(()))
            self._history.append(_Trigger(self._number, without_lag, ended.lag.offsets_behind, partitions))
            self._latest[ended.query] = self._number, ended.lag
            self._progress[ended.query] = progress
            self._forget_ended()

    def _forget_ended(self) -> None:
        oldest = self._history[0].number if self._history else self._number + 1
        running = set(self._running.values())
        self._latest = {
            query: (number, lag)
            for query, (number, lag) in self._latest.items()
            if number >= oldest or query in running
        }
        self._progress = {query: progress for query, progress in self._progress.items() if query in running}

    def _triggers(self) -> list[_Trigger]:
        with self._lock:
            return list(self._history)

    def to_arrow(self) -> pa.Table:
        """Return one row per trigger and partition, with the columns of `HISTORY_SCHEMA`."""
        tables = [HISTORY_SCHEMA.empty_table()]
        for trigger in self._triggers():
            partitions = trigger.partitions
            columns = [
                pa.repeat(pa.scalar(getattr(trigger.ended, name), HISTORY_SCHEMA.field(name).type), len(partitions))
                for name in ("time", "query", "batch")
            ]
            tables.append(pa.table([*columns, *partitions.columns], schema=HISTORY_SCHEMA))
        return pa.concat_tables(tables)

    def to_pandas(self) -> pd.DataFrame:
        """Return the rows of `to_arrow`. Needs pandas, as `Lag.to_pandas`."""
        return to_pandas(self.to_arrow())

    def plot(self, axes: Axes | None = None) -> Axes:
        """Plot a line per query, the sum of its partitions. Needs matplotlib, as `Lag.plot`."""
        points: dict[str, list[tuple[datetime, int]]] = defaultdict(list)
        for trigger in sorted(self._triggers(), key=lambda trigger: trigger.ended.query):
            points[trigger.ended.query].append((trigger.ended.time, trigger.offsets_behind))
        return lines(points, axes)


def _name(progress: Mapping[str, Any]) -> str:
    """Return the query's name, or its id if it has no name."""
    return str(progress.get("name") or progress["id"])

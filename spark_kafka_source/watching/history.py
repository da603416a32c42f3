"""Samples of a query: its progress, and with options its lag in seconds and the state of its group."""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from protocol.admin.groups import GroupDescription, describe_group
from protocol.base.once import log_once
from protocol.errors import KafkaError, UsageError
from spark_kafka_source.lag.of_query import lag_of_query, offsets_of_batch
from spark_kafka_source.lag.seconds import SAMPLE_MS, Options, configs
from spark_kafka_source.lag.table import Lag
from spark_kafka_source.process_state import PROCESS
from spark_kafka_source.watching.figure import draw
from spark_kafka_source.watching.sample import Sample

log = logging.getLogger(__name__)

_KEPT = 1_000


class QueryHistory:
    """The samples of one query, from its progress. Works over Spark Connect, too. Not thread-safe.

    Parameters
    ----------
    query : StreamingQuery
    options : str or mapping, optional
        Bootstrap servers, or the options of the source. With them, lag is also in seconds, and if they have
        `kafka.group.id`, samples have the state of the group: both from requests to the brokers for the newest trigger.
    sample_ms : float
        The time limit of these requests.
    kept : int
        Number of samples to keep; the oldest ones are dropped.
    """

    def __init__(
        self, query: Any, *, options: Options | None = None, sample_ms: float = SAMPLE_MS, kept: int = _KEPT
    ) -> None:
        self.query = query
        self.samples: deque[Sample] = deque(maxlen=kept)
        self._options = options
        self._sample_ms = sample_ms
        self._last: tuple[str, int] | None = None
        if options is not None:
            configs(options)  # report wrong options now

    @property
    def name(self) -> str:
        """The query's name, or its id if it has no name."""
        return str(self.query.name or self.query.id)

    def poll(self) -> bool:
        """Add a sample for each new trigger. Returns True if there was one."""
        reports = [_parsed(text) for text in self.query.recentProgress]
        numbers = [number for number, report in enumerate(reports) if _key(report) == self._last]
        new = reports[numbers[-1] + 1 :] if numbers else reports
        for report in new:
            self.samples.append(self._sample(report, self._options if report is new[-1] else None))
        if new:
            self._last = _key(new[-1])
        return bool(new)

    def save(self, path: str | Path) -> Path:
        """Save the picture; the suffix of the path is the format, such as `.svg` or `.png`. Needs matplotlib."""
        draw(self.samples, self.name).savefig(path)
        return Path(path)

    def _sample(self, report: Mapping[str, Any], options: Options | None) -> Sample:
        lag: Lag | None = None
        try:
            lag = lag_of_query(report, options=options, sample_ms=self._sample_ms, timeout_ms=self._sample_ms)
        except UsageError as error:
            if self._options is None:
                log_once(str(error))
        except KafkaError as error:
            log.debug("cannot determine the lag of %s: %s", self.name, error)
        batch_ms = report.get("batchDuration") or report.get("durationMs", {}).get("triggerExecution")
        return Sample(
            datetime.fromisoformat(report["timestamp"].replace("Z", "+00:00")),
            int(report["batchId"]),
            int(report.get("numInputRows") or 0),
            _rate(report.get("inputRowsPerSecond")),
            _rate(report.get("processedRowsPerSecond")),
            None if batch_ms is None else batch_ms / 1000,
            lag if lag is not None and len(lag) else None,
            None if options is None else self._group_state(options),
            offsets_of_batch(report),
        )

    def _group_state(self, options: Options) -> str | None:
        config, _ = configs(options)
        named = {} if isinstance(options, str) else {name.lower(): str(value) for name, value in options.items()}
        group = named.get("kafka.group.id")
        if group is None:
            return None
        client = PROCESS.client(config)
        try:
            description = describe_group(client, group, client.deadline(self._sample_ms))
        except KafkaError as error:
            log.debug("cannot describe group %s: %s", group, error)
            return None
        return _group_text(description)


def _group_text(group: GroupDescription) -> str:
    count = len(group.members)
    return f"{group.group}: {group.state}, {count} member{'' if count == 1 else 's'}"


def _parsed(progress: Any) -> Mapping[str, Any]:
    """Return the progress as in its JSON, which has offsets as objects."""
    text = getattr(progress, "json", progress)
    parsed: Mapping[str, Any] = json.loads(text) if isinstance(text, str) else text
    return parsed


def _key(report: Mapping[str, Any]) -> tuple[str, int]:
    return report["timestamp"], report["batchId"]


def _rate(value: Any) -> float | None:
    """Return a rate; None for the first batch, which has no rate of input (missing, or NaN)."""
    return float(value) if isinstance(value, (int, float)) and 0 <= value < float("inf") else None

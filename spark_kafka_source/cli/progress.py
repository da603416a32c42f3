"""A progress bar on a terminal for commands that read many records."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa

from protocol.kafka_terms import TopicPartition
from spark_kafka_source.cli.record_sources import Receiver

if TYPE_CHECKING:
    from rich.progress import Progress


class _Advancing:
    """A receiver that also moves a progress bar."""

    def __init__(self, receiver: Receiver, progress: Progress, total: int | None, name: str) -> None:
        self._receiver, self._progress = receiver, progress
        self._task = progress.add_task(name, total=total)

    @property
    def done(self) -> bool:
        return self._receiver.done

    def take(self, key: TopicPartition, batch: pa.RecordBatch) -> int | None:
        unread = self._receiver.take(key, batch)
        self._progress.advance(self._task, batch.num_rows)
        return unread


@contextmanager
def advancing(receiver: Receiver, total: int | None, name: str = "records") -> Iterator[Receiver]:
    """Yield a receiver that shows its progress on standard error, if that is a terminal.

    `name`: text before the bar.
    """
    if not sys.stderr.isatty():
        yield receiver
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        yield _Advancing(receiver, progress, total, name)

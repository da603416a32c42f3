"""The files of a Spark query's checkpoint: which offsets each batch planned, and which batches are committed."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from pyarrow import fs

from protocol.errors import ConfigurationError
from protocol.kafka_terms import TopicPartition
from spark_kafka_source.plan.offsets import STARTING_OFFSETS, Offsets

D = TypeVar("D")

_NO_OFFSET = "-"

Source = int | str
"""The index of a source in its query; its name if the query names its sources (Spark 4.2 and later)."""


class CheckpointError(Exception):
    """The folder is not a checkpoint, or has an unknown format."""


@dataclass(frozen=True)
class Batch:
    """A batch of the offset log.

    `committed`: True if the batch is in the commit log; otherwise a restarted query repeats it.
    `timestamp_ms`: time when the batch was planned, in ms since 1970.
    `sources`: planned end offsets by source, in the order of the log; sources other than Kafka are left out.
    """

    number: int
    committed: bool
    timestamp_ms: int | None
    sources: Mapping[Source, Offsets]


@dataclass(frozen=True)
class Checkpoint:
    """The parsed checkpoint of a query.

    `batches`: in ascending order; Spark deletes the oldest.
    `initial`: start offsets of the query by source and partition, as Spark's own connector stores them; empty without
    it.
    """

    query_id: str | None
    batches: tuple[Batch, ...]
    initial: Mapping[Source, Mapping[TopicPartition, int]]

    def starts(self, index: int, source: Source) -> dict[TopicPartition, int | None]:
        """Return the start offset of each partition in a batch; None if the checkpoint does not have it.

        `index`: index in `batches`, which is not the batch's number.
        """
        batch = self.batches[index]
        offsets = batch.sources[source]
        if index and self.batches[index - 1].number == batch.number - 1:
            before = self.batches[index - 1].sources.get(source, Offsets({})).ends
        else:
            before = self.initial.get(source, {}) if batch.number == 0 else {}
        return {key: offsets.joined.get(key, before.get(key)) for key in offsets.ends}


def read_checkpoint(place: str) -> Checkpoint:
    """Read a checkpoint from a folder or a URI that pyarrow knows, such as `s3://…`.

    Raises `CheckpointError`: there is no checkpoint, or its format is unknown.
    """
    try:
        is_uri = "://" in place or place.startswith("file:")
        files, root = fs.FileSystem.from_uri(place) if is_uri else (fs.LocalFileSystem(), os.path.abspath(place))
        committed = set(_numbers(files, f"{root}/commits"))
        # A running query deletes its oldest batches meanwhile.
        texts = {
            number: _read(files, f"{root}/offsets/{number}", None) for number in _numbers(files, f"{root}/offsets")
        }
        batches = [_batch(number, text, number in committed) for number, text in texts.items() if text is not None]
        if not batches:
            raise CheckpointError(f"{place} has no folder `offsets` with batches: it is no checkpoint of a query.")
        sources = {source for batch in batches for source in batch.sources}
        initial = {source: _initial(files, f"{root}/sources/{source}/0") for source in sources}
        metadata = _read(files, f"{root}/metadata", "{}")
        return Checkpoint(json.loads(metadata).get("id"), tuple(batches), initial)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{place}: {error}") from error


def _numbers(files: fs.FileSystem, folder: str) -> list[int]:
    file_info = files.get_file_info(fs.FileSelector(folder, allow_not_found=True))
    return sorted(int(file.base_name) for file in file_info if file.base_name.isdecimal())


def _read(files: fs.FileSystem, path: str, default: D) -> str | D:
    """Return the text of a file; `default` if there is none."""
    try:
        with files.open_input_stream(path, compression=None) as stream:
            return str(stream.read().decode())
    except FileNotFoundError:
        return default


def _batch(number: int, text: str, committed: bool) -> Batch:
    version, *lines = text.split("\n")
    if version not in ("v1", "v2"):
        raise CheckpointError(f"Batch {number} has the format {version[:20]!r}, which this version does not know.")
    metadata, *sources = [line for line in lines if line]
    timestamp_ms = json.loads(metadata).get("batchTimestampMs") if metadata.startswith("{") else None
    by_source: dict[Source, str] = dict(enumerate(sources))
    if version == "v2":  # NAME:OFFSET
        by_source = {name: offset for name, _, offset in (line.partition(":") for line in sources)}
    parsed = {source: _offsets(line) for source, line in by_source.items()}
    kafka = {source: offsets for source, offsets in parsed.items() if offsets is not None}
    return Batch(number, committed, timestamp_ms, kafka)


def _offsets(line: str) -> Offsets | None:
    """Parse a source's line; None for a source that is not Kafka's, or without an offset."""
    if line == _NO_OFFSET:
        return None
    try:
        rows: Any = json.loads(line)
        return Offsets({}) if rows == STARTING_OFFSETS else Offsets.from_json_dict(rows)
    except (ValueError, ConfigurationError):
        return None


def _initial(files: fs.FileSystem, path: str) -> Mapping[TopicPartition, int]:
    """Read the start offsets that Spark's own connector has stored: the last line of a file with a version before."""
    offsets = _offsets(_read(files, path, _NO_OFFSET).rpartition("\n")[2])
    return {} if offsets is None else offsets.ends

"""Records as texts that have all their fields, so that a judge that compares the texts compares whole records."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import TypedDict

import pyarrow as pa

from protocol.testing import FakeKafka

Headers = Sequence[tuple[str, bytes | None]]
_COLUMNS = ("value", "key", "timestamp_ms", "headers")
_HOUR_MS = 3_600_000


class Fields(TypedDict):
    """The fields of a record besides its value, as arguments of `FakeKafka.produce`."""

    key: bytes | None
    timestamp_ms: int
    headers: Headers


def any_fields(chance: Random, kafka: FakeKafka, key: int) -> Fields:
    """Return a time near that of the cluster, and any headers: none, some without a value or with the same key."""
    time_ms = kafka.clock.wall_ms() + chance.randrange(-_HOUR_MS, _HOUR_MS)
    some = [("n", b"%d" % chance.randrange(1000))]
    headers: list[Headers] = [(), (), some, [("n", None), ("n", b""), ("m", b"\x00")]]
    return {"key": b"%d" % key, "timestamp_ms": time_ms, "headers": chance.choice(headers)}


def text_of(value: bytes | None, key: bytes | None, timestamp_ms: int, headers: Headers) -> str:
    """Return all fields of a record as a text."""
    return f"{value!r} of {key!r} at {timestamp_ms} {list(headers)}"


def texts_of(batch: pa.RecordBatch) -> list[str]:
    """Return the records of an Arrow batch as texts."""
    rows = zip(*(batch.column(name).to_pylist() for name in _COLUMNS), strict=True)
    return [
        text_of(value, key, timestamp_ms, [(header["key"], header["value"]) for header in headers or ()])
        for value, key, timestamp_ms, headers in rows
    ]

"""Protobuf messages as columns, judged by the protobuf package."""

from __future__ import annotations

import itertools

import pyarrow as pa
import pytest
from google.protobuf.message import DecodeError

from protocol.schemas.decoding import InvalidValue
from protocol.schemas.reader_schema import ReaderSchema
from protocol.schemas.values import ColumnDecoder
from tests.protocol.schemas.protobuf_samples import Samples, as_column, message_class, plain, text_of
from tests.support.soak import scaled

pytestmark = pytest.mark.soak

SCHEMAS = scaled("PROTOBUF_SCHEMAS", 40, 10_000)
MUTATIONS = scaled("PROTOBUF_MUTATIONS", 2_000, 100_000)


def decode(decoder: ColumnDecoder, values: list[bytes]) -> tuple[pa.Array, list[InvalidValue]]:
    column, invalid = decoder.decode(pa.array(values, pa.binary()))
    column.validate(full=True)
    return column, invalid


@pytest.mark.parametrize("rows", [3, 40])
def test_random_messages_equal_those_of_the_protobuf_package(rows: int) -> None:
    for seed in range(SCHEMAS):
        samples = Samples(seed)
        file = samples.file()
        kind = message_class(file)
        values = samples.messages(kind, rows)
        # Two messages one after another are merged.
        values += [first + second for first, second in itertools.pairwise(values)]
        column, invalid = decode(ColumnDecoder(ReaderSchema("protobuf", text_of(file))), values)
        assert invalid == [], seed
        expected = [as_column(kind.FromString(each)) for each in values]
        assert repr(plain(column)) == repr(expected), seed


def test_mutated_messages_are_errors_or_values() -> None:
    outcomes = dict.fromkeys(("both", "neither", "refused", "read"), 0)
    different = []
    for seed in range(MUTATIONS):
        if seed % 20 == 0:
            samples = Samples(seed)
            file = samples.file()
            kind = message_class(file)
            decoder = ColumnDecoder(ReaderSchema("protobuf", text_of(file)))
        r = samples.random
        raw = bytearray(samples.messages(kind, 1)[0] or b"\x08")
        for _ in range(r.randrange(1, 4)):
            raw[r.randrange(len(raw))] = r.randrange(256)
        value = bytes(raw[: r.randrange(1, len(raw) + 1)] if r.random() < 0.3 else raw)
        try:
            judged = as_column(kind.FromString(value))
        except DecodeError:
            judged = None
        except UnicodeDecodeError:
            continue  # proto2 has texts that are not UTF-8
        column, invalid = decode(decoder, [value])
        many, each_invalid = decode(decoder, [value] * 40)
        assert len(each_invalid) == 40 * len(invalid), (seed, value, invalid, each_invalid)
        assert repr(plain(many)) == repr(plain(column) * 40)
        if judged is None:
            outcomes["neither" if invalid else "read"] += 1
        elif invalid:
            outcomes["refused"] += 1
        else:
            outcomes["both"] += 1
            if repr(plain(column)[0]) != repr(judged):
                different.append((seed, value, plain(column)[0], judged))
    print(outcomes, len(different))
    for each in different[:5]:
        print(*each, sep="\n    ")
    assert outcomes["both"]
    assert outcomes["neither"]

"""Values of decoded JSON equal those of Spark's own `from_json`, for random schemas and values, valid and invalid."""

from __future__ import annotations

import json
import random

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from protocol.schemas.reader_schema import ReaderSchema
from protocol.schemas.values import ColumnDecoder
from tests.protocol.schemas.avro_samples import plain
from tests.support.soak import scaled

pytestmark = pytest.mark.soak

SCHEMAS = scaled("JSON_SCHEMAS", 4, 100)
SCALARS = ["INT", "BIGINT", "DOUBLE", "FLOAT", "BOOLEAN", "STRING", "DECIMAL(12, 3)", "DECIMAL(38, 10)", "DATE",
           "TIMESTAMP", "TIMESTAMP_NTZ", "BINARY", "SMALLINT"]  # fmt: skip
TEXTS = ["", "x", 'q"\\\n', "\u00e4\u20ac\U0001f600", "1", "true", "NaN", "2026-01-31", "AQID", "[1]"]


def some_type(draw: random.Random, depth: int) -> str:
    choice = draw.randrange(8) if depth else 0
    if choice == 5:
        return f"ARRAY<{some_type(draw, depth - 1)}>"
    if choice == 6:
        return f"MAP<STRING, {some_type(draw, depth - 1)}>"
    if choice == 7:
        fields = ", ".join(f"{name}: {some_type(draw, depth - 1)}" for name in "abc"[: draw.randrange(1, 4)])
        return f"STRUCT<{fields}>"
    return draw.choice(SCALARS)


def some_json(draw: random.Random, kind: str) -> str:
    """Return JSON for a type: mostly a value of it."""
    if draw.random() < 0.1:
        return "null"
    if draw.random() < 0.03:
        # As text, Spark has 100.0 for 1e2.
        odd = ["-0", "01", "tru", '"a\tb"', "[1,]", *(["1e2"] if "STRING" not in kind else [])]
        return draw.choice(["1", "1.5", '"x"', "true", "[]", "{}", '""', *odd])
    if kind.startswith("ARRAY"):
        return f"[{', '.join(some_json(draw, kind[6:-1]) for _ in range(draw.randrange(3)))}]"
    if kind.startswith("MAP"):
        entries = [f"{json.dumps(key)}: {some_json(draw, kind[12:-1])}" for key in "xy"[: draw.randrange(3)]]
        return f"{{{', '.join(entries)}}}"
    if kind.startswith("STRUCT"):
        fields = [(split_field[0], split_field[3:]) for split_field in split_fields(kind[7:-1])]
        entries = [f'"{name}":{some_json(draw, inner)}' for name, inner in fields if draw.random() < 0.9]
        draw.shuffle(entries)
        entries += ['"zz": [{}, null]'] if draw.random() < 0.2 else []
        return f"{{{', '.join(entries)}}}"
    return some_scalar(draw, kind)


def split_fields(text: str) -> list[str]:
    result, depth, start = [], 0, 0
    for at, char in enumerate(text):
        depth += {"<": 1, ">": -1, "(": 1, ")": -1}.get(char, 0)
        if char == "," and not depth:
            result.append(text[start:at].strip())
            start = at + 1
    return [*result, text[start:].strip()]


def some_scalar(draw: random.Random, kind: str) -> str:
    if kind == "SMALLINT":
        return str(draw.randrange(-(2**15), 2**15))
    if kind in ("INT", "BIGINT"):
        return str(draw.randrange(-(2**31), 2**31) if draw.random() < 0.9 else 2**40)
    if kind in ("DOUBLE", "FLOAT"):
        odd = ['"NaN"', "NaN", '"-Infinity"', "1e400"]
        return draw.choice(["0", "1", "-2.5", "1e3", "1E-3", repr(draw.random()), *odd])
    if kind == "BOOLEAN":
        return draw.choice(["true", "false"])
    if kind.startswith("DECIMAL"):
        long = ["12345678", "123456789012345678901", '"1,000.5"']
        return draw.choice(["0", "1.005", "-3.00049", "1e3", "1e-9", *long])
    if kind == "DATE":
        return draw.choice(['"2026-01-31"', '"2026-1-3"', '"1969-12-31T00:00:00Z"', '"2026-02-30"', '"0001-01-01"'])
    if kind.startswith("TIMESTAMP"):
        zones = ["", "Z", "+01:00", " Europe/Berlin", "-0530"] if kind == "TIMESTAMP" else [""]
        moments = [
            "2026-01-31T12:00:00",
            "2026-1-3 1:2:3",
            "1969-12-31T23:59:59.999999",
            "2026-01-31T12:00:00.123456789",
        ]
        return draw.choice([f'"{draw.choice(moments)}{draw.choice(zones)}"', '"2026-01-31"', '"2026-13-01"'])
    if kind == "BINARY":
        return draw.choice(['"AQID"', '""', '"+/8="', '"AQ"'])
    return json.dumps(draw.choice(TEXTS), ensure_ascii=draw.random() < 0.5)


@pytest.mark.parametrize("seed", range(SCHEMAS))
def test_random_values_equal_those_of_from_json(spark: SparkSession, seed: int) -> None:
    draw = random.Random(seed)
    # One record of many fields costs Spark no more than one of few.
    kinds = {f"f{number}": some_type(draw, 2) for number in range(10)}
    schema = ", ".join(f"{name} {kind}" for name, kind in kinds.items())
    values = []
    for _ in range(200):
        entries = [f'"{name}": {some_json(draw, kind)}' for name, kind in kinds.items() if draw.random() < 0.5]
        values.append(f"{{{', '.join(entries)}}}".encode())
    frame = spark.createDataFrame(list(enumerate(values)), "n int, raw binary").coalesce(1)
    text = f.col("raw").cast("string")
    reference = frame.select(
        "n",
        f.from_json(text, schema).alias("value"),
        f.from_json(text, f"{schema}, _corrupt_record STRING")["_corrupt_record"].isNotNull().alias("wrong"),
    ).orderBy("n")
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    table = reference.toArrow()
    wrong = table.column("wrong").to_pylist()
    column, invalid = ColumnDecoder(ReaderSchema("json", schema)).decode(
        frame.orderBy("n").toArrow().column("raw").combine_chunks()
    )
    column.validate(full=True)
    reasons = {failure.row: str(failure) for failure in invalid}
    different = [row for row, flag in enumerate(wrong) if flag != (row in reasons)]
    assert [(kinds, values[row], reasons.get(row)) for row in different[:1]] == []
    assert 20 < len(invalid) < 180
    expected = plain(table.column("value").combine_chunks())
    for row, result in enumerate(plain(column)):
        assert wrong[row] or repr(result) == repr(expected[row]), values[row]  # NaN is not equal to itself

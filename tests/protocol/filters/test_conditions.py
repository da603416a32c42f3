"""Conditions over columns: what the parser makes of them, and the rows that they keep."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest

from protocol.errors import ConfigurationError, FilterFailed
from protocol.fetch.log_offsets import Range
from protocol.filters.parse import parse_condition
from protocol.filters.record_filter import RecordFilter


def kept(condition: str, keys: Sequence[bytes | None], *, ansi: bool = True) -> list[int]:
    """Return the numbers of the records that a condition on keys keeps."""
    columns = {"key": pa.array(keys, pa.binary()), "offset": pa.array(range(len(keys)), pa.int64())}
    (stage,) = RecordFilter(parse_condition(condition), ansi=ansi).of_range(Range("orders", 0, 0, 9)).stages
    rows: list[int] = stage.keep(columns).nonzero()[0].tolist()
    return rows


# -- numbers ------------------------------------------------------------------------------------------


def test_cast_of_more_digits_than_python_parses_is_null_or_fails_in_ansi_mode() -> None:
    keys = [b"9" * 5000, b"-" + b"9" * 5000, b"0" * 5000 + b"7", b"-7", b"7.9"]
    for kind in ("int", "bigint"):
        assert kept(f"cast(cast(key AS string) AS {kind}) = 7", keys, ansi=False) == [2, 4]
        assert kept(f"cast(cast(key AS string) AS {kind}) IS NULL", keys, ansi=False) == [0, 1]
        with pytest.raises(FilterFailed, match="offset 1"):
            kept(f"cast(cast(key AS string) AS {kind}) = 7", [b"7", *keys])


@pytest.mark.parametrize("number", ["9" * 5000, "-" + "9" * 5000, "9" * 20], ids=["long", "negative", "short"])
def test_literal_outside_bigint_is_refused(number: str) -> None:
    with pytest.raises(ConfigurationError, match="exceeds the range of bigint"):
        parse_condition(f"offset > {number}")

"""Sizes in options: the number of bytes of each text."""

from __future__ import annotations

import pytest

from spark_kafka_source.options.scalars import size_bytes


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1", 1),
        ("1048576", 1 << 20),
        ("7b", 7),
        ("64k", 64 << 10),
        (" 100M ", 100 << 20),
        ("10mb", 10 << 20),
        ("1g", 1 << 30),
        ("2T", 2 << 40),
        (str(2**63 - 1), 2**63 - 1),
    ],
)
def test_size_is_bytes_or_a_number_with_a_unit(text: str, size: int) -> None:
    assert size_bytes(text) == size


@pytest.mark.parametrize("text", ["", "m", "-1", "1.5g", "1 g", "1gib", "10x", "0", "0k", str(2**63), "9999999p"])
def test_invalid_sizes_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"not a size|out of range"):
        size_bytes(text)

"""The choice of a version: the highest that client, broker and call have in common."""

from __future__ import annotations

import pytest

from protocol.errors import UnsupportedVersion
from protocol.wire.messages.m01_fetch import FETCH
from protocol.wire.schema import choose_version


@pytest.mark.parametrize(
    ("broker", "needs", "expected"),
    [
        ((0, 11), {}, 11),
        ((0, 99), {}, 18),
        ((4, 4), {}, 4),
        ((18, 30), {}, 18),
        ((0, 17), {"at_most": 12}, 12),
        ((0, 17), {"at_least": 13}, 17),
        ((0, 17), {"at_least": 17, "at_most": 17}, 17),
    ],
)
def test_highest_common_version_is_chosen(broker: tuple[int, int], needs: dict[str, int], expected: int) -> None:
    assert choose_version(FETCH, {1: broker}, **needs) == expected


@pytest.mark.parametrize(
    ("broker", "needs", "parts"),
    [
        ({1: (0, 3)}, {}, ["Fetch", "v4 to v18", "v0 to v3"]),
        ({1: (19, 20)}, {}, ["v4 to v18", "the broker v19 to v20"]),
        ({1: (0, 11)}, {"at_least": 13}, ["the broker (Kafka 2.3 to 2.6) v0 to v11", "needs v13 or later"]),
        ({1: (13, 17)}, {"at_most": 12}, ["v13 to v17", "needs v12 or earlier"]),
        ({1: (0, 17)}, {"at_least": 14, "at_most": 12}, ["needs v14 or later and v12 or earlier"]),
        ({0: (0, 9), 3: (0, 13)}, {}, ["does not support Fetch (API key 1); this client supports v4 to v18$"]),
        ({0: (0, 9)}, {}, ["does not support Fetch", "key 1", "port of a KRaft controller"]),
    ],
)
def test_version_mismatch_error_has_all_ranges(
    broker: dict[int, tuple[int, int]], needs: dict[str, int], parts: list[str]
) -> None:
    with pytest.raises(UnsupportedVersion) as raised:
        choose_version(FETCH, broker, **needs)
    for words in parts:
        assert words in f"{raised.value}$"

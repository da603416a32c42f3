"""The bytes that members exchange; other clients write some of them, and may write invalid ones."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace

import pytest

from protocol.errors import Corrupt
from protocol.group.assignors.assignor import NO_GENERATION, Assignor, Subscription
from protocol.group.assignors.strategies import COOPERATIVE_STICKY, STICKY
from protocol.group.assignors.subscription_codec import (
    MAX_PARTITIONS,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from tests.support.hostile import cases, corrupted, provoke, tracing

pytestmark = pytest.mark.soak

SUBSCRIPTION = Subscription(
    frozenset({"t", "u"}), frozenset({("t", 0), ("t", 2), ("u", 1)}), 5, "east", b"of an assignor", "static-1"
)


def test_subscription_round_trips_with_the_fields_of_its_version() -> None:
    def sent(version: int) -> Subscription:
        return decode_subscription(encode_subscription(SUBSCRIPTION, version), "static-1")

    assert sent(3) == SUBSCRIPTION
    assert sent(2) == replace(SUBSCRIPTION, rack=None)
    assert sent(1) == replace(SUBSCRIPTION, rack=None, generation=NO_GENERATION)
    assert sent(0) == replace(SUBSCRIPTION, rack=None, generation=NO_GENERATION, owned=frozenset())


def test_newer_subscription_is_read_with_the_known_fields() -> None:
    data = encode_subscription(SUBSCRIPTION)
    assert decode_subscription(b"\0\7" + data[2:] + b"what comes then", "static-1") == SUBSCRIPTION


def test_empty_rack_is_none() -> None:
    assert decode_subscription(encode_subscription(replace(SUBSCRIPTION, rack=""))).rack is None


def test_assignment_round_trips_and_empty_bytes_are_no_partitions() -> None:
    assert decode_assignment(encode_assignment(SUBSCRIPTION.owned)) == SUBSCRIPTION.owned
    assert decode_assignment(encode_assignment([])) == decode_assignment(b"") == frozenset()


@pytest.mark.parametrize(
    ("decode", "written"),
    [(decode_subscription, encode_subscription(SUBSCRIPTION)), (decode_assignment, encode_assignment([("t", 1)]))],
    ids=["subscription", "assignment"],
)
def test_corrupt_bytes_are_protocol_errors_with_little_memory(
    decode: Callable[[bytes], object], written: bytes
) -> None:
    with tracing():
        for rng in cases("consumer protocol", 200):
            provoke(decode, corrupted(written, rng, [written]))
        assert [cut for cut in range(1, len(written)) if provoke(decode, written[:cut])] == []


def test_implausible_number_of_partitions_is_refused() -> None:
    numbers = struct.pack(">i", MAX_PARTITIONS + 1) + bytes(4 * (MAX_PARTITIONS + 1))
    with pytest.raises(Corrupt, match="partitions of one member"):
        decode_assignment(bytes.fromhex("0000 00000001 0001 74") + numbers + b"\xff\xff\xff\xff")


# -- user data ------------------------------------------------------------------------------------


def test_sticky_user_data_equals_javas() -> None:
    owned = [("t", 2), ("t", 0)]
    assert STICKY.user_data(owned, 5) == bytes.fromhex("00000001 0001 74 00000002 00000000 00000002 00000005")
    assert COOPERATIVE_STICKY.user_data(owned, 5) == bytes.fromhex("00000005")


@pytest.mark.parametrize("assignor", [STICKY, COOPERATIVE_STICKY], ids=lambda case: case.name)
def test_unreadable_user_data_is_ignored(assignor: Assignor) -> None:
    """User data of a custom assignor with the same name must not prevent the assignment."""
    data = assignor.user_data([("t", 0)], 5)
    assert data is not None
    for bad in [b"", data[:3], b"\x7f" * 9, *(corrupted(data, rng, [data]) for rng in cases("user data", 50))]:
        member = Subscription(frozenset({"t"}), user_data=bad)
        assert assignor.assign({"a": member}, {"t": [frozenset()] * 2}) == {"a": [("t", 0), ("t", 1)]}


def test_older_sticky_member_has_no_generation() -> None:
    older = bytes.fromhex("00000001 0001 74 00000001 00000000")
    members = {"a": Subscription(frozenset({"t"})), "b": Subscription(frozenset({"t"}), user_data=older)}
    assert STICKY.assign(members, {"t": [frozenset()] * 2}) == {"a": [("t", 1)], "b": [("t", 0)]}


def test_cooperative_member_without_generation_field_has_it_in_user_data() -> None:
    both = frozenset({("t", 0), ("t", 1)})
    members = {
        name: Subscription(frozenset({"t"}), both, user_data=COOPERATIVE_STICKY.user_data(both, generation))
        for name, generation in (("a", 3), ("b", 4))
    }
    assert COOPERATIVE_STICKY.assign(members, {"t": [frozenset()] * 2}) == {"a": [], "b": [("t", 0)]}

"""Arguments that no cluster can know are refused at once, by name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest

from protocol import KafkaConsumer
from protocol.errors import UsageError
from protocol.group.membership.assignment import TopicSubscription
from protocol.testing import FakeKafka

ORDERS = ("orders", 0)
NAMES = [
    "assign",
    "beginning_offsets",
    "end_offsets",
    "seek_to_beginning",
    "seek_to_end",
    "committed",
    "pause",
    "resume",
]
CALLS: dict[str, Callable[[KafkaConsumer, object], object]] = {name: getattr(KafkaConsumer, name) for name in NAMES}
CALLS["offsets_for_times"] = lambda consumer, keys: consumer.offsets_for_times(dict.fromkeys(keys, 0))  # type: ignore[call-overload]


@pytest.fixture
def consumer() -> Iterator[KafkaConsumer]:
    with FakeKafka() as fake:
        fake.create_topic("orders")
        with KafkaConsumer(
            bootstrap_servers=fake.bootstrap_servers, group_id="g", enable_auto_commit=False
        ) as consumer:
            consumer.assign([ORDERS])
            yield consumer


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("partitions", [ORDERS, [("orders", "0")], [("orders", True)], ["orders"]], ids=str)
def test_wrong_partitions_are_refused(consumer: KafkaConsumer, call: str, partitions: object) -> None:
    with pytest.raises(
        UsageError, match=r"is not a partition|partition of orders is ('0'|True); it must be an integer"
    ):
        CALLS[call](consumer, partitions)


def test_wrong_partition_of_a_position_is_refused(consumer: KafkaConsumer) -> None:
    with pytest.raises(UsageError, match="is not a partition"):
        consumer.position(["orders", 0])  # type: ignore[arg-type]


@pytest.mark.parametrize("time_ms", [-1, 1.5, "now"])
def test_wrong_timestamp_is_refused(consumer: KafkaConsumer, time_ms: object) -> None:
    with pytest.raises(UsageError, match=r"timestamp of orders-0 (is|must)"):
        consumer.offsets_for_times({ORDERS: time_ms})  # type: ignore[dict-item]


@pytest.mark.parametrize(("pattern", "re2"), [(rb"or.*", None), ("or.*", 5), ("or.*", b"or.*")])
def test_pattern_that_is_no_text_is_refused(pattern: str, re2: str | None) -> None:
    with pytest.raises(UsageError, match="must be a str"):
        TopicSubscription.of(re.compile(pattern), re2)

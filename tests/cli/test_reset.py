"""`pykafka groups reset` on the fake cluster: limits of times and offsets."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from protocol.testing.fake_kafka.offsets import Committed
from protocol.testing.fake_kafka.server import FakeKafka
from tests.cli.runs import invoke_at, refusal, rows
from tests.protocol.fetch.consuming import records

RESET = ("groups", "reset", "etl", "--topic", "orders:0")


@pytest.fixture
def fake() -> Iterator[FakeKafka]:
    """Return a cluster with nine records in the first of two partitions of `orders`."""
    with FakeKafka() as kafka:
        kafka.create_topic("orders", 2)
        kafka.write("orders", 0, records(0, 9))
        yield kafka


@pytest.mark.parametrize(
    ("way", "new_offset"),
    [
        (("--by-duration", "99999d"), 0),
        (("--by-duration", "P99999D"), 0),
        (("--to-datetime", "9999-12-31T23:59:59Z"), 9),
        (("--to-offset", "9" * 22), 9),
    ],
)
def test_reset_beyond_log_or_before_1970_takes_nearest_offset(
    fake: FakeKafka, way: tuple[str, str], new_offset: int
) -> None:
    assert [row["new_offset"] for row in rows(invoke_at(fake, *RESET, *way, "-o", "json"))] == [new_offset]


@pytest.mark.parametrize("execute", [True, False])
def test_executed_reset_tells_of_running_queries_without_membership(fake: FakeKafka, execute: bool) -> None:
    stderr = invoke_at(fake, *RESET, "--to-latest", *["--execute"] * execute).stderr
    assert ("restores its own offsets within a minute" in stderr) == execute
    assert ("Nothing was changed" in stderr) != execute


def test_reset_to_time_in_seconds_exits_with_usage_error() -> None:
    assert "append 000 to a time in seconds" in refusal(*RESET, "--to-datetime", "1767225600")


@pytest.mark.parametrize(("way", "group"), [(("--to-current",), "etl"), (("--to-group", "etl"), "copy")])
def test_copied_offset_keeps_its_leader_epoch(
    fake: FakeKafka, caplog: pytest.LogCaptureFixture, way: tuple[str, ...], group: str
) -> None:
    before = {("orders", 0): Committed(5, 3, "so far"), ("orders", 1): Committed(7, 3, "")}
    fake.offsets.committed["etl"] = dict(before)
    invoke_at(fake, "groups", "reset", group, "--all-topics", *way, "--execute")
    assert "orders-1: offset 7 is not in the log, 0 is the nearest" in caplog.text
    assert fake.offsets.committed[group] == {**before, ("orders", 1): Committed(0, -1, "")}  # the end of the log

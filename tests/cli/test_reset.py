"""`pykafka groups reset` on the fake cluster: limits of times and offsets."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from protocol.testing.fake_kafka.offsets import Committed
from protocol.testing.fake_kafka.server import FakeKafka
from spark_kafka_source.cli.pykafka import pykafka
from tests.protocol.fetch.consuming import records


@pytest.mark.parametrize(
    ("way", "new_offset"),
    [
        (("--by-duration", "99999d"), 0),
        (("--by-duration", "P99999D"), 0),
        (("--to-datetime", "9999-12-31T23:59:59Z"), 9),
        (("--to-offset", "9" * 22), 9),
    ],
)
def test_reset_beyond_log_or_before_1970_takes_nearest_offset(way: tuple[str, str], new_offset: int) -> None:
    with FakeKafka() as kafka:
        kafka.create_topic("orders", 1)
        kafka.write("orders", 0, records(0, 9))
        arguments = ("groups", "reset", "etl", "--topic", "orders", *way, "--output", "json")
        result = CliRunner().invoke(pykafka, [*arguments, "--bootstrap-server", kafka.bootstrap_servers])
    assert result.exit_code == 0, result.output
    assert [row["new_offset"] for row in json.loads(result.stdout)] == [new_offset]


@pytest.mark.parametrize("execute", [True, False])
def test_executed_reset_tells_of_running_queries_without_membership(execute: bool) -> None:
    with FakeKafka() as kafka:
        kafka.create_topic("orders", 1)
        arguments = ("groups", "reset", "etl", "--topic", "orders", "--to-latest", *["--execute"] * execute)
        result = CliRunner().invoke(pykafka, [*arguments, "--bootstrap-server", kafka.bootstrap_servers])
    assert result.exit_code == 0, result.output
    assert ("restores its own offsets within a minute" in result.stderr) == execute
    assert ("Nothing was changed" in result.stderr) != execute


def test_reset_to_time_in_seconds_exits_with_usage_error() -> None:
    arguments = ("groups", "reset", "etl", "--topic", "orders", "--to-datetime", "1767225600")
    result = CliRunner().invoke(pykafka, [*arguments, "--bootstrap-server", "127.0.0.1:1"])
    assert (result.exit_code, "append 000 to a time in seconds" in " ".join(result.stderr.split())) == (2, True)


@pytest.mark.parametrize(("way", "group"), [(("--to-current",), "etl"), (("--to-group", "etl"), "copy")])
def test_copied_offset_keeps_its_leader_epoch(way: tuple[str, ...], group: str) -> None:
    with FakeKafka() as kafka:
        kafka.create_topic("orders", 2)
        kafka.write("orders", 0, records(0, 9))
        before = {("orders", 0): Committed(5, 3, "so far"), ("orders", 1): Committed(7, 3, "")}
        kafka.offsets.committed["etl"] = dict(before)
        arguments = ("groups", "reset", group, "--all-topics", *way, "--execute")
        result = CliRunner().invoke(pykafka, [*arguments, "--bootstrap-server", kafka.bootstrap_servers])
        assert result.exit_code == 0, result.output
        assert kafka.offsets.committed[group] == {**before, ("orders", 1): Committed(0, -1, "")}  # the end of the log

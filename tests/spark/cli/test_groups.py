"""`pykafka groups` on a real broker: the same rows, offsets and columns as Kafka's ConsumerGroupCommand."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from click.testing import Result
from confluent_kafka import Consumer, Producer

from protocol.admin.topics import delete_records
from protocol.cluster.client import Client
from protocol.config import parse_client
from spark_kafka_source.local_kafka import LocalKafka
from tests.cli import runs
from tests.cli.runs import invoke_at
from tests.conftest import topic_factory
from tests.support.consumer_groups import describe, move_group

TOOL = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
# Age difference of two records: half of it may pass from their writes to ours and Kafka's command.
APART_MINUTES = 60
APART_MS = APART_MINUTES * 60_000
# Nothing polls the members while commands run.
LONG_POLL_INTERVAL = {"max.poll.interval.ms": 3_600_000}
Row = dict[str, Any]


@dataclass(frozen=True)
class Names:
    """Names of groups and topics: `idle` has offsets only, `classic` two members, `consumer` one member."""

    orders: str
    paid: str
    idle: str
    classic: str
    consumer: str


@pytest.fixture(scope="module")
def names(kafka1: LocalKafka) -> Iterator[Names]:
    topics = topic_factory(kafka1)
    create = next(topics)
    orders, paid = create(3, prefix="orders"), create(1, prefix="paid")
    group = f"group-{uuid.uuid4().hex[:8]}"
    made = Names(orders, paid, f"{group}-idle", f"{group}-classic", f"{group}-consumer")
    write(kafka1, orders, {0: 30, 1: 20})
    write(kafka1, paid, {0: 5})
    with Client(parse_client({"bootstrap.servers": kafka1.bootstrap_servers})) as client:
        delete_records(client, {(orders, 0): 4})
    move_group(kafka1, made.idle, {(orders, 0): 10, (orders, 1): 20, (paid, 0): 3})
    move_group(kafka1, made.classic, {(orders, 0): 12, (paid, 0): 1})
    members = [
        *(join(kafka1, made.classic, orders, "classic", str(number)) for number in range(2)),
        join(kafka1, made.consumer, orders, "consumer", "alone", **{"group.instance.id": "static-1"}),
    ]
    wait_until_assigned(members)
    yield made
    for member in members:
        member.close()
    next(topics, None)


def write(kafka: LocalKafka, topic: str, counts: dict[int, int]) -> None:
    """Write records with ages of 0.5, 1.5, 2.5, … times `APART_MINUTES`; the newest is the last."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    now_ms = time.time_ns() // 1_000_000
    for partition, count in counts.items():
        for age in range(count, 0, -1):
            producer.produce(topic, b"v", partition=partition, timestamp=now_ms - age * APART_MS + APART_MS // 2)
    assert producer.flush(30) == 0


def join(kafka: LocalKafka, group: str, topic: str, protocol: str, client_id: str, **settings: str) -> Consumer:
    where = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": group, "client.id": client_id}
    strategy = {"partition.assignment.strategy": "roundrobin"} if protocol == "classic" else {}
    consumer = Consumer(
        {**where, "group.protocol": protocol, "enable.auto.commit": False, **LONG_POLL_INTERVAL, **strategy, **settings}
    )
    consumer.subscribe([topic])
    return consumer


def wait_until_assigned(members: list[Consumer], timeout_s: float = 60) -> None:
    """Wait until the two classic members share three partitions and the consumer member has three."""
    deadline_s = time.monotonic() + timeout_s
    while sorted(len(member.assignment()) for member in members) != [1, 2, 3]:
        assert time.monotonic() < deadline_s
        for member in members:
            member.poll(0.05)


def run(kafka: LocalKafka, *arguments: str, **options: Any) -> Result:
    return invoke_at(kafka, "groups", *arguments, **options)


def rows(kafka: LocalKafka, *arguments: str) -> list[Row]:
    return runs.rows(run(kafka, *arguments, "--output", "json"))


def tool(kafka: LocalKafka, *arguments: str) -> str:
    return kafka.run_tool(TOOL, "--bootstrap-server", kafka.bootstrap_servers, *arguments)


def of_groups(*names: str) -> list[str]:
    return [word for name in names for word in ("--group", name)]


def tool_rows(kafka: LocalKafka, *arguments: str) -> list[dict[str, str]]:
    """Return the rows of the tables that Kafka's tool prints, one table per group."""
    result, header = [], []
    for words in filter(None, map(str.split, tool(kafka, *arguments).splitlines())):
        if words[0] == "GROUP":
            header = words
        elif header:
            result.append(dict(zip(header, words, strict=False)))
    return result


def compare(ours: list[Row], expected: list[dict[str, str]], *columns: str) -> None:
    """Compare these columns, by Kafka's names, of rows in any order."""
    own_names = {"#PARTITIONS": "partitions", "CURRENT-ASSIGNMENT": "assignment"}
    own_columns = [own_names.get(column, column.lower().replace("-", "_")) for column in columns]
    assert expected
    assert sorted(
        ["-" if row[column] is None else str(row[column]) for column in own_columns] for row in ours
    ) == sorted([row.get(column, "-") for column in columns] for row in expected)


# -- describe and list ----------------------------------------------------------------------------

OFFSETS = (
    *("GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG"),
    *("CONSUMER-ID", "HOST", "CLIENT-ID"),
)
MEMBERS = ("GROUP", "CONSUMER-ID", "GROUP-INSTANCE-ID", "HOST", "CLIENT-ID", "#PARTITIONS", "CURRENT-ASSIGNMENT")


def test_described_offsets_and_owners_equal_kafka_consumer_groups(kafka1: LocalKafka, names: Names) -> None:
    three = (names.idle, names.classic, names.consumer)
    ours = rows(kafka1, "describe", *three)
    compare(ours, tool_rows(kafka1, "--describe", *of_groups(*three)), *OFFSETS)
    assert len(ours) == 3 + 4 + 3
    seconds = {(row["topic"], row["partition"]): row["lag_seconds"] for row in ours if row["group"] == names.idle}
    assert seconds[names.orders, 1] == 0
    assert seconds[names.orders, 0] == pytest.approx(19.5 * 60 * APART_MINUTES, abs=1_500)
    table = run(kafka1, "describe", names.idle).stdout.splitlines()
    assert table[0].split()[:6] == ["GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG"]
    assert len(table) == 1 + 3


def test_described_members_equal_kafka_consumer_groups(kafka1: LocalKafka, names: Names) -> None:
    both = (names.classic, names.consumer)
    ours = rows(kafka1, "describe", "--members", *both, names.idle)
    compare(ours, tool_rows(kafka1, "--describe", "--members", "--verbose", *of_groups(*both)), *MEMBERS)
    assert sorted(row["partitions"] for row in ours) == [1, 2, 3]


def test_described_states_equal_kafka_consumer_groups(kafka1: LocalKafka, names: Names) -> None:
    three = (names.idle, names.classic, names.consumer)
    ours = {row["group"]: row for row in rows(kafka1, "describe", "--state", *three)}
    output_rows = [line.split() for line in tool(kafka1, "--describe", "--state", *of_groups(*three)).splitlines()]
    expected = {words[0]: words[1:] for words in output_rows if words and words[0] in three}
    for name, (address, broker_id, *strategy, state, members) in expected.items():
        row = ours.pop(name)
        assert row["coordinator"] == f"{address} (broker {broker_id.strip('()')})"
        assert [row["assignment_strategy"] or "", row["state"], row["members"]] == [
            *("".join(strategy).strip("-"), state, int(members))
        ]
    assert not ours


def test_listed_groups_equal_kafka_consumer_groups(kafka1: LocalKafka, names: Names) -> None:
    own = {names.idle, names.classic, names.consumer}  # other tests change other groups
    output_rows = tool_rows(kafka1, "--list", "--state", "--type")
    expected = [{**row, "TYPE": row["TYPE"].lower()} for row in output_rows if row["GROUP"] in own]
    compare([row for row in rows(kafka1, "list") if row["group"] in own], expected, "GROUP", "TYPE", "STATE")

    def listed(*arguments: str) -> set[str]:
        return {row["group"] for row in rows(kafka1, "list", *arguments)} & own

    assert listed("--state", "stable") == {names.classic, names.consumer}
    assert listed("--state", "Empty", "--state", "Dead") == {names.idle}
    assert listed("--type", "consumer") == {names.consumer}
    assert listed("--type", "classic", "--state", "Stable") == {names.classic}


def test_describe_of_unknown_group_fails_and_prints_other_groups(kafka1: LocalKafka, names: Names) -> None:
    result = run(kafka1, "describe", "unknown-group", names.idle, code=1)
    assert result.stderr == "Error: Consumer group 'unknown-group' does not exist.\n"
    assert len(result.stdout.splitlines()) == 1 + 3


# -- reset ----------------------------------------------------------------------------------------


def ago(minutes: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(time.time() - minutes * 60))


@pytest.mark.parametrize(
    "way",
    [
        ("--to-earliest",),
        ("--to-latest",),
        ("--to-datetime", ago(15 * APART_MINUTES)),
        ("--by-duration", f"PT{25 * APART_MINUTES}M"),
        ("--by-duration", "PT1S"),
        ("--shift-by", "-8"),
        ("--to-offset", "22"),
    ],
    ids=lambda way: way[0],
)
def test_reset_dry_run_offsets_equal_kafka_consumer_groups(
    kafka1: LocalKafka, names: Names, way: tuple[str, ...]
) -> None:
    """The logs: one starts after 0, one is empty, one ends before the committed offset."""
    choice = ("--all-topics",) if way[0] == "--shift-by" else ("--topic", names.orders, "--topic", f"{names.paid}:0")
    before = describe(kafka1, names.idle)
    ours = rows(kafka1, "reset", names.idle, *choice, *way)
    expected = tool_rows(kafka1, "--reset-offsets", "--group", names.idle, *choice, *way, "--dry-run")
    compare(ours, expected, "GROUP", "TOPIC", "PARTITION", "NEW-OFFSET")
    committed = {(row.topic, row.partition): row.current_offset for row in before}
    assert all(row["current_offset"] == committed.get((row["topic"], row["partition"])) for row in ours)
    assert describe(kafka1, names.idle) == before, "nothing was executed"


def test_reset_with_execute_commits_new_offsets(kafka1: LocalKafka, names: Names) -> None:
    group = f"group-{uuid.uuid4().hex[:8]}"
    first = run(kafka1, "reset", group, "--topic", f"{names.orders}:0,2", "--to-earliest", "--execute")
    assert first.stderr.startswith("The group has no members.")
    assert [(row.partition, row.current_offset) for row in describe(kafka1, group)] == [(0, 4), (2, 0)]
    (again,) = rows(kafka1, "reset", group, "--topic", f"{names.orders}:0", "--shift-by", "5", "--execute")
    assert (again["current_offset"], again["new_offset"]) == (4, 9)
    assert [(row.partition, row.current_offset) for row in describe(kafka1, group)] == [(0, 9), (2, 0)]


def test_reset_to_impossible_offsets_fails_with_one_line(kafka1: LocalKafka, names: Names) -> None:
    cases = {
        (names.idle, "--topic", f"{names.orders}:7", "--to-latest"): f"There is no partition {names.orders}-7.",
        (names.idle, "--topic", "no-such-topic", "--to-latest"): "UNKNOWN_TOPIC_OR_PARTITION",
        (names.idle, "--topic", f"{names.orders}:2", "--shift-by", "1"): "Cannot shift offset for partition",
        ("unknown-group", "--all-topics", "--to-latest"): "no committed offsets",
    }
    for arguments, says in cases.items():
        result = run(kafka1, "reset", *arguments, "--execute", code=1)
        assert (result.stdout, result.stderr.count("\n")) == ("", 1), result.output
        assert says in result.stderr


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_reset_and_delete_of_group_with_members_are_refused(kafka1: LocalKafka, names: Names, protocol: str) -> None:
    group = getattr(names, protocol)
    before = describe(kafka1, group)
    arguments = ("--topic", names.orders, "--to-latest", "--execute")
    result = run(kafka1, "reset", group, *arguments, code=1)
    assert result.stdout == ""
    expected = tool(kafka1, "--reset-offsets", "--group", group, *arguments)
    assert result.stderr.removeprefix("Error: ").strip() in expected
    result = run(kafka1, "delete", group, "--yes", code=1)
    assert result.stdout == ""
    assert "NON_EMPTY_GROUP" in result.stderr
    assert describe(kafka1, group) == before


# -- delete, and the page -------------------------------------------------------------------------


def test_delete_asks_for_confirmation_and_continues_after_unknown_group(kafka1: LocalKafka, names: Names) -> None:
    first, second = (f"group-{uuid.uuid4().hex[:8]}" for _ in range(2))
    for group in (first, second):
        move_group(kafka1, group, {(names.paid, 0): 2})
    for answer in ("n\n", ""):
        result = run(kafka1, "delete", first, second, typed=answer, code=1)
        assert len(describe(kafka1, first)) == 1
        assert f"Delete {first}, {second}, with all offsets?" in result.stderr
    result = run(kafka1, "delete", first, "unknown-group", second, typed="y\n", code=1)
    assert result.stdout.splitlines()[-2:] == [f"deleted {first}", f"deleted {second}"]
    assert "GROUP_ID_NOT_FOUND" in result.stderr
    assert not {first, second} & {row["group"] for row in rows(kafka1, "list")}

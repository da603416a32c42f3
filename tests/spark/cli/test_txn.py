"""`pykafka txn` on a real broker: the same rows as Kafka's TransactionsCommand, and transactions are aborted."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from click.testing import Result
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from protocol.admin.transactions import list_transactions
from protocol.cluster.client import Client
from protocol.config import parse_client
from protocol.errors import ProducerFenced
from protocol.group.commits.committed_offsets import CommittedOffset
from protocol.group.member import ConsumerGroupMetadata
from protocol.producer.transactional_producer import TransactionalProducer
from protocol.wire.messages.m00_produce import LAST_BEFORE_TRANSACTION_V2
from spark_kafka_source.local_kafka import LocalKafka
from tests.cli import runs
from tests.cli.runs import invoke_at, refusal
from tests.conftest import TopicFactory
from tests.contract.raw_requests import batch, produce
from tests.contract.transactions import TransactionalProducer as RawProducer
from tests.protocol.producer.producing import numbered, send_numbered
from tests.protocol.transaction.producing import new_id, numbers_in, started
from tests.support.wait_for_brokers import wait_until_decided
from tests.support.wait_until import wait_until

TOOL = "org.apache.kafka.tools.TransactionsCommand"
Row = dict[str, Any]


@pytest.fixture
def client(kafka1: LocalKafka) -> Iterator[Client]:
    with Client(parse_client({"bootstrap.servers": kafka1.bootstrap_servers})) as client:
        yield client


@dataclass(frozen=True)
class Open:
    """Transactional ids `PREFIX-open`, with an open transaction on two partitions of `topic`, and `PREFIX-done`."""

    prefix: str
    topic: str
    producer: TransactionalProducer


@pytest.fixture
def open_(kafka1: LocalKafka, client: Client, topic1: TopicFactory) -> Iterator[Open]:
    prefix, topic = new_id(), topic1(2)
    done = started(client, f"{prefix}-done")
    done.begin_transaction()
    done.send_columns(topic, numbered(0, 1))
    done.commit_transaction()
    wait_until_decided(kafka1, [(topic, number) for number in range(2)])
    producer = started(client, f"{prefix}-open")
    producer.begin_transaction()
    send_numbered(producer, topic, 10, 10, 2)
    producer.send_offsets_to_transaction({(topic, 0): CommittedOffset(1)}, ConsumerGroupMetadata(prefix))
    producer.flush()
    yield Open(prefix, topic, producer)
    producer.close()
    assert list_transactions(client, prefix=prefix, states=["Ongoing"]) == []


def run(kafka: LocalKafka, *arguments: str, **options: Any) -> Result:
    return invoke_at(kafka, "txn", *arguments, **options)


def rows(kafka: LocalKafka, *arguments: str) -> list[Row]:
    return runs.rows(run(kafka, *arguments, "--output", "json"))


def tool_rows(kafka: LocalKafka, *arguments: str) -> list[dict[str, str]]:
    """Return the table that Kafka's tool prints, with our column names."""
    lines = kafka.run_tool(TOOL, "--bootstrap-server", kafka.bootstrap_servers, *arguments).splitlines()
    header, *further = [re.split(r"\s+", line.strip()) for line in lines if line.strip()]
    names = [re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower() for name in header]
    return [dict(zip(names, row, strict=False)) for row in further]


def test_listed_transactions_equal_kafka_transactions(kafka1: LocalKafka, open_: Open) -> None:
    names = {f"{open_.prefix}-open", f"{open_.prefix}-done"}  # other tests have other transactions
    expected = {row["transactional_id"]: row for row in tool_rows(kafka1, "list")}
    ours = {row["transactional_id"]: row for row in rows(kafka1, "list")}
    assert names <= ours.keys() & expected.keys()
    for name in names:
        assert {key: str(value) for key, value in ours[name].items()} == expected[name]

    def listed(*arguments: str) -> list[str]:
        transactions = rows(kafka1, "list", "--prefix", open_.prefix, *arguments)
        return [row["transactional_id"].removeprefix(f"{open_.prefix}-") for row in transactions]

    assert listed() == ["done", "open"]
    assert listed("--state", "Ongoing") == ["open"]
    assert listed("--state", "completecommit", "--state", "Empty") == ["done"]
    assert listed("--running-longer-than", "1ms") == ["open"]
    assert listed("--running-longer-than", "1h") == []


def test_described_transaction_equals_kafka_transactions(kafka1: LocalKafka, open_: Open) -> None:
    name = f"{open_.prefix}-open"
    (ours,) = rows(kafka1, "describe", name)
    (expected,) = tool_rows(kafka1, "describe", "--transactional-id", name)
    same = {"coordinator": "coordinator_id", "start_time_ms": "current_transaction_start_time_ms"}
    same |= {"timeout_ms": "transaction_timeout_ms"}
    same |= {key: key for key in ("transactional_id", "producer_id", "producer_epoch", "transaction_state")}
    assert {key: str(ours[key]) for key in same} == {key: expected[second] for key, second in same.items()}
    assert sorted(ours["partitions"].split(",")) == sorted(expected["topic_partitions"].split(","))
    assert {f"{open_.topic}-0", f"{open_.topic}-1"} < set(ours["partitions"].split(",")), "and of the offsets"
    (done,) = rows(kafka1, "describe", f"{open_.prefix}-done")
    assert done["partitions"] is None


def test_abort_without_execute_changes_nothing(kafka1: LocalKafka, client: Client, open_: Open) -> None:
    name = f"{open_.prefix}-open"
    assert run(kafka1, "abort", name).stderr == "Nothing was changed; --execute aborts.\n"
    assert [transaction.state for transaction in list_transactions(client, prefix=name)] == ["Ongoing"]
    (row,) = rows(kafka1, "abort", name, "--execute")
    assert (row["transaction_state"], row["open"]) == ("Ongoing", True)
    assert row["new_producer_epoch"] > row["producer_epoch"]
    wait_until_decided(kafka1, [(open_.topic, number) for number in range(2)])
    with pytest.raises(ProducerFenced):
        open_.producer.commit_transaction()
    assert [number for numbers in numbers_in(client, open_.topic, 2) for number in numbers] == [0]


def test_unknown_transactional_id_fails_and_prints_other_ids(kafka1: LocalKafka, open_: Open) -> None:
    for command in (["describe"], ["abort"], ["abort", "--execute"]):
        result = run(kafka1, *command, "unknown-id", f"{open_.prefix}-done", code=1)
        assert "Error: Transactional id 'unknown-id' does not exist.\n" in result.stderr
        assert f"{open_.prefix}-done" in result.stdout


@pytest.fixture
def unverified(kafka1: LocalKafka) -> Iterator[None]:
    """Let leaders accept records of transactions unknown to the coordinator, as before Kafka 3.6."""
    name = "transaction.partition.verification.enable"
    admin = AdminClient({"bootstrap.servers": kafka1.bootstrap_servers, "log_level": 0})

    def set_to(value: str) -> None:
        entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.BROKER, "1", incremental_configs=[entry])
        admin.incremental_alter_configs([resource])[resource].result(30)

    def seen() -> str:
        (entries,) = admin.describe_configs([ConfigResource(ResourceType.BROKER, "1")]).values()
        return str(entries.result(30)[name].value)

    set_to("false")
    wait_until(lambda: seen() == "false", seen)
    yield
    set_to("true")


def test_hanging_transaction_is_found_and_aborted(
    kafka1: LocalKafka, client: Client, topic1: TopicFactory, unverified: None
) -> None:
    name, raw = topic1(), RawProducer(client).init()
    produce(client, name, batch(b"before"))
    records = batch(b"hangs", producer=(raw.producer_id, raw.epoch), sequence=0, transactional=True)
    version = LAST_BEFORE_TRANSACTION_V2
    row = produce(client, name, records, version=version, transactional_id=raw.transactional_id)
    assert row["error_code"] == 0
    (listed,) = rows(kafka1, "hanging", name)
    assert (listed["start_offset"], listed["producer_id"], listed["transactional_id"]) == (1, raw.producer_id, None)
    place = ("--topic", name, "--partition", "0", "--start-offset")
    wrong = run(kafka1, "abort", *place, "0", "--execute", code=1)
    assert wrong.stdout == ""
    assert f"Could not find any open transactions starting at offset 0 on partition {name}-0" in wrong.stderr
    run(kafka1, "abort", *place, "1")
    assert rows(kafka1, "hanging", f"{name}:0") == [listed]
    del listed["transactional_id"]
    assert rows(kafka1, "abort", *place, "1", "--execute") == [listed]
    assert rows(kafka1, "hanging", name) == []
    wait_until_decided(kafka1, [(name, 0)])


def test_abort_by_partition_refuses_transaction_with_known_id(kafka1: LocalKafka, open_: Open) -> None:
    (first, *_) = rows(kafka1, "hanging", open_.topic)
    assert first["transactional_id"] == f"{open_.prefix}-open"
    place = ("--topic", first["topic"], "--partition", str(first["partition"]))
    result = run(kafka1, "abort", *place, "--start-offset", str(first["start_offset"]), "--execute", code=1)
    assert f"The transaction belongs to the transactional id '{open_.prefix}-open'" in result.stderr
    open_.producer.commit_transaction()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "either transactional ids, or --topic"),
        (("etl-0", "--topic", "orders"), "either transactional ids, or --topic"),
        (("--topic", "orders", "--partition", "0"), "belong together"),
        (("--topic", "orders", "--partition", "-1"), "x>=0"),
    ],
)
def test_abort_with_wrong_arguments_fails_before_any_request(arguments: tuple[str, ...], says: str) -> None:
    assert says in refusal("txn", "abort", *arguments)

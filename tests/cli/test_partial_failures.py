"""Commands about several resources, such as groups, of which brokers refuse one: the others are printed."""

from __future__ import annotations

import signal
from subprocess import PIPE

import pytest

from protocol.broker_errors import ErrorCode
from protocol.testing.fake_kafka.server import FakeKafka
from protocol.transaction.coordinator import init_producer_id
from protocol.wire.messages.m13_leave_group import LEAVE_GROUP
from protocol.wire.messages.m15_describe_groups import DESCRIBE_GROUPS
from protocol.wire.messages.m42_delete_groups import DELETE_GROUPS
from protocol.wire.messages.m65_describe_transactions import DESCRIBE_TRANSACTIONS
from protocol.wire.schema import Body
from tests.cli.runs import commit, invoke_at, process_at, rows
from tests.protocol.fetch.consuming import client_of
from tests.support.wait_until import wait_until


def test_groups_delete_tells_of_each_group(fake: FakeKafka) -> None:
    for group in ("a", "b", "c"):
        commit(fake, group, {("orders", 0): 1})
    fake.refuse("DeleteGroups", "NON_EMPTY_GROUP")
    fake.refuse("DeleteGroups", "GROUP_AUTHORIZATION_FAILED")
    result = invoke_at(fake, "groups", "delete", "a", "b", "c", "--yes", code=1)
    assert result.stdout == "deleted c\n"
    assert "NON_EMPTY_GROUP" in result.stderr
    assert "GROUP_AUTHORIZATION_FAILED" in result.stderr
    fake.refuse("DeleteGroups", "GROUP_AUTHORIZATION_FAILED")
    fake.refuse("DeleteGroups", "COORDINATOR_LOAD_IN_PROGRESS", 1_000)
    result = invoke_at(fake, "groups", "delete", "a", "b", "--yes", "--timeout", "2s", code=1)
    assert "GROUP_AUTHORIZATION_FAILED" in result.stderr
    assert "COORDINATOR_LOAD_IN_PROGRESS" in result.stderr


def test_groups_delete_prints_deleted_group_before_the_next_is_answered(fake: FakeKafka) -> None:
    deleted = {"results": [{"group_id": "a", "error_code": 0}]}
    fake.handlers[DELETE_GROUPS] = lambda body, version: deleted if body["groups_names"] == ["a"] else None
    with process_at(fake, "groups", "delete", "a", "b", "--yes", stderr=PIPE) as process:
        wait_until(lambda: {"groups_names": ["b"]} in fake.request_bodies(DELETE_GROUPS))
        process.send_signal(signal.SIGINT)
        printed, _ = process.communicate(timeout=30)
    assert (printed, process.returncode) == ("deleted a\n", 1)


def test_remove_members_does_not_print_a_static_member_that_stays(fake: FakeKafka) -> None:
    named = [{"member_id": f"m-{number}", "group_instance_id": f"worker-{number}"} for number in (1, 2)]
    unused = {"client_id": "", "client_host": "", "member_metadata": b"", "member_assignment": b""}
    group = {"group_id": "etl", "group_state": "Stable", "protocol_type": "consumer", "protocol_data": "range"}
    members = [{**member, **unused} for member in named]
    results = [{**member, "error_code": code} for member, code in zip(named, (0, 25), strict=True)]
    fake.handlers[DESCRIBE_GROUPS] = lambda body, version: {"groups": [{**group, "members": members}]}
    fake.handlers[LEAVE_GROUP] = lambda body, version: {"members": results}
    result = invoke_at(fake, "groups", "remove-members", "etl", "--all", "--yes", code=1)
    assert result.stdout == "removed worker-1\n"
    assert "UNKNOWN_MEMBER_ID" in result.stderr


def test_users_delete_prints_the_deleted_user_beside_a_missing_credential(fake: FakeKafka) -> None:
    for name, mechanism in (("alice", "scram-sha-512"), ("alice", "scram-sha-256"), ("bob", "scram-sha-512")):
        invoke_at(fake, "users", "set", name, "--mechanism", mechanism, "--password-from", "env:P", P="geheim")
    result = invoke_at(fake, "users", "delete", "alice", "bob", "--mechanism", "scram-sha-256", "--yes", code=1)
    assert result.stdout == "deleted SCRAM-SHA-256 of alice\n"
    assert "AlterUserScramCredentials of bob" in result.stderr
    deleted = invoke_at(fake, "users", "delete", "alice", "bob", "--yes").stdout
    assert deleted == "deleted SCRAM-SHA-512 of alice\ndeleted SCRAM-SHA-512 of bob\n"


def test_acls_create_shows_created_acls_beside_a_refused_one() -> None:
    with FakeKafka(settings={"authorizer.class.name": "StandardAuthorizer", "super.users": "User:ANONYMOUS"}) as kafka:

        def refuse_second(body: Body) -> Body:
            first, second = body["results"]
            return {**body, "results": [first, {**second, "error_code": ErrorCode.INVALID_REQUEST}]}

        kafka.edit_replies("CreateAcls", refuse_second)
        options = ("--principal", "User:alice", "--operation", "read", "--topic", "a", "--topic", "b")
        result = invoke_at(kafka, "acls", "create", *options, "-o", "json", code=1)
    assert [row["resource"] for row in rows(result)] == ["a"]
    assert "on topic b" in result.stderr
    assert "on topic a" not in result.stderr


def test_topics_trim_shows_trimmed_partitions_beside_a_refused_one() -> None:
    with FakeKafka(2) as kafka:
        kafka.create_topic("orders", 3)
        for partition in range(3):
            kafka.produce("orders", "1", "2", "3", partition=partition)
        led = {partition: kafka.leader("orders", partition) for partition in range(3)}
        kafka.refuse("DeleteRecords", "POLICY_VIOLATION", broker=led[1])
        trim = ("topics", "trim", "orders", "--before-offset", "2", "--execute", "-o", "json")
        result = invoke_at(kafka, *trim, code=1)
        trimmed = [(row["partition"], row["new_log_start_offset"], row["records"]) for row in rows(result)]
        assert trimmed == [(partition, 2, 2) for partition, leader in led.items() if leader != led[1]]
        assert "POLICY_VIOLATION" in result.stderr
        kafka.refuse("DeleteRecords", "POLICY_VIOLATION")
        assert invoke_at(kafka, *trim, code=1).stdout == ""


@pytest.mark.parametrize(
    ("command", "group", "offset"),
    [(("clone", "g", "h"), "h", 2), (("reset", "g", "--all-topics", "--to-offset", "1"), "g", 1)],
)
def test_offsets_that_were_committed_are_shown_beside_a_refused_one(
    command: tuple[str, ...], group: str, offset: int
) -> None:
    settings = {"authorizer.class.name": "StandardAuthorizer", "allow.everyone.if.no.acl.found": "true"}
    with FakeKafka(settings=settings) as kafka:
        for topic in ("orders", "refused"):
            kafka.create_topic(topic)
            kafka.produce(topic, "1", "2", "3")
        commit(kafka, "g", {("orders", 0): 2, ("refused", 0): 2})
        allow = kafka.deny("Read", "Topic", "refused")
        result = invoke_at(kafka, "groups", *command, "--execute", "-o", "json", code=1)
        assert [(row["group"], row["topic"], row["new_offset"]) for row in rows(result)] == [(group, "orders", offset)]
        assert "TOPIC_AUTHORIZATION_FAILED" in result.stderr
        allow()
        done = invoke_at(kafka, "groups", *command, "--execute", "-o", "json")
        assert [row["topic"] for row in rows(done)] == ["orders", "refused"]


@pytest.mark.parametrize("refused", ["InitProducerId", "DescribeTransactions"])
def test_txn_abort_shows_aborted_transactions_beside_a_refused_one(fake: FakeKafka, refused: str) -> None:
    with client_of(fake.bootstrap_servers) as client:
        for name in ("a", "b"):
            init_producer_id(client, name, 5_000, client.deadline())
    fake.refuse(refused, "TRANSACTIONAL_ID_AUTHORIZATION_FAILED")
    result = invoke_at(fake, "txn", "abort", "a", "b", "no-such", "--execute", "-o", "json", code=1)
    assert [(row["transactional_id"], row["new_producer_epoch"]) for row in rows(result)] == [("b", 1)]
    assert "TRANSACTIONAL_ID_AUTHORIZATION_FAILED" in result.stderr
    assert "'no-such' does not exist" in result.stderr


def test_txn_abort_names_aborted_transaction_before_the_next_is_answered(fake: FakeKafka) -> None:
    with client_of(fake.bootstrap_servers) as client:
        for name in ("a", "b"):
            init_producer_id(client, name, 5_000, client.deadline())
    fake.edit_replies("DescribeTransactions", lambda body: None if _names(body) == ["b"] else body)
    with process_at(fake, "txn", "abort", "a", "b", "--execute", stderr=PIPE) as process:
        wait_until(lambda: {"transactional_ids": ["b"]} in fake.request_bodies(DESCRIBE_TRANSACTIONS))
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert (errors.splitlines()[0], process.returncode) == ("fenced a", 1)


def _names(body: Body) -> list[str]:
    return [row["transactional_id"] for row in body["transaction_states"]]

"""A start that cannot read the ledger of an earlier one writes nothing, since the last batch may be decided."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

import protocol
from protocol.admin.acls import AclBinding, AclFilter, AclOperation, PatternType, ResourceType
from protocol.errors import BrokerError, ProducerFenced, UsageError
from protocol.testing.fake_kafka.server import FakeKafka
from spark_kafka_source.sink.exactly_once import batch_commit, ledger_group, takeover
from tests.support.exactly_once_query import Query, paused_at

FIRST, SECOND = "first", "second"
USERS = {"admin": "admin-secret", "writer": "writer-secret"}
MAY_READ_FIRST = AclBinding(ResourceType.TOPIC, FIRST, "User:writer", AclOperation.ALL)
ACLS = [
    MAY_READ_FIRST,
    AclBinding(ResourceType.TOPIC, SECOND, "User:writer", AclOperation.ALL),
    AclBinding(ResourceType.GROUP, "starts", "User:writer", AclOperation.ALL, pattern_type=PatternType.PREFIXED),
    AclBinding(
        ResourceType.TRANSACTIONAL_ID, "starts", "User:writer", AclOperation.ALL, pattern_type=PatternType.PREFIXED
    ),
]


@pytest.fixture(params=["2", "1"], ids=["transaction.version 2", "transaction.version 1"])
def cluster(request: pytest.FixtureRequest) -> Iterator[FakeKafka]:
    settings = {"authorizer.class.name": "StandardAuthorizer", "super.users": "User:admin"}
    with FakeKafka(users=USERS, settings={**settings, "transaction.version": request.param}) as cluster:
        cluster.create_topic(FIRST)
        cluster.create_topic(SECOND)
        yield cluster


@pytest.fixture
def admin(cluster: FakeKafka) -> Iterator[protocol.Admin]:
    with protocol.Admin(cluster.client_properties("admin")) as admin:
        admin.create_acls(ACLS)
        yield admin


def query_of_writer(cluster: FakeKafka) -> Query:
    properties = {f"kafka.{name}": str(value) for name, value in cluster.client_properties("writer").items()}
    return Query(cluster.bootstrap_servers, settings=properties)


@pytest.fixture
def query(cluster: FakeKafka, admin: protocol.Admin) -> Query:
    """The ledger belongs to the first topic, and batch 1 has written to the second one only."""
    query = query_of_writer(cluster)
    query.commit(query.task("A", 0, 0, (FIRST, "0")))
    query.commit(query.task("A", 1, 0, (SECOND, "1")))
    return query


@pytest.fixture(autouse=True)
def _tasks_wait_briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_group, "_VISIBLE_AFTER_MS", 50)
    monkeypatch.setattr(ledger_group, "_POLL_S", 0.01)
    monkeypatch.setattr(takeover, "_JITTER_S", 0.01)


def values(cluster: FakeKafka, topic: str) -> list[bytes | None]:
    return [record.value for record in cluster.records(topic)]


@pytest.mark.parametrize("lost", ["ACL", "topic"])
def test_start_that_cannot_read_the_ledger_writes_nothing(
    cluster: FakeKafka, admin: protocol.Admin, query: Query, lost: str
) -> None:
    if lost == "ACL":
        admin.delete_acls([AclFilter(ResourceType.TOPIC, FIRST)])
    else:
        admin.delete_topics([FIRST])
    for start in ("B", "C"):
        with pytest.raises(UsageError, match=r"was deleted, or the user may not read it.* Read on the topic"):
            query.task(start, 1, 0, (SECOND, "1"))
        query.abort(query.task(start, 1, 1), None)  # would fence the writer of the ledger
    assert values(cluster, SECOND) == [b"1"]
    if lost == "ACL":
        admin.create_acls([MAY_READ_FIRST])
        query.commit(query.task("D", 1, 0, (SECOND, "1")))
        query.commit(query.task("D", 2, 0, (SECOND, "2")))
        assert values(cluster, SECOND) == [b"1", b"2"]


@pytest.mark.parametrize("lost", ["ACL", "group"])
def test_ledger_lost_after_a_start_that_failed_to_write_it_is_noticed(
    cluster: FakeKafka, admin: protocol.Admin, query: Query, lost: str
) -> None:
    """The failed start has called InitProducerId for the ledger: its transactional id no longer shows a commit."""
    admin.delete_acls([AclFilter(ResourceType.TOPIC, FIRST)])
    may_write_first = replace(MAY_READ_FIRST, operation=AclOperation.WRITE)  # and describe
    admin.create_acls([may_write_first])
    with pytest.raises(BrokerError, match="TOPIC_AUTHORIZATION_FAILED"):
        query.task("B", 1, 0, (SECOND, "1"))
    if lost == "ACL":
        admin.delete_acls([AclFilter(ResourceType.TOPIC, FIRST)])
    else:
        admin.create_acls([MAY_READ_FIRST])
        admin.delete_groups([query.transactional_id()])
    with pytest.raises(UsageError, match="was deleted, or the user may not read it"):
        query.task("C", 1, 0, (SECOND, "1"))
    assert values(cluster, SECOND) == [b"1"]


def test_ledger_lost_after_a_driver_was_fenced_is_noticed(
    admin: protocol.Admin, cluster: FakeKafka, query: Query
) -> None:
    written = query.task("A", 2, 0, (SECOND, "2"))

    def decide_in_newer_start() -> None:
        query.commit(query.task("B", 2, 0, (SECOND, "2")))

    with paused_at(batch_commit, "decide", decide_in_newer_start), pytest.raises(ProducerFenced):
        query.commit(written)
    admin.delete_groups([query.transactional_id()])
    with pytest.raises(UsageError, match="was deleted, or the user may not read it"):
        query.task("C", 2, 0, (SECOND, "2"))
    assert values(cluster, SECOND) == [b"1", b"2"]


def test_start_killed_before_it_wrote_a_ledger_is_no_loss(
    cluster: FakeKafka, admin: protocol.Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = query_of_writer(cluster)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ledger_group, "add_offsets", killed)
        with pytest.raises(KeyboardInterrupt):
            query.task("A", 0, 0, (FIRST, "0"))
    query.commit(query.task("B", 0, 0, (FIRST, "0")))
    assert values(cluster, FIRST) == [b"0"]


def test_late_attempt_that_cannot_read_the_ledger_any_more_writes_nothing(
    cluster: FakeKafka, admin: protocol.Admin, query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads the ledger again after InitProducerId."""
    read, reads = ledger_group.read_ledger, 0

    def read_and_revoke(*arguments: object, **named: object) -> object:
        nonlocal reads
        reads += 1
        if reads == 2:
            admin.delete_acls([AclFilter(ResourceType.TOPIC, FIRST)])
        return read(*arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(ledger_group, "read_ledger", read_and_revoke)
    monkeypatch.setattr("spark_kafka_source.sink.exactly_once.takeover.read_ledger", read_and_revoke)
    with pytest.raises(UsageError, match="may not read it"):
        query.task("A", 2, 0, (SECOND, "2"))
    assert values(cluster, SECOND) == [b"1"]

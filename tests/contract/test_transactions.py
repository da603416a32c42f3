"""Transactions: the operations that producers may perform, and the records that readers see."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from protocol.admin.transactions import describe_transactions, list_transactions
from protocol.broker_errors import ErrorCode, error_row
from protocol.cluster.client import Client
from protocol.config import parse_consumer
from protocol.fetch.bounded_reader import BoundedReader
from protocol.fetch.log_offsets import Range
from protocol.kafka_terms import LATEST
from protocol.wire.messages.m09_offset_fetch import OFFSET_FETCH
from tests.contract.members import GroupMember, ask_coordinator, commit, committed, new_group
from tests.contract.raw_requests import batch, fetch, list_offset, produce, values_in, written
from tests.contract.transactions import TransactionalProducer
from tests.support.wait_until import wait_until

V1_AND_V2 = pytest.mark.parametrize("v2", [False, True], ids=["before KIP-890", "since KIP-890"])
BEFORE_KIP_890 = pytest.mark.parametrize("v2", [False], ids=["before KIP-890"])


@pytest.fixture
def v2() -> bool:
    """Return True: transactions are those since KIP-890, unless a test has a mark of the above."""
    return True


@pytest.fixture
def producer(client: Client, v2: bool) -> TransactionalProducer:
    """Return a producer with its id and epoch."""
    return TransactionalProducer(client, v2).init()


def visible_ends(client: Client, name: str) -> tuple[int, int]:
    """Return the end offsets for a reader of committed records and for a reader of all records."""
    committed, every = (
        list_offset(client, name, LATEST, committed=is_committed)["offset"] for is_committed in (True, False)
    )
    return committed, every


def wait_for_markers(client: Client, name: str) -> int:
    """Wait until the markers are written, since the coordinator replies before; return the log end offset."""
    wait_until(lambda: len(set(visible_ends(client, name))) == 1, every_s=0.01)
    return visible_ends(client, name)[1]


def read(client: Client, name: str, isolation_level: str) -> list[bytes]:
    """Return the values that this project's consumer delivers."""
    end = list_offset(client, name, LATEST, committed=isolation_level == "read_committed")["offset"]
    config = parse_consumer({"isolation.level": isolation_level})
    return [
        value
        for _, rows in BoundedReader(client, config, [Range(name, 0, 0, end)])
        for value in rows["value"].to_pylist()
    ]


@V1_AND_V2
class TestReaders:
    def test_open_transaction_holds_back_the_last_stable_offset(
        self, client: Client, producer: TransactionalProducer, name: str
    ) -> None:
        written(client, name, b"before")
        producer.send(name, b"in it")
        written(client, name, b"after")
        assert visible_ends(client, name) == (1, 3)
        row = fetch(client, name, isolation_level=1)
        assert (values_in(row), row["aborted_transactions"]) == ([b"before"], [])
        assert (row["last_stable_offset"], row["high_watermark"]) == (1, 3)
        assert values_in(fetch(client, name)) == [b"before", b"in it", b"after"]
        producer.end(commit=True)
        assert wait_for_markers(client, name) == 4, "three records and the commit marker"
        assert read(client, name, "read_committed") == [b"before", b"in it", b"after"]

    def test_aborted_transaction_is_listed_in_fetch_replies(
        self, client: Client, producer: TransactionalProducer, name: str
    ) -> None:
        before = producer.producer_id
        producer.send(name, b"a", b"b")
        producer.end(commit=False)
        wait_for_markers(client, name)
        producer.send(name, b"c")
        producer.end(commit=True)
        wait_for_markers(client, name)
        row = fetch(client, name, isolation_level=1)
        assert row["aborted_transactions"] == [{"producer_id": before, "first_offset": 0}]
        assert values_in(row) == [b"a", b"b", b"c"], "the reader drops aborted records, not the broker"
        assert fetch(client, name)["aborted_transactions"] is None
        assert fetch(client, name, 3, isolation_level=1)["aborted_transactions"] == [], (
            "the aborted transaction ended before this offset"
        )
        assert read(client, name, "read_committed") == [b"c"]
        assert read(client, name, "read_uncommitted") == [b"a", b"b", b"c"]

    def test_alternating_commits_and_aborts_show_committed_records(
        self, client: Client, producer: TransactionalProducer, name: str
    ) -> None:
        for number in range(6):
            producer.send(name, b"%d" % number)
            producer.end(commit=number % 2 == 0)
        wait_for_markers(client, name)
        assert read(client, name, "read_committed") == [b"0", b"2", b"4"]


class TestPartitions:
    def test_producer_adds_partitions_before_kip_890(self, client: Client, new_topic: Any) -> None:
        name, producer = new_topic(2), TransactionalProducer(client, v2=False).init()
        assert producer.try_send(name, b"a") == ErrorCode.TRANSACTION_ABORTABLE
        assert producer.try_add(name, 0) == {0: 0}
        assert producer.try_send(name, b"a") == 0
        assert producer.try_send(name, b"a", partition=1) == ErrorCode.TRANSACTION_ABORTABLE

    def test_leader_adds_partitions_since_kip_890(self, client: Client, new_topic: Any) -> None:
        name, producer = new_topic(2), TransactionalProducer(client).init()
        for partition in range(2):
            assert producer.try_send(name, b"a", partition=partition) == 0
        producer.end(commit=True)
        assert wait_for_markers(client, name) == 2

    @BEFORE_KIP_890
    def test_partitions_are_added_all_or_none(self, producer: TransactionalProducer, name: str) -> None:
        assert producer.try_add(name, 0, 7) == {
            0: ErrorCode.OPERATION_NOT_ATTEMPTED,
            7: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        }
        assert producer.try_send(name, b"a") == ErrorCode.TRANSACTION_ABORTABLE

    def test_non_transactional_records_of_the_producer_are_refused(
        self, client: Client, producer: TransactionalProducer, name: str
    ) -> None:
        producer.send(name, b"a")
        plain = batch(b"b", producer=(producer.producer_id, producer.epoch), sequence=1)
        assert produce(client, name, plain)["error_code"] == ErrorCode.INVALID_TXN_STATE


@V1_AND_V2
class TestFencing:
    def test_second_producer_fences_the_first(self, client: Client, name: str, v2: bool) -> None:
        old = TransactionalProducer(client, v2).init()
        old.send(name, b"a")
        old.end(commit=True)
        wait_for_markers(client, name)
        new = TransactionalProducer(client, v2, old.transactional_id).init()
        assert (new.producer_id, new.epoch > old.epoch) == (old.producer_id, True)
        assert old.try_end(commit=True) == ErrorCode.PRODUCER_FENCED
        assert old.try_init(producer_id=old.producer_id, producer_epoch=old.epoch) == ErrorCode.PRODUCER_FENCED
        if not v2:
            assert old.try_add(name, 0) == {0: ErrorCode.PRODUCER_FENCED}
            new.add(name)
        new.send(name, b"b")
        assert old.try_send(name, b"c") == ErrorCode.INVALID_PRODUCER_EPOCH
        new.end(commit=True)
        wait_for_markers(client, name)
        assert read(client, name, "read_committed") == [b"a", b"b"]

    def test_new_producer_aborts_the_open_transaction_of_the_first(self, client: Client, name: str, v2: bool) -> None:
        old = TransactionalProducer(client, v2).init()
        old.send(name, b"a")
        new = TransactionalProducer(client, v2, old.transactional_id)
        assert new.try_init() == ErrorCode.CONCURRENT_TRANSACTIONS
        new.init()
        assert old.try_send(name, b"b") == ErrorCode.INVALID_PRODUCER_EPOCH
        assert wait_for_markers(client, name) == 2
        assert read(client, name, "read_committed") == []

    def test_init_with_own_identity_bumps_the_epoch_once(self, producer: TransactionalProducer) -> None:
        before = (producer.producer_id, producer.epoch)
        assert producer.try_init(producer_id=before[0], producer_epoch=before[1]) == 0
        after = (producer.producer_id, producer.epoch)
        assert after == (before[0], before[1] + 1)
        assert producer.try_init(producer_id=before[0], producer_epoch=before[1]) == 0, (
            "a repeated InitProducerId gets the same epoch"
        )
        assert (producer.producer_id, producer.epoch) == after
        assert producer.try_init(producer_id=before[0] + 1_000_000, producer_epoch=0) == ErrorCode.PRODUCER_FENCED

    def test_transaction_over_its_timeout_is_aborted(self, client: Client, name: str, v2: bool) -> None:
        producer = TransactionalProducer(client, v2, timeout_ms=2_000).init()
        producer.send(name, b"a")
        assert wait_for_markers(client, name) == 2
        assert read(client, name, "read_committed") == []
        wait_until(lambda: list_transactions(client, prefix=producer.transactional_id, states=["CompleteAbort"]))
        assert producer.try_end(commit=True) == (ErrorCode.INVALID_TXN_STATE if v2 else ErrorCode.PRODUCER_FENCED)
        assert producer.try_send(name, b"b") == ErrorCode.INVALID_PRODUCER_EPOCH
        # Since KIP-890 a producer gets this reply if the reply to its own EndTxn was lost.
        assert producer.try_end(commit=False) == (0 if v2 else ErrorCode.PRODUCER_FENCED)
        assert producer.epoch == int(v2)


class TestEndTransaction:
    def test_end_bumps_the_epoch_since_kip_890(self, producer: TransactionalProducer, name: str) -> None:
        for nth in range(3):
            assert producer.epoch == nth
            producer.send(name, b"a")
            producer.end(commit=True)

    @BEFORE_KIP_890
    def test_end_keeps_the_epoch_before_kip_890(self, producer: TransactionalProducer, name: str) -> None:
        producer.send(name, b"a")
        producer.end(commit=True)
        assert producer.epoch == 0

    @V1_AND_V2
    @pytest.mark.parametrize("commit", [True, False])
    def test_end_repeated_after_a_lost_reply_succeeds_once(
        self, client: Client, producer: TransactionalProducer, name: str, v2: bool, commit: bool
    ) -> None:
        producer.send(name, b"a")
        epoch = producer.epoch
        producer.end(commit=commit)
        after, producer.epoch = producer.epoch, epoch
        wait_for_markers(client, name)
        producer.end(commit=commit)
        assert producer.epoch == after
        producer.epoch = epoch
        assert producer.try_end(commit=not commit) == ErrorCode.INVALID_TXN_STATE
        assert wait_for_markers(client, name) == 2
        if v2:
            producer.epoch = after
            producer.send(name, b"b")
            producer.epoch = epoch
            assert producer.try_end(commit=commit) == ErrorCode.PRODUCER_FENCED, (
                "the repeated end would end the next transaction"
            )
            producer.epoch = after
            producer.end(commit=commit)

    @V1_AND_V2
    def test_commit_without_records_is_refused_and_abort_allowed_since_kip_890(
        self, producer: TransactionalProducer, v2: bool
    ) -> None:
        assert producer.try_end(commit=True) == ErrorCode.INVALID_TXN_STATE
        assert producer.try_end(commit=False) == (0 if v2 else ErrorCode.INVALID_TXN_STATE)

    def test_end_and_add_by_unknown_producer_are_refused(self, client: Client) -> None:
        stranger = TransactionalProducer(client, producer_id=12_345, epoch=0)
        assert stranger.try_end(commit=True) == ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert stranger.try_add("not-there", 0) == {0: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}

    @pytest.mark.parametrize(
        ("fields", "code"),
        [
            ({"transaction_timeout_ms": 2_000_000_000}, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
            ({"transaction_timeout_ms": 0}, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        ],
    )
    def test_init_with_invalid_fields_is_refused(
        self, client: Client, fields: dict[str, object], code: ErrorCode
    ) -> None:
        assert TransactionalProducer(client).try_init(**fields) == code


@V1_AND_V2
class TestTransactionAdmin:
    def test_transactions_are_listed_and_described(self, client: Client, new_topic: Any, v2: bool) -> None:
        name, producer = new_topic(2), TransactionalProducer(client, v2).init()
        listed = partial(list_transactions, client, prefix=producer.transactional_id)
        assert [transaction.state for transaction in listed()] == ["Empty"]
        producer.send(name, b"a", partition=1)
        assert [transaction.producer_id for transaction in listed(states=["Ongoing"])] == [producer.producer_id]
        assert listed(states=["Empty", "CompleteCommit"]) == []
        unknown = f"{producer.transactional_id}-2"
        (remembered,) = describe_transactions(client, [producer.transactional_id, unknown]).values()
        identity = (remembered.identity.producer_id, remembered.identity.producer_epoch)
        assert (*identity, remembered.state) == (producer.producer_id, producer.epoch, "Ongoing")
        assert (remembered.timeout_ms, remembered.partitions) == (60_000, {(name, 1)})
        assert remembered.start_ms is not None
        producer.end(commit=True)
        wait_for_markers(client, name)
        # Its partitions are removed shortly before the transaction is logged as complete.
        wait_until(lambda: [transaction.state for transaction in listed()] == ["CompleteCommit"])
        assert not describe_transactions(client, [producer.transactional_id])[producer.transactional_id].partitions


@V1_AND_V2
class TestOffsets:
    @pytest.mark.parametrize("commits", [True, False])
    def test_offsets_become_visible_when_the_transaction_commits(
        self, client: Client, new_topic: Any, v2: bool, commits: bool
    ) -> None:
        name, group, producer = new_topic(), new_group(), TransactionalProducer(client, v2).init()
        assert commit(client, group, name, 3) == 0
        producer.commit_offset(group, name, 8)
        assert committed(client, group, name) == (0, 3)
        assert committed(client, group, name, stable=True) == (ErrorCode.UNSTABLE_OFFSET_COMMIT, -1)
        every = {"groups": [{"group_id": group, "topics": None}], "require_stable": True}
        (row,) = ask_coordinator(client, group, OFFSET_FETCH, every)["groups"]
        assert (row["error_code"], row["topics"][0]["partitions"][0]["error_code"]) == (
            ErrorCode.NONE,
            ErrorCode.UNSTABLE_OFFSET_COMMIT,
        )
        producer.end(commit=commits)
        wait_until(lambda: not committed(client, group, name, stable=True)[0], every_s=0.01)
        assert committed(client, group, name) == (0, 8 if commits else 3)

    def test_offset_commit_needs_the_current_generation_and_member(
        self, member: GroupMember, producer: TransactionalProducer, name: str, v2: bool
    ) -> None:
        if not v2:
            assert producer.add_offsets(member.group) == 0
        me = {"member_id": member.member_id, "generation_id_or_member_epoch": member.generation}
        refused = {
            "an old generation": ({**me, "generation_id_or_member_epoch": member.generation - 1}, "ILLEGAL_GENERATION"),
            "another member": ({**me, "member_id": "nobody"}, "UNKNOWN_MEMBER_ID"),
            "another instance": ({**me, "group_instance_id": "b"}, "UNKNOWN_MEMBER_ID"),
        }
        answers = {
            who: error_row(producer.try_commit_offset(member.group, name, 9, **as_whom)).name
            for who, (as_whom, _) in refused.items()
        }
        assert answers == {who: code for who, (_, code) in refused.items()}
        assert producer.try_commit_offset(member.group, name, 5, **me) == 0
        assert producer.try_commit_offset(member.group, name, 5) == 0, "an offset without member id is not checked"

    def test_fenced_producer_cannot_commit_offsets(self, client: Client, new_topic: Any, v2: bool) -> None:
        name, group, old = new_topic(), new_group(), TransactionalProducer(client, v2).init()
        new = TransactionalProducer(client, v2, old.transactional_id).init()
        if not v2:
            assert new.add_offsets(group) == 0
            assert old.add_offsets(group) == ErrorCode.PRODUCER_FENCED
        assert new.try_commit_offset(group, name, 3) == 0
        assert old.try_commit_offset(group, name, 5) == ErrorCode.INVALID_PRODUCER_EPOCH

    def test_offsets_of_a_group_not_added_are_refused(self, client: Client, new_topic: Any, v2: bool) -> None:
        name, group, producer = new_topic(), new_group(), TransactionalProducer(client, v2).init()
        assert producer.try_commit_offset(group, name, 3) == (0 if v2 else ErrorCode.TRANSACTION_ABORTABLE)

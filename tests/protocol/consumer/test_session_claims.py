"""Claims of sessions: their topics, start offsets, records, commits, and handlers that block."""

from __future__ import annotations

import re
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import pytest

from protocol import Admin, Client, ConsumerGroup
from protocol.consumer.session import ConsumerGroupClaim, ConsumerGroupSession
from protocol.errors import CommitFailed, UsageError
from protocol.processing.processor import Topics
from protocol.testing import FakeKafka
from protocol.testing.fake_kafka.faults import ALWAYS
from protocol.wire.messages.m08_offset_commit import OFFSET_COMMIT
from protocol.wire.messages.m09_offset_fetch import OFFSET_FETCH
from tests.protocol.consumer.conftest import COOPERATIVE, KIP_848
from tests.protocol.consumer.members import IdleHandler, Member, ReadingHandler, group_of
from tests.support.background import background
from tests.support.internals import membership_of
from tests.support.small_cluster import END, PARTITIONS, SmallCluster
from tests.support.wait_until import wait_until

ALL = sorted((number, offset) for number in range(PARTITIONS) for offset in range(END))
KEYS = [("orders", number) for number in range(PARTITIONS)]


def group_at(fake: FakeKafka, protocol: dict[str, object], **properties: object) -> ConsumerGroup:
    return group_of({"bootstrap.servers": fake.bootstrap_servers}, protocol, **properties)


class UntilRead(IdleHandler):
    """Reads each claim; `stop` is set after `count` records."""

    def __init__(self, count: int) -> None:
        self.setups: list[dict[str, list[int]]] = []
        self.topics: set[str] = set()
        self.stop = threading.Event()
        self._missing = count

    def setup(self, session: ConsumerGroupSession) -> None:
        self.setups.append(session.claims)

    def consume_claim(self, session: ConsumerGroupSession, claim: ConsumerGroupClaim) -> None:
        for message in claim.messages():
            self.topics.add(claim.topic)
            session.mark_message(message)
            self._missing -= 1
            if self._missing == 0:
                self.stop.set()


@pytest.mark.parametrize(
    ("first", "second"),
    [(["orders"], ["returns"]), (re.compile("ord.*"), re.compile("ret.*")), (re.compile("ord.*"), ["returns"])],
    ids=["names", "patterns", "pattern and name"],
)
def test_session_of_other_topics_has_no_claims_of_the_former(
    fake: SmallCluster, protocol: dict[str, object], first: Topics, second: Topics
) -> None:
    with group_at(fake, protocol) as members:
        orders = UntilRead(PARTITIONS * END)
        members.consume(first, orders, orders.stop)
        fake.grow(5)  # records that the second handler must not get
        returns = UntilRead(PARTITIONS * (END + 5))
        while not returns.stop.is_set():
            members.consume(second, returns, returns.stop)
    assert (orders.topics, returns.topics) == ({"orders"}, {"returns"})
    assert all(claims.keys() == {"returns"} for claims in returns.setups)
    assert fake.committed_offsets("etl").items() >= dict.fromkeys(KEYS, END).items()


def test_standby_begins_its_session_when_it_gets_partitions(
    fake: SmallCluster, fake_client: Client, protocol: dict[str, object]
) -> None:
    members = [Member(fake_client, "etl", "orders", **protocol) for _ in range(PARTITIONS + 1)]

    def handled() -> list[tuple[int, int]]:
        return sorted(message for member in members for message in member.handled)

    try:
        wait_until(lambda: sorted(member.numbers for member in members) == [[], [0], [1]])
        wait_until(lambda: handled() == ALL, lambda: str(handled()))
        next(member for member in members if member.numbers).close()
        fake.grow(5)
        more = [(number, END + offset) for number in range(PARTITIONS) for offset in range(5)]
        wait_until(lambda: handled() == sorted(ALL + more), lambda: str(handled()))
        assert all(session.claims for member in members for session in member.setups), (
            "no session begins without claims"
        )
    finally:
        for member in members:
            member.close()


def test_claim_starts_at_the_offset_that_it_seeks(fake: SmallCluster, protocol: dict[str, object]) -> None:
    starts, read = {0: 3, 1: 8}, list[tuple[int, int]]()

    class Seeks(UntilRead):
        def consume_claim(self, session: ConsumerGroupSession, claim: ConsumerGroupClaim) -> None:
            claim.seek(starts[claim.partition])
            assert claim.initial_offset == starts[claim.partition]
            for message in claim.messages():
                session.mark_message(message)
                read.append((claim.partition, message.offset))
                if len(read) == sum(END - start for start in starts.values()):
                    with pytest.raises(UsageError, match="seek before the first records are requested"):
                        claim.seek(0)
                    self.stop.set()

    handler = Seeks(-1)
    with Admin({"bootstrap.servers": fake.bootstrap_servers}) as admin:
        admin.alter_consumer_group_offsets("etl", {("orders", 0): 7})
    with group_at(fake, protocol) as members:
        members.consume(["orders"], handler, handler.stop)
    assert sorted(read) == [(number, offset) for number, start in starts.items() for offset in range(start, END)]
    assert fake.committed_offsets("etl") == dict.fromkeys(KEYS, END)


def test_iteration_over_messages_continues_after_a_break(fake: SmallCluster, protocol: dict[str, object]) -> None:
    read: list[tuple[int, int]] = []

    class InParts(UntilRead):
        def consume_claim(self, session: ConsumerGroupSession, claim: ConsumerGroupClaim) -> None:
            for records in (3, 1):
                for _, message in zip(range(records), claim.messages(), strict=False):
                    read.append((claim.partition, message.offset))
                    session.mark_message(message)
            batch = claim.poll(20_000)
            assert batch is not None
            read.extend((claim.partition, offset) for offset in batch["offset"].to_pylist())
            session.mark_offset(claim.topic, claim.partition, batch["offset"][-1].as_py() + 1)
            if len(read) >= PARTITIONS * END:
                self.stop.set()
            session.ended.wait(20)

    handler = InParts(-1)
    with group_at(fake, protocol) as members:
        members.consume(["orders"], handler, handler.stop)
    assert sorted(read) == ALL
    assert fake.committed_offsets("etl") == dict.fromkeys(KEYS, END)


def test_member_whose_handlers_block_leaves_despite_automatic_commits(
    fake: SmallCluster, protocol: dict[str, object]
) -> None:
    class Blocks(IdleHandler):
        def consume_claim(self, session: ConsumerGroupSession, claim: ConsumerGroupClaim) -> None:
            wait_until(lambda: membership_of(session).assignment_lost)

    settings = {"max.poll.interval.ms": 300, "auto.commit.interval.ms": 20}
    with group_at(fake, protocol, **settings) as members:
        assert "max.poll.interval.ms" in str(members.consume(["orders"], Blocks()))


@pytest.mark.parametrize("committed", [True, False], ids=["committed before", "in flight"])
@pytest.mark.parametrize("protocol", [COOPERATIVE, KIP_848], ids=["cooperative", "kip848"])
def test_commit_fails_for_a_claim_revoked_meanwhile_only_if_its_offset_is_not_committed(
    fake: SmallCluster, protocol: dict[str, object], committed: bool
) -> None:
    started, go_on = threading.Barrier(PARTITIONS + 1), threading.Event()

    class Starting(ReadingHandler):
        def consume_claim(self, session: ConsumerGroupSession, claim: ConsumerGroupClaim) -> None:
            if not go_on.is_set():
                started.wait(20)
            super().consume_claim(session, claim)

    handler, read = Starting(), UntilRead(-1)
    group, two = group_at(fake, protocol, **{"enable.auto.commit": False}), group_at(fake, protocol)
    with background(lambda: group.consume(["orders"], handler)), group, ThreadPoolExecutor(1) as threads:
        started.wait(20)
        session = handler.sessions[0]
        session.mark_offset("orders", 1, 1)
        if committed:
            session.commit()
        session.mark_offset("orders", 0, 1)
        before = len(fake.request_bodies(OFFSET_COMMIT))
        fake.before[OFFSET_COMMIT] = lambda body: go_on.wait(20)
        committing = threads.submit(session.commit)
        wait_until(lambda: len(fake.request_bodies(OFFSET_COMMIT)) > before)
        with background(lambda: two.consume(["orders"], read)), two:
            wait_until(lambda: read.setups)
            assert session.claims == {"orders": [0]}
            go_on.set()
            with nullcontext() if committed else pytest.raises(CommitFailed, match="orders-1 is no longer assigned"):
                committing.result(20)


def test_next_session_starts_where_the_last_one_did_if_no_offset_was_marked(
    fake: SmallCluster, protocol: dict[str, object]
) -> None:
    """By `latest`, records written since would be skipped."""

    class Fails(ReadingHandler):
        def consume_claim(self, session: ConsumerGroupSession, claim: ConsumerGroupClaim) -> None:
            if claim.partition == 0:
                fake.grow(5)
            assert claim.poll(20_000) is not None
            raise ZeroDivisionError

    failing, handler = Fails(), UntilRead(PARTITIONS * 5)
    with group_at(fake, protocol, **{"auto.offset.reset": "latest"}) as members:
        with pytest.raises(ZeroDivisionError):
            members.consume(["orders"], failing)
        assert failing.cleanups == 1
        assert re.match("consume_claim of orders-[01] has failed", str(failing.sessions[0].end_reason))
        members.consume(["orders"], handler, handler.stop)
    with pytest.raises(UsageError, match="is closed"):
        members.consume(["orders"], handler)
    assert fake.committed_offsets("etl") == dict.fromkeys(KEYS, END + 5)


@pytest.mark.parametrize(
    ("sought", "topics"),
    [(None, ["orders"]), (None, ["orders", "returns"]), (END + 4, ["orders"])],
    ids=["", "after a rebalance", "but by a start offset set in setup"],
)
def test_next_session_skips_no_records_while_a_commit_is_retried(
    fake: SmallCluster, protocol: dict[str, object], sought: int | None, topics: list[str]
) -> None:
    """The group has no offset, and `latest` would skip the records written since."""
    starts: list[int] = []

    class Continues(UntilRead):
        def setup(self, session: ConsumerGroupSession) -> None:
            if starts and sought:
                for number in range(PARTITIONS):
                    session.reset_offset("orders", number, sought)

        def consume_claim(self, session: ConsumerGroupSession, claim: ConsumerGroupClaim) -> None:
            if claim.topic == "orders":
                starts.append(claim.initial_offset)
                super().consume_claim(session, claim)
            session.ended.wait(20)

    handler = Continues(PARTITIONS * 2)
    properties = {"auto.offset.reset": "latest", "request.timeout.ms": 600, "auto.commit.interval.ms": 50}
    fake.refuse(OFFSET_COMMIT, "COORDINATOR_LOAD_IN_PROGRESS", ALWAYS)
    members = group_at(fake, protocol, **properties)
    with background(lambda: members.consume(["orders"], handler, handler.stop)):
        wait_until(lambda: len(starts) == PARTITIONS)
        fake.grow(2)
    fake.grow(5)
    again = Continues(PARTITIONS * (5 if sought is None else END + 7 - sought))
    with background(lambda: members.consume(topics, again)), members:
        wait_until(lambda: len(starts) == 2 * PARTITIONS)
        fake.clear_faults()
        wait_until_committed(fake, END + 7)
        assert again.stop.wait(20)
    assert starts == [END] * PARTITIONS + [sought or END + 2] * PARTITIONS


def wait_until_committed(fake: FakeKafka, end: int) -> None:
    """Wait until the group's offsets of orders are at this end. A retry of a commit may take 5 s."""
    wait_until(lambda: fake.committed_offsets("etl").items() >= dict.fromkeys(KEYS, end).items())


@pytest.mark.parametrize("refused", [True, False], ids=["refused for now", "request lost"])
def test_next_session_repeats_records_to_which_the_last_one_has_gone_back(
    fake: SmallCluster, protocol: dict[str, object], refused: bool
) -> None:
    """The commit of the lower offset may succeed after the next session has fetched the higher one."""

    class GoesBack(IdleHandler):
        def consume_claim(self, session: ConsumerGroupSession, claim: ConsumerGroupClaim) -> None:
            session.reset_offset(claim.topic, claim.partition, 3)

    with Admin({"bootstrap.servers": fake.bootstrap_servers}) as admin:
        admin.alter_consumer_group_offsets("etl", dict.fromkeys(KEYS, 8))
    handler = UntilRead(PARTITIONS * (END - 3))
    members = group_at(fake, protocol, **{"request.timeout.ms": 600, "auto.commit.interval.ms": 50})
    if refused:
        fake.refuse(OFFSET_COMMIT, "COORDINATOR_LOAD_IN_PROGRESS", ALWAYS)
    else:
        fake.lose_requests(OFFSET_COMMIT, ALWAYS)
    members.consume(["orders"], GoesBack())
    fake.clear_faults()
    with background(lambda: members.consume(["orders"], handler)), members:
        assert handler.stop.wait(20)
        wait_until_committed(fake, END)


def test_next_session_continues_behind_marks_that_are_not_committed_yet(
    fake: SmallCluster, protocol: dict[str, object]
) -> None:
    """Else the group's offset would go back, from the retried commit to the first marks of this session."""
    starts: list[int] = []

    class Marks(IdleHandler):
        def consume_claim(self, session: ConsumerGroupSession, claim: ConsumerGroupClaim) -> None:
            starts.append(claim.initial_offset)
            session.mark_offset(claim.topic, claim.partition, 3)

    with group_at(fake, protocol, **{"request.timeout.ms": 600, "auto.commit.interval.ms": 50}) as members:
        fake.lose_requests(OFFSET_COMMIT, ALWAYS)
        for _ in range(2):
            assert "has returned" in str(members.consume(["orders"], Marks()))
        fake.clear_faults()
    assert starts == [0] * PARTITIONS + [3] * PARTITIONS


@pytest.mark.parametrize("protocol", [COOPERATIVE, KIP_848], ids=["cooperative", "kip848"])
def test_claim_that_comes_back_has_no_marks_of_its_former_visit(
    fake: SmallCluster, protocol: dict[str, object]
) -> None:
    visits: list[int] = []
    starts = threading.Event()

    class Visits(ReadingHandler):
        def consume_claim(self, session: ConsumerGroupSession, claim: ConsumerGroupClaim) -> None:
            visits.append(claim.partition)
            if len(visits) <= PARTITIONS:
                session.mark_offset(claim.topic, claim.partition, 3)
                session.commit()
            session.ended.wait(0.01)
            while claim.poll(20) is not None or not claim.revoked:
                pass

    handler, read = Visits(), UntilRead(END - 3)
    group, two = group_at(fake, protocol, **{"enable.auto.commit": False}), group_at(fake, protocol)
    with background(lambda: group.consume(["orders"], handler)), group:
        wait_until(lambda: len(fake.committed_offsets("etl")) == PARTITIONS)
        two.consume(["orders"], read, read.stop)
        fake.before[OFFSET_FETCH] = lambda body: starts.wait(20)
        two.close()
        (session,) = handler.sessions
        wait_until(lambda: session.claims == {"orders": [0, 1]})
        moved = read.setups[0]["orders"][0]
        with pytest.raises(UsageError, match=f"orders-{moved} has not started"):
            session.mark_offset("orders", moved, 5)
        starts.set()
        wait_until(lambda: len(visits) == PARTITIONS + 1)
        fake.refuse(OFFSET_COMMIT, "OFFSET_METADATA_TOO_LARGE", times=ALWAYS)
        session.reset_offset("orders", moved, 3)
        with pytest.raises(CommitFailed):
            session.commit()

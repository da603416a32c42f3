"""A query as a group member, without Spark: triggers during rebalances, topic changes and failed commits."""

from __future__ import annotations

import os
import signal
import time
import uuid
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import pytest

from protocol import CommittedOffset
from protocol.errors import DataLoss
from protocol.group.membership.assignment import EndReason
from protocol.kafka_terms import LATEST as LATEST_TIME
from protocol.testing.fake_kafka.offsets import Committed
from protocol.wire.messages.m02_list_offsets import LIST_OFFSETS
from spark_kafka_source.local_kafka import LocalKafka
from tests.conftest import NEEDS_KIP_848, TopicFactory
from tests.driver.changing_logs import next_end, ranges
from tests.driver.members import (
    EAGER_OPTIONS,
    Cluster,
    member_of,
    reader_of,
    second_member,
    wait_for_rebalance,
)
from tests.protocol.consumer.conftest import COOPERATIVE, EAGER, KIP_848
from tests.protocol.fetch.consuming import client_of, records
from tests.support.member_queries import fill
from tests.support.small_cluster import SmallCluster
from tests.support.wait_until import wait_until


@pytest.mark.parametrize(
    "properties",
    [EAGER, COOPERATIVE, pytest.param(KIP_848, marks=NEEDS_KIP_848)],
    ids=["eager", "cooperative", "kip848"],
)
def test_available_now_waits_for_assignment(
    kafka1: LocalKafka, topic1: TopicFactory, properties: dict[str, str]
) -> None:
    """Another member owns all partitions and revokes some of them slowly."""
    name, group = topic1(2), f"group-{uuid.uuid4().hex[:8]}"
    fill(kafka1, name, 2, 10)
    options = {f"kafka.{key}": str(value) for key, value in properties.items()}
    reader = reader_of(kafka1.bootstrap_servers, name, group, **options)
    with (
        client_of(kafka1) as client,
        member_of(client, name, group, properties) as membership,
        ThreadPoolExecutor() as pool,
    ):
        reader.prepareForTriggerAvailableNow()
        planned = pool.submit(reader.latestOffset, reader.initialOffset(), reader.getDefaultReadLimit())
        while not planned.done():
            if membership.rebalance_pending is not None:
                wait([planned], 0.3)
                membership.poll_rebalance(client.deadline(100))
            wait([planned], 0.05)
        (end,) = planned.result()[name].values()
        assert end == 10
        reader.stop()


# -- starting offset of an assigned partition ---------------------------------------------------------


@pytest.mark.parametrize("start", [{"kafka.auto.offset.reset": None, "startingOffsets": "earliest"}, {}])
def test_out_of_range_group_offset_error_names_remedial_options(start: dict[str, Any]) -> None:
    """The option kafka.auto.offset.reset is refused if the query does not start from its group's offsets."""
    with Cluster(20) as cluster:
        cluster.offsets.committed["g"] = {("a", 0): Committed(30, -1, "")}
        reader = reader_of(cluster.bootstrap_servers, "a", "g", **{"kafka.auto.offset.reset": "none", **start})
        with pytest.raises(DataLoss, match="group g: its offset 30 of a-0 is out of range") as raised:
            next_end(reader, reader.initialOffset())
        assert "failOnDataLoss=false" in str(raised.value)
        assert ("kafka.auto.offset.reset" in str(raised.value)) == (not start)
        reader.stop()


# -- a paused driver ----------------------------------------------------------------------------------


def test_driver_paused_before_list_offsets_skips_offsets_read_by_other_members() -> None:
    """The driver resumes without its assignment; other members have read the records that arrived meanwhile."""
    with SmallCluster() as cluster:
        reader = reader_of(cluster.bootstrap_servers, "orders", "g")
        begin = next_end(reader, reader.initialOffset())
        membership = reader.query.membership.membership

        def stand_still(body: Any) -> None:
            del cluster.before[LIST_OFFSETS]
            with membership.changed:
                membership.machine._lose_assignment(EndReason("suspended"))
            cluster.grow(10)
            cluster.offsets.committed["g"].update({("orders", number): Committed(20, -1, "") for number in (0, 1)})
            cluster.grow(5)

        next_end(reader, begin)
        wait_until(lambda: set(cluster.committed_offsets("g").values()) == {10})
        cluster.before[LIST_OFFSETS] = stand_still
        end = next_end(reader, begin)
        assert ranges(reader, begin, end) == [(0, 20, 25), (1, 20, 25)]
        reader.stop()


def test_rebalance_during_list_offsets_is_handled_by_next_trigger() -> None:
    """The member owns its partitions until it rejoins; waiting for the group first would plan an empty batch."""
    with SmallCluster() as cluster, client_of(cluster.bootstrap_servers) as client, ThreadPoolExecutor() as pool:
        reader = reader_of(cluster.bootstrap_servers, "orders", "g", maxOffsetsPerTrigger="8", **EAGER_OPTIONS)
        begin = next_end(reader, reader.initialOffset())
        membership = second_member(client)
        joining = []

        def join(body: Any) -> None:
            del cluster.before[LIST_OFFSETS]
            joining.append(pool.submit(membership.poll_rebalance, client.deadline(20_000)))
            wait_for_rebalance(reader)

        cluster.before[LIST_OFFSETS] = join
        end = next_end(reader, begin)
        assert ranges(reader, begin, end) == [(0, 4, 8), (1, 4, 8)]
        reader.stop()
        joining[0].result()
        membership.close()


# -- truncated logs -----------------------------------------------------------------------------------

FROM_EARLIEST = {"failOnDataLoss": "false", "startingOffsets": "earliest", "kafka.auto.offset.reset": None}


def asks_for_end_of_trigger(requests: list[Any]) -> bool:
    """Return True for the second request for latest offsets; the first one checks the group's offsets."""
    times = [body["topics"][0]["partitions"][0]["timestamp"] for body in requests]
    return times[-1] == LATEST_TIME and times.count(LATEST_TIME) == 2


@pytest.mark.parametrize("end", [12, 18])
def test_revocation_after_truncation_commits_end_of_completed_batch(end: int) -> None:
    """The log is truncated before the group's offset, after the trigger has fetched that, and grows to `end`."""
    with SmallCluster() as cluster, client_of(cluster.bootstrap_servers) as client, ThreadPoolExecutor() as pool:
        cluster.grow(10)
        cluster.offsets.committed["g"] = {("orders", number): Committed(20, 0, "") for number in (0, 1)}
        reader = reader_of(cluster.bootstrap_servers, "orders", "g", **FROM_EARLIEST, **EAGER_OPTIONS)
        requests: list[Any] = []

        def truncate(body: Any) -> None:
            requests.append(body)
            if not asks_for_end_of_trigger(requests):
                return
            del cluster.before[LIST_OFFSETS]
            for number in (0, 1):
                cluster.log("orders", number).truncate(10)
                cluster.set_leader_epoch("orders", number, 1)
                cluster.write("orders", number, records(10, end - 10, epoch=1))

        cluster.before[LIST_OFFSETS] = truncate
        after = next_end(reader, reader.initialOffset())
        assert ranges(reader, reader.initialOffset(), after) == [(0, 10, end), (1, 10, end)]
        membership = second_member(client)
        joining = pool.submit(membership.poll_rebalance, client.deadline(20_000))
        wait_for_rebalance(reader)
        next_end(reader, after)
        joining.result()
        offsets = {(committed.offset, committed.leader_epoch) for committed in cluster.offsets.committed["g"].values()}
        assert offsets == {(end, 1)}
        membership.close()
        reader.stop()


# -- failed commits -----------------------------------------------------------------------------------


def test_commit_does_not_wait_for_deleted_topic() -> None:
    """The topic is deleted between the last Metadata request and the commit."""
    with Cluster(20) as cluster:
        cluster.create("b", 3)
        options = {"kafka.group.protocol": "none", "kafka.auto.offset.reset": None, "startingOffsets": "earliest"}
        reader = reader_of(cluster.bootstrap_servers, "a,b", "g", **options)
        next_end(reader, reader.initialOffset())
        commits = reader.query.commits
        manager = commits.manager
        assert manager is not None
        cluster.delete_topic("b")
        since_s = time.monotonic()
        for offset in (5, 6, 7):
            manager.stage({("a", 0): CommittedOffset(offset), ("b", 0): CommittedOffset(3)})
            commits.await_last_commit("the next run commits it")
            assert cluster.committed_offsets("g") == {("a", 0): offset}
        assert time.monotonic() - since_s < 24, "less than ten seconds for each commit"
        assert manager.healthy
        reader.stop()


def test_stopped_query_leaves_after_the_retry_of_its_last_commit() -> None:
    """Otherwise the next owner of the partition reads the last batch again."""
    with Cluster(20) as cluster:
        reader = reader_of(cluster.bootstrap_servers, "a", "g", **EAGER_OPTIONS)
        end = next_end(reader, reader.initialOffset())
        cluster.refuse("OffsetCommit", "COORDINATOR_LOAD_IN_PROGRESS")
        reader.commit(end)
        wait_until(lambda: len(cluster.request_bodies("OffsetCommit")) > 0)
        reader.stop()
        assert cluster.committed_offsets("g") == {("a", 0): 20}


def test_query_ended_by_sigterm_leaves_after_the_retry_of_its_last_commit() -> None:
    """As Spark ends most queries."""
    with Cluster(20) as cluster:
        cluster.refuse("OffsetCommit", "COORDINATOR_LOAD_IN_PROGRESS", times=1_000)
        child = os.fork()
        if not child:
            try:
                signal.alarm(30)
                reader = reader_of(cluster.bootstrap_servers, "a", "g", **EAGER_OPTIONS)
                reader.commit(next_end(reader, reader.initialOffset()))
                signal.pause()
            finally:
                os._exit(1)
        wait_until(lambda: "'committed_offset': 20" in str(cluster.request_bodies("OffsetCommit")))
        os.kill(child, signal.SIGTERM)
        cluster.clear_faults()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
        assert cluster.committed_offsets("g") == {("a", 0): 20}
        assert len(cluster.request_bodies("LeaveGroup")) == 1

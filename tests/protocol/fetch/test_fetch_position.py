"""One partition's position and fetch size, and their changes by each kind of reply; no broker."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.broker_errors import ErrorCode, broker_error
from protocol.config import ConsumerConfig
from protocol.errors import BrokerError, LogTruncated, ProtocolError, TransportError
from protocol.fetch.fetch_failures import end_of_common_log
from protocol.fetch.fetch_position import UNBOUNDED, CompletedFetch, FetchPosition, RangePosition
from protocol.fetch.log_offsets import Range
from protocol.position import Position
from tests.protocol.fetch.consuming import records, reply_row

KIB = 1024


def partition_at(offset: int = 0, until: int = UNBOUNDED, *, last_epoch: int = -1, **config: Any) -> FetchPosition:
    return FetchPosition("orders", 3, Position(offset, last_epoch), ConsumerConfig(**config), until=Position(until))


def received(partition: FetchPosition, row: dict[str, Any]) -> CompletedFetch:
    """Return the records of a reply, which must have some."""
    fetched = partition.handle_response(row, "broker")
    assert fetched is not None
    return fetched


def test_position_moves_past_received_batches_and_gaps() -> None:
    partition = partition_at(5)
    fetched = received(partition, reply_row(data=records(0, 10) + records(10, 1, last_offset=1_999)))
    assert (fetched.start.offset, fetched.next_offset, partition.offset) == (5, 2_000, 2_000)


def test_newer_records_behind_a_gap_before_the_end_of_a_range_are_suspect() -> None:
    """The log was truncated at 25, and compaction has removed the first new records."""
    older, newer = records(10, 10, epoch=1), records(30, 3, epoch=2)
    partition = FetchPosition("orders", 3, Position(10), ConsumerConfig(), until=Position(28, 1))
    fetched = received(partition, reply_row(data=older + newer))
    assert (fetched.next_offset, partition.offset) == (20, 20)
    with pytest.raises(LogTruncated, match="records of leader epoch 2 at offset 30"):
        partition.handle_response(reply_row(data=newer), "broker")
    complete = FetchPosition("orders", 3, Position(10), ConsumerConfig(), until=Position(20, 1))
    fetched = received(complete, reply_row(data=older + newer))
    assert complete.offset >= 20


@pytest.mark.parametrize("throttled", [reply_row(), reply_row(data=None)])
def test_empty_reply_is_no_error_and_has_the_high_watermark(throttled: dict[str, Any]) -> None:
    partition = partition_at(5)
    assert partition.handle_response(throttled, "broker") is None
    assert (partition.offset, partition.high_watermark) == (5, 1_000)


def test_ends_of_a_deleted_topic_are_forgotten_in_the_new_one() -> None:
    old, new = (Position(5, topic_id=bytes([number]) * 16) for number in (1, 2))
    partition = FetchPosition("orders", 3, old, ConsumerConfig())
    partition.handle_response(reply_row(), "broker")
    assert (partition.at(old).high_watermark, partition.at(old).last_stable_offset) == (1_000, 1_000)
    assert (partition.at(new).high_watermark, partition.at(new).last_stable_offset) == (-1, -1)


def test_epoch_after_a_seek_is_kept_for_30_s_of_stale_leaders() -> None:
    partition = partition_at(5, last_epoch=7)
    partition.drop_stale_epoch(now_s=0)
    partition.seek(Position(6, 8))
    for now_s, epoch in (20, 8), (49, 8), (50, -1):
        partition.drop_stale_epoch(now_s)
        assert partition.position.leader_epoch == epoch


def test_partial_record_batch_doubles_the_fetch_size_until_it_fits() -> None:
    """8 MiB behind 64 KiB: doubling 64, 128, … 8192, 16384 KiB would take nine fetches; with the header's size, two."""
    complete = records(0, 1, size=8 << 20)
    partition = partition_at(max_partition_fetch_bytes=64 * KIB)
    sizes = []
    while not sizes or partition.offset == 0:
        sizes.append(partition.fetch_bytes())
        partition.handle_response(reply_row(data=complete[: sizes[-1]]), "broker")
    assert sizes == [64 * KIB, len(complete)]
    assert partition.fetch_bytes() == 64 * KIB, "the next fetch is small again"


def test_partial_header_doubles_the_fetch_size() -> None:
    partition = partition_at(max_partition_fetch_bytes=64 * KIB)
    for expected in (64, 128, 256, 512):
        assert partition.fetch_bytes() == expected * KIB
        partition.handle_response(reply_row(data=b"\0" * 11), "broker")


def test_record_batch_above_the_maximum_names_size_and_option() -> None:
    complete = records(0, 1, size=2 << 20)
    partition = partition_at(max_partition_fetch_bytes=64 * KIB, fetch_max_bytes=1 << 20)
    assert partition.handle_response(reply_row(data=complete[: 64 * KIB]), "broker") is None
    assert partition.fetch_bytes() == 1 << 20
    with pytest.raises(
        ProtocolError, match=rf"orders-3: .* offset 0 has {len(complete)} bytes.*fetch\.max\.bytes=1048576"
    ):
        partition.handle_response(reply_row(data=complete[: 1 << 20]), "broker")


def test_small_range_is_fetched_with_a_small_size_once_record_sizes_are_known() -> None:
    sizes: dict[str, float] = {}
    config = ConsumerConfig()
    first = FetchPosition("orders", 0, Position(0), config, until=Position(100_000), record_bytes=sizes)
    assert first.fetch_bytes() == config.max_partition_fetch_bytes
    first.handle_response(reply_row(data=records(0, 1_000, size=100)), "broker")
    position = FetchPosition("orders", 1, Position(0), config, until=Position(10_000), record_bytes=sizes)
    assert 1_000_000 < position.fetch_bytes() < 1_500_000


@pytest.mark.parametrize("present", [60, 100_000])
def test_partial_record_batch_does_not_count_in_the_record_size(present: int) -> None:
    sizes: dict[str, float] = {}
    complete, cut = records(0, 1_000, size=100), records(1_000, 9_000, size=100)[:present]
    first = FetchPosition("orders", 0, Position(0), ConsumerConfig(), until=Position(100_000), record_bytes=sizes)
    first.handle_response(reply_row(data=complete + cut), "broker")
    assert sizes["orders"] == pytest.approx(len(complete) / 1_000, rel=0.02)


def test_reply_with_only_earlier_records_is_a_protocol_error() -> None:
    with pytest.raises(ProtocolError, match="orders-3: broker sent only records before offset 50"):
        partition_at(50).handle_response(reply_row(data=records(0, 10)), "broker")


def test_error_code_names_partition_offset_and_broker() -> None:
    with pytest.raises(BrokerError, match="Fetch of orders-3 at offset 7 from broker: NOT_LEADER") as raised:
        partition_at(7).handle_response(reply_row(error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER), "broker")
    assert (raised.value.context["topic"], raised.value.context["partition"]) == ("orders", 3)


class TestLeaderEpochs:
    """KIP-320: each fetch has the leader epoch of the last record read; the broker reports where the logs diverge."""

    def test_epoch_of_the_last_record_is_sent(self) -> None:
        partition = partition_at(0, last_epoch=2)
        assert partition.request_row()["last_fetched_epoch"] == 2
        partition.handle_response(reply_row(data=records(0, 3, epoch=4) + records(3, 3, epoch=5)), "broker")
        assert partition.request_row()["last_fetched_epoch"] == 5

    def test_truncated_log_is_an_error_and_a_seek_to_its_end_sends_the_epoch_of_that(self) -> None:
        partition = partition_at(100, last_epoch=5)
        truncated = r"orders-3: .* below offset 100: .* up to offset 60 \(leader epoch 4"
        with pytest.raises(LogTruncated, match=truncated) as raised:
            partition.handle_response(reply_row(diverging_epoch={"epoch": 4, "end_offset": 60}), "broker")
        assert partition.offset == 100
        row = partition.at(end_of_common_log(raised.value)).request_row()
        assert (row["fetch_offset"], row["last_fetched_epoch"]) == (60, 4)

    def test_diverging_epoch_at_the_position_is_accepted(self) -> None:
        partition = partition_at(100, last_epoch=5)
        assert partition.handle_response(reply_row(diverging_epoch={"epoch": 4, "end_offset": 100}), "broker") is None
        assert partition.request_row()["last_fetched_epoch"] == 4

    def test_seek_clears_the_last_fetched_epoch(self) -> None:
        partition = partition_at(100, last_epoch=5)
        changes = {"fetch_offset": 50, "last_fetched_epoch": -1}
        assert partition.at(Position(50)).request_row() == {**partition.request_row(), **changes}


class TestReplacedRecords:
    """A range planned in leader epoch 4; the log may have records of epoch 5 below its end."""

    @pytest.fixture
    def position(self) -> RangePosition:
        expected = Range("orders", 3, 10, 20, topic_id=b"i" * 16, until_epoch=4)
        return RangePosition(expected, ConsumerConfig(), poll_timeout_s=10)

    @pytest.mark.parametrize(
        "data",
        [records(10, 10, epoch=4), records(10, 10, epoch=4) + records(20, 5, epoch=5), records(10, 10, epoch=-1)],
        ids=["its epoch", "newer records behind its end", "no epochs"],
    )
    def test_records_of_the_planned_epoch_are_read(self, position: RangePosition, data: bytes) -> None:
        assert position.handle_response(reply_row(data=data), "broker") is not None
        assert position.done

    def test_range_ends_at_the_first_record_of_a_newer_epoch(self, position: RangePosition) -> None:
        data = records(8, 2, epoch=3) + records(10, 5, epoch=4) + records(15, 10, epoch=5)
        fetched = received(position, reply_row(data=data))
        decoded = fetched.decode(ConsumerConfig(), ("offset",), "orders-3", position.until_offset)
        assert [offset for batch in decoded for offset in batch["offset"].to_pylist()] == list(range(10, 15))
        assert (position.offset, position.position.leader_epoch) == (15, 4)
        for start in (15, 12):  # the whole batch is sent for an offset within it
            with pytest.raises(LogTruncated, match=r"epoch 5 at offset .* up to 20 existed in leader epoch 4"):
                position.handle_response(reply_row(data=records(start, 10, epoch=5)), "broker")
        assert position.offset == 15

    def test_gap_before_a_newer_epoch_is_no_record_of_the_range(self, position: RangePosition) -> None:
        with pytest.raises(LogTruncated, match="offsets up to 20 existed in leader epoch"):
            position.handle_response(reply_row(data=records(15, 10, epoch=5)), "broker")

    def test_log_that_ends_before_the_range_after_an_election_is_suspected(self, position: RangePosition) -> None:
        position.leader_epoch = 5
        assert position.handle_response(reply_row(high_watermark=20), "broker") is None
        with pytest.raises(LogTruncated, match=r"up to offset 14 in leader epoch 5"):
            position.handle_response(reply_row(high_watermark=20, last_stable_offset=14), "broker")
        position.preferred_replica = 2
        assert position.handle_response(reply_row(high_watermark=14), "broker") is None, "a follower may lag"
        position.preferred_replica = -1
        with pytest.raises(LogTruncated, match=r"up to offset 14 in leader epoch 5, and offsets up to 20 existed"):
            position.handle_response(reply_row(high_watermark=14), "broker")
        diverging = {"epoch": 3, "end_offset": 8}
        with pytest.raises(LogTruncated) as raised:
            position.handle_response(reply_row(high_watermark=14, diverging_epoch=diverging), "broker")
        assert raised.value.context["end_offset"] == 8, "offsets 8 to 14 have other records, which are read"
        position.confirmed_epoch = 5
        assert position.handle_response(reply_row(high_watermark=14), "broker") is None, "not since this answer"
        position.leader_epoch = 6
        with pytest.raises(LogTruncated, match="in leader epoch 6"):
            position.handle_response(reply_row(high_watermark=14), "broker")
        with pytest.raises(LogTruncated, match="records of leader epoch 6"):
            position.handle_response(reply_row(data=records(10, 10, epoch=6)), "broker")

    def test_epochs_of_an_unknown_topic_id_are_not_compared(self) -> None:
        position = RangePosition(Range("orders", 3, 10, 20, until_epoch=4), ConsumerConfig(), poll_timeout_s=10)
        assert position.handle_response(reply_row(data=records(10, 10, epoch=5)), "broker") is not None


def test_failures_back_off_until_a_good_reply() -> None:
    partition = partition_at()
    waits = []
    for now_s in (10.0, 20.0, 30.0):
        partition.postpone(TransportError("gone"), now_s)
        waits.append(partition.retry_at_s - now_s)
    assert waits[0] < 0.13 < waits[1] < 0.25 < waits[2] < 0.5
    assert (partition.attempts, partition.broker) == (3, None)
    # A leader that names a replica has sent nothing: the replica may be the one that fails.
    partition.handle_response(reply_row(preferred_read_replica=2), "broker")
    assert partition.attempts == 3
    partition.handle_response(reply_row(), "broker")
    assert (partition.failure, partition.attempts) == (None, 0)


class TestPatience:
    """The time for which a range waits for records, with a `poll_timeout_s` of 10."""

    @pytest.fixture
    def position(self) -> RangePosition:
        return RangePosition(Range("orders", 3, 0, 100), ConsumerConfig(), poll_timeout_s=10)

    def test_time_begins_with_the_first_request_for_the_next_records(self, position: RangePosition) -> None:
        assert position.deadline_s(50) == 60
        for now_s in (50, 55):
            position.begin_asking(now_s)
        assert position.deadline_s(55) == 60
        assert position.waited_s(55) == 5
        position.served()
        assert position.deadline_s(55) == 65

    def test_range_without_records_is_starved_at_the_deadline_unless_it_fails(self, position: RangePosition) -> None:
        assert not position.is_starved(1_000)
        position.begin_asking(0)
        assert [position.is_starved(now_s) for now_s in (9.9, 10)] == [False, True]
        position.postpone(TransportError("gone"), 10)
        assert not position.is_starved(20), "the failure decides"

    def test_time_of_an_unknown_topic_does_not_count(self, position: RangePosition) -> None:
        unknown = broker_error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "Metadata", topic="orders", partition=3)
        position.begin_asking(0)
        position.record_lookup(unknown, 2)
        assert position.deadline_s(2) == 2 + position.unknown.longest_s
        position.record_lookup(None, 8)
        assert position.deadline_s(8) == 16

    def test_leader_without_the_partition_leaves_time_for_the_metadata(self, position: RangePosition) -> None:
        position.begin_asking(0)
        position.postpone(broker_error(ErrorCode.UNKNOWN_TOPIC_ID, "Fetch"), 1)
        assert position.deadline_s(1) == position.unknown.limit_s

    @pytest.mark.parametrize(("from_epoch", "first_offset"), [(4, 0), (-1, 50)])
    def test_truncated_log_is_read_again_from_records_read_before(self, from_epoch: int, first_offset: int) -> None:
        expected = Range("orders", 3, 50, 100, from_epoch=from_epoch)
        assert RangePosition(expected, ConsumerConfig(), poll_timeout_s=10).first_offset == first_offset

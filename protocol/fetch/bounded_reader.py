"""Read ranges of partitions as Arrow batches; the next Fetch is in flight while a reply is decoded.

Runs in the caller's thread, with one request at a time to each leader. Moved leaders and broken connections are
retried; lost records raise `DataLoss`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from protocol.base.clock import Backoff, Deadline, PausableClock
from protocol.cluster.client import Client
from protocol.cluster.metadata import Broker
from protocol.config import ConsumerConfig
from protocol.errors import DataLoss, DeadlineExceeded, KafkaError, TransportError, UsageError
from protocol.fetch.fetch_failures import InvalidPosition, Retry, log_retry, lost_with_topic, poll_timeout_error
from protocol.fetch.fetch_position import CompletedFetch, RangePosition, due_for_leaders
from protocol.fetch.fetch_request import FetchRequest, FetchRequestBuilder, FetchResult, requests_by_broker
from protocol.fetch.leaders import decide_with_leader, receive_fetch, resolve_leaders, send_fetch
from protocol.fetch.log_offsets import Range
from protocol.metrics import definitions
from protocol.net.connection import Reply
from protocol.net.readiness import ready
from protocol.position import Position
from protocol.records.decode import ALL_COLUMNS, RowFilter

# Another thread may have read our reply from a shared connection: check again after this time.
_MAX_WAIT_S = 0.1
# Time for a busy broker to send an empty reply, besides fetch.max.wait.ms.
_ANSWER_MS = 1_000

OnLoss = Callable[[DataLoss, Range], None]
FilterOfRange = Callable[[Range], RowFilter]


def raise_loss(loss: DataLoss, skipped: Range) -> None:
    """Raise the loss instead of skipping records."""
    raise loss


@dataclass(frozen=True)
class _InFlight:
    request: FetchRequest[RangePosition]
    reply: Reply
    deadline: Deadline


class BoundedReader:
    """Iterates over `(range, batch)`: Arrow batches of all `ranges`, in offset order within each range.

    Batches have at most some thousand rows; those of different ranges arrive in any order. Not thread-safe. Can be
    iterated once: a reply moves the positions, so a second iteration, which raises `UsageError`, would skip records.

    `columns`: columns of the batches, see `protocol.records.decode`.
    `poll_timeout_ms`: raise `DeadlineExceeded` after this time without records of a range.
    `on_loss`: called with a `DataLoss` and the range to skip if records are lost: deleted, truncated, or in a deleted
    or recreated topic (`TopicRecreated`). If it returns, the range is added to `skipped`. Reading of a truncated log
    continues at the truncation, which may be before `from_offset`.
    `first_fetch_bytes`: start with small fetches of this size, and double it each time, so that the first rows arrive
    early and later fetches overlap with downstream work. Costs some CPU time. None: `max.partition.fetch.bytes` from
    the start.
    `record_bytes`: bytes per offset by topic, shared with other readers and updated.
    `fetches`: number of replies.
    `row_filter`: returns the filter of the records of a range.
    """

    def __init__(
        self,
        client: Client,
        config: ConsumerConfig,
        ranges: Sequence[Range],
        *,
        columns: Collection[str] = ALL_COLUMNS,
        poll_timeout_ms: float = 120_000,
        on_loss: OnLoss = raise_loss,
        first_fetch_bytes: int | None = None,
        record_bytes: dict[str, float] | None = None,
        row_filter: FilterOfRange | None = None,
    ) -> None:
        self._client = client
        self._row_filter = row_filter
        client.sensors.use([definitions.FETCH])
        self._config = config
        self._columns = columns
        self._on_loss = on_loss
        self._builders: dict[Broker, FetchRequestBuilder] = {}
        self._in_flight: list[_InFlight] = []
        # Paused while the caller processes a batch: measures waits for records, and limits requests. Back-offs and
        # metrics are times of `client.clock`.
        self._clock = PausableClock(client.clock)
        # Ranges without a request in flight, longest wait first. Each range is here, in `_in_flight`, or done.
        self._waiting: list[RangePosition] = []
        record_bytes = {} if record_bytes is None else record_bytes
        for source_range in ranges:
            backoff = Backoff(client.config.retry_backoff_ms, client.config.retry_backoff_max_ms)
            range_position = RangePosition(
                source_range,
                config,
                poll_timeout_s=poll_timeout_ms / 1000,
                first_fetch_bytes=first_fetch_bytes,
                backoff=backoff,
                record_bytes=record_bytes,
            )
            if not range_position.done:
                self._waiting.append(range_position)
        self.skipped: list[Range] = []
        self.fetches = 0
        self._has_begun = False

    def __iter__(self) -> Iterator[tuple[Range, pa.RecordBatch]]:
        if self._has_begun:
            raise UsageError("a BoundedReader can be iterated once: create another one for the ranges to read again")
        self._has_begun = True
        return self._batches()

    def _batches(self) -> Iterator[tuple[Range, pa.RecordBatch]]:
        while self._waiting or self._in_flight:
            fetched_together = self._next_fetched()
            self._clock.pause()
            try:
                for range_position, fetched in fetched_together:
                    for batch in self._decoded(range_position, fetched):
                        yield range_position.source_range, batch
            finally:
                self._clock.resume()

    def _decoded(self, range_position: RangePosition, fetched: CompletedFetch) -> Iterator[pa.RecordBatch]:
        sensors, clock = self._client.sensors, self._client.clock
        consumed = sensors.consumed[range_position.topic]
        records, new_bytes = 0, fetched.record_bytes
        row_filter = None if self._row_filter is None else self._row_filter(range_position.source_range)
        for batch in fetched.decode(
            self._config, self._columns, range_position.name, range_position.until_offset, row_filter
        ):
            consumed.record((clock.now_s(), batch.num_rows, new_bytes))
            records, new_bytes = records + batch.num_rows, 0
            yield batch
        if row_filter is not None and new_bytes:
            consumed.record((clock.now_s(), 0, new_bytes))
        sensors.partition_replies.record((clock.now_s(), records))

    # -- requests and replies -----------------------------------------------------------------

    def _next_fetched(self) -> list[tuple[RangePosition, CompletedFetch]]:
        """Return the records of one reply, after sending the next request to that broker; empty at the end."""
        while self._waiting or self._in_flight:
            self._send_due()
            result = self._take_reply()
            if result is None:
                continue
            for range_position, _ in result.completed:
                range_position.served()
            if result.completed:
                self._send_due()
                return result.completed
        return []

    def _send_due(self) -> None:
        """Send one request to each broker that has a range to read and no request in flight."""
        if not self._waiting:
            return
        now_s = self._client.clock.now_s()
        self._resolve_leaders(due_for_leaders(self._waiting, now_s))
        busy = {flight.request.broker for flight in self._in_flight}
        requests = requests_by_broker(self._waiting, busy, now_s, self._config.max_partition_fetch_bytes)
        requested = {range_position for range_positions in requests.values() for range_position in range_positions}
        self._waiting = [range_position for range_position in self._waiting if range_position not in requested]
        asked_at_s = self._clock.now_s()  # one time for all, so that ranges asked for together stay in their order
        for range_position in requested:
            range_position.begin_asking(asked_at_s)
        for broker, range_positions in requests.items():
            # A broker fills a reply in the order of the request: the ranges that have waited longest come first.
            self._send(broker, sorted(range_positions, key=lambda range_position: range_position.asked_at_s or 0.0))

    def _resolve_leaders(self, range_positions: list[RangePosition]) -> None:
        """Resolve the brokers of ranges, and handle failures."""
        failures = self._find_brokers(range_positions)
        for range_position in range_positions:
            error = failures.get(range_position)
            range_position.record_lookup(error, self._clock.now_s())
            if error is None:
                continue
            range_position.begin_asking(self._clock.now_s())
            if range_position.unknown.expired or self._is_deleted(range_position):
                self._reset_position(range_position, lost_with_topic(range_position, error))
            else:
                self._handle_failure(range_position, error)

    def _is_deleted(self, range_position: RangePosition) -> bool:
        """Ask several brokers at once; the topic existed when the range was planned."""
        if not range_position.unknown.suspects_deleted(self._clock.now_s()):
            return False
        return bool(self._client.unknown_to_brokers([range_position.topic], self._deadline(range_position)))

    def _find_brokers(self, range_positions: list[RangePosition]) -> dict[RangePosition, KafkaError]:
        """Resolve brokers with one request; return the failures."""
        if not range_positions:
            return {}
        return resolve_leaders(self._client, range_positions, self._first_deadline(range_positions))

    def _send(self, broker: Broker, range_positions: list[RangePosition]) -> None:
        builder = self._builders.get(broker)
        if builder is None:
            # Every range moves with every reply, so a fetch session would save nothing.
            builder = self._builders[broker] = FetchRequestBuilder(broker, self._config, sessions=False)
        deadline = self._first_deadline(range_positions)
        max_bytes, max_wait_ms = self._config.fetch_max_bytes, self._config.fetch_max_wait_ms
        request = builder.build(range_positions, max_bytes=max_bytes, max_wait_ms=max_wait_ms)
        try:
            reply = send_fetch(self._client, request, deadline)
        except KafkaError as error:
            self._waiting += range_positions
            self._handle_failures(request.handle_loss(error))
            return
        # Wait longer than the broker does for data: a timeout then means missing records, not a missing reply.
        patience_ms = deadline.remaining_s() * 1000 + max_wait_ms + _ANSWER_MS
        patience_ms = min(patience_ms, self._client.config.request_timeout_ms)
        self._in_flight.append(_InFlight(request, reply, Deadline.after_ms(patience_ms, self._clock)))

    def _take_reply(self) -> FetchResult[RangePosition] | None:
        """Wait for a reply and handle it; return None without a request in flight, or if no reply arrived."""
        if not self._in_flight:
            self._sleep_until_retry()
            return None
        flight = self._in_flight[0] if self._waits_for_one_broker() else self._first_reply()
        if flight is None:
            return None
        self._in_flight.remove(flight)
        self.fetches += 1
        request = flight.request
        try:
            result = receive_fetch(self._client, request, flight.reply.result(flight.deadline))
        except TransportError as error:
            result = request.handle_loss(error)
        if result.completed:
            self._client.sensors.fetches.record((self._client.clock.now_s(), result.record_bytes))
        self._waiting += [range_position for range_position in request.partitions if not range_position.done]
        self._handle_failures(result)
        served = {range_position for range_position, _ in result.completed}
        for range_position in request.partitions:
            if range_position not in served and range_position.is_starved(self._clock.now_s()):
                raise poll_timeout_error(range_position)
        return result

    def _waits_for_one_broker(self) -> bool:
        """Return True if the one request in flight is to the broker of all waiting ranges."""
        broker = self._in_flight[0].request.broker
        return len(self._in_flight) == 1 and all(range_position.broker == broker for range_position in self._waiting)

    def _first_reply(self) -> _InFlight | None:
        deadline = min((flight.deadline for flight in self._in_flight), key=lambda deadline: deadline.at_s)
        replies = ready([flight.reply for flight in self._in_flight], _MAX_WAIT_S, deadline)
        for awaited in self._in_flight:
            if awaited.reply in replies or awaited.deadline.passed:
                return awaited
        return None

    def _sleep_until_retry(self) -> None:
        now_s = self._client.clock.now_s()
        retry_times_s = [range_position.retry_at_s for range_position in self._waiting]
        if retry_times_s:
            self._client.clock.sleep_s(max(0.0, min(retry_times_s) - now_s))

    # -- failures -----------------------------------------------------------------------------

    def _first_deadline(self, range_positions: Sequence[RangePosition]) -> Deadline:
        now_s = self._clock.now_s()
        return Deadline(min([range_position.deadline_s(now_s) for range_position in range_positions]), self._clock)

    def _deadline(self, range_position: RangePosition) -> Deadline:
        return self._first_deadline([range_position])

    def _handle_failures(self, result: FetchResult[RangePosition]) -> None:
        for range_position, error in result.failed:
            self._handle_failure(range_position, error)

    def _handle_failure(self, range_position: RangePosition, error: KafkaError) -> None:
        """Back off after a retriable error, skip lost records, raise other errors."""
        action = decide_with_leader(self._client, range_position, error, self._deadline(range_position))
        if isinstance(action, InvalidPosition):
            self._reset_position(range_position, action)
        elif isinstance(action, Retry) and not isinstance(action.error, DeadlineExceeded):
            self._retry(range_position, action)
        else:
            raise action.error

    def _retry(self, range_position: RangePosition, retry: Retry) -> None:
        log_retry(range_position, retry.error)
        now_s = self._client.clock.now_s()
        range_position.postpone(retry.error, now_s, at_once=retry.at_once)
        if retry.refresh_metadata:
            self._client.expire_metadata([range_position.topic])
        if range_position.retry_at_s - now_s >= self._deadline(range_position).remaining_s():
            spent_s = range_position.waited_s(self._clock.now_s())
            raise DeadlineExceeded(
                f"Fetch of {range_position.name} at offset {range_position.offset} did not succeed in "
                f"{spent_s:.1f} s and {range_position.attempts} attempt(s); the last one: {retry.error}",
                attempts=range_position.attempts,
            ) from retry.error

    def _reset_position(self, range_position: RangePosition, lost: InvalidPosition) -> None:
        first_offset, resume = range_position.first_offset, lost.resume
        if resume.offset < first_offset:
            resume = Position(first_offset)
        skipped = Range(*range_position.topic_partition, lost.first_lost, max(lost.first_lost, resume.offset))
        loss = lost.kind(lost.reason, topic=range_position.topic, partition=range_position.partition)
        loss.__cause__ = lost.cause
        self._on_loss(loss, skipped)
        if skipped.size:
            self.skipped.append(skipped)
        if lost.first_lost > range_position.offset:
            range_position.end_at(lost.first_lost)
        else:
            range_position.seek(resume)
        if range_position.done and range_position in self._waiting:
            self._waiting.remove(range_position)

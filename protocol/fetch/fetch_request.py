"""Fetch requests to one broker for all partitions read from it, its fetch session, and its replies. Sans-IO.

Used by `bounded_reader` (one thread for all brokers), `partition_fetcher` (one per broker) and `log_samples`; `leaders`
sends the requests.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Generic

from protocol.broker_errors import ErrorCode, broker_error
from protocol.cluster.metadata import Broker, NewLeader
from protocol.config import ConsumerConfig
from protocol.errors import KafkaError, TransportError
from protocol.fetch.fetch_position import CompletedFetch, P
from protocol.kafka_terms import NO_TOPIC_ID
from protocol.wire.messages.m01_fetch import FETCH_PARTITION, FIRST_WITH_SESSIONS, LAST_WITH_TOPIC_NAMES

log = logging.getLogger(__name__)

_FIRST_VERSIONS = {field.name: field.since for field in FETCH_PARTITION.fields}

NO_SESSION = 0
FINAL_EPOCH = -1
"""Epoch of a request that closes the session, or that uses none."""
_INITIAL_EPOCH = 0
_MAX_UNREQUESTED = 10
_LAST_EPOCH = 2**31 - 1

# A topic's id (since Fetch 13) or its name, and the partition number.
Key = tuple[bytes | str, int]
Row = dict[str, Any]

SESSION_ERRORS = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)
"""Codes about the session, not about partitions."""


class FetchSession:
    """A fetch session (KIP-227): the broker remembers the partitions of the last request. One request at a time.

    `session_id`: 0 if there is no session.
    `full`: the last request contained every partition, and so must its reply.
    """

    def __init__(self) -> None:
        self.session_id = NO_SESSION
        self.full = True
        self._epoch = _INITIAL_EPOCH
        self._rows: Mapping[Key, Row] = {}
        self._by_id = False

    def request(self, rows: Mapping[Key, Row], *, by_id: bool) -> dict[str, Any]:
        """Return the fields of a request for exactly these rows: changed rows, and partitions to forget.

        `by_id`: keys contain topic ids instead of names; a session cannot change between them.
        """
        if by_id != self._by_id:
            self.restart()
            self._by_id = by_id
        self.full = self._epoch == _INITIAL_EPOCH
        before = {} if self.full else self._rows
        changed = {key: row for key, row in rows.items() if before.get(key) != row}
        forgotten: dict[bytes | str, list[int]] = {}
        for topic, partition in before.keys() - rows.keys():
            forgotten.setdefault(topic, []).append(partition)
        self._rows = rows
        name = topic_field(by_id)
        return {
            "session_id": self.session_id,
            "session_epoch": self._epoch,
            "topics": topic_rows(changed, by_id),
            "forgotten_topics_data": [
                {name: topic, "partitions": forgotten_numbers} for topic, forgotten_numbers in forgotten.items()
            ],
        }

    def accept(self, error_code: int, session_id: int) -> None:
        """Handle a reply's error code and session id: the next request continues the session or starts a new one."""
        if error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
            self.session_id = NO_SESSION
        if error_code != ErrorCode.NONE or (session_id != self.session_id and not self.full):
            self.restart()
        elif session_id == NO_SESSION:
            # The broker has no room for the session, or throttles: a full request may create one later.
            self.session_id, self._epoch = NO_SESSION, _INITIAL_EPOCH
        else:
            self.session_id = session_id
            # The second request has epoch 1. Epoch 1 also follows the largest epoch, since 0 starts a new session.
            self._epoch = 1 if self._epoch == _LAST_EPOCH else self._epoch + 1

    def restart(self) -> None:
        """Make the next request a full one, which also closes the old session. Needed after a lost reply."""
        self._epoch = _INITIAL_EPOCH

    def close(self) -> dict[str, Any] | None:
        """Return the fields of a request that closes the session, which the broker would otherwise keep for minutes."""
        session_id, self.session_id = self.session_id, NO_SESSION
        self.restart()
        return {"session_id": session_id, "session_epoch": FINAL_EPOCH, "topics": []} if session_id else None


def topic_field(by_id: bool) -> str:
    """Return the field that names the topic in requests and replies."""
    return "topic_id" if by_id else "topic"


def topic_rows(rows: Mapping[Key, Row], by_id: bool) -> list[dict[str, Any]]:
    """Group neighbouring rows of a topic into the `topics` of a request, which keeps the order of the rows.

    As in Java, a topic may be there several times: joined, its rows would overtake those of other topics.
    """
    name = topic_field(by_id)
    return [
        {name: topic, "partitions": [row for _, row in of_topic]}
        for topic, of_topic in groupby(rows.items(), lambda item: item[0][0])
    ]


def keys_of(rows: Iterable[Mapping[str, Any]], by_id: bool) -> list[tuple[Key, Mapping[str, Any]]]:
    """Return the partition rows of a reply with their keys."""
    name = topic_field(by_id)
    return [
        ((bytes(topic[name]) if by_id else topic[name], row["partition_index"]), row)
        for topic in rows
        for row in topic["partitions"]
    ]


@dataclass
class FetchResult(Generic[P]):
    """The result of a reply: records, and failures of single partitions. A partition in neither had no new data.

    `leaders` are those that the reply names for partitions that it refuses.
    """

    completed: list[tuple[P, CompletedFetch]] = field(default_factory=list)
    failed: list[tuple[P, KafkaError]] = field(default_factory=list)
    leaders: list[NewLeader] = field(default_factory=list)
    throttle_ms: int = 0

    @property
    def record_bytes(self) -> int:
        """Bytes of all record batches."""
        return sum(fetched.record_bytes for _, fetched in self.completed)


class FetchRequestBuilder:
    """Builds the requests to one broker, one at a time.

    `sessions` enables incremental fetch sessions (KIP-227), which pay off for long-lived readers.

    `requests`: number of requests built.
    """

    def __init__(self, broker: Broker, config: ConsumerConfig, *, sessions: bool) -> None:
        self.broker = broker
        self.requests = 0
        self._config = config
        self._session = FetchSession() if sessions else None
        self._logged_unrequested: set[Key] = set()

    def build(self, partitions: Collection[P], *, max_bytes: int, max_wait_ms: int) -> FetchRequest[P]:
        """Return the next request.

        `partitions`: each at most once.
        `max_bytes`: limit of the whole reply; raised to the limit of the largest partition.
        """
        self.requests += 1
        limits = {"max_wait_ms": max_wait_ms, "min_bytes": self._config.fetch_min_bytes, "max_bytes": max_bytes}
        isolation = int(self._config.isolation_level == "read_committed")
        fields = {**limits, "isolation_level": isolation, "rack_id": self._config.client_rack}
        return FetchRequest(self.broker, fields, self._session, partitions, self._logged_unrequested)

    def close(self) -> dict[str, Any] | None:
        """Return the body of a request that closes the session; None if there is no session."""
        fields = self._session.close() if self._session is not None else None
        return {"max_wait_ms": 0, "min_bytes": 0, **fields} if fields else None


class FetchRequest(Generic[P]):
    """One request, from its body to the reply or its loss.

    `by_id`: True if the body names topics by id (Fetch 13, Kafka 3.1), so the reply has no records of a recreated
    topic.
    """

    def __init__(
        self,
        broker: Broker,
        fields: Mapping[str, Any],
        session: FetchSession | None,
        partitions: Collection[P],
        unrequested: set[Key],
    ) -> None:
        self.broker = broker
        self.partitions = partitions
        self.by_id = False
        self._fields = fields
        self._session = session
        self._in_session = False
        self._requested: dict[Key, P] = {}
        # Keys that `_log_unrequested` has logged, shared by all requests to the broker.
        self._logged_unrequested = unrequested

    @property
    def newest_version(self) -> int | None:
        """The newest version of Fetch that can name these topics; None for any."""
        by_name = any(partition.topic_id == NO_TOPIC_ID for partition in self.partitions)
        return LAST_WITH_TOPIC_NAMES if by_name else None

    def body(self, version: int) -> dict[str, Any]:
        """Return the body in this version of Fetch."""
        self.by_id = version > LAST_WITH_TOPIC_NAMES
        rows: dict[Key, Row] = {}
        self._requested = {}
        for partition in self.partitions:
            key = (partition.topic_id if self.by_id else partition.topic, partition.partition)
            rows[key] = partition.request_row()
            self._requested[key] = partition
        largest = max((row["partition_max_bytes"] for row in rows.values()), default=0)
        self._in_session = self._session is not None and version >= FIRST_WITH_SESSIONS
        max_bytes = max(self._fields["max_bytes"], largest)
        return {**self._fields, "max_bytes": max_bytes, **self._session_fields(_without_newer_fields(version, rows))}

    def _session_fields(self, rows: Mapping[Key, Row]) -> dict[str, Any]:
        if self._session is not None and self._in_session:
            return self._session.request(rows, by_id=self.by_id)
        return {"session_epoch": FINAL_EPOCH, "topics": topic_rows(rows, self.by_id)}

    def handle_response(self, body: Mapping[str, Any]) -> FetchResult[P]:
        """Read the reply, and advance the positions."""
        result: FetchResult[P] = FetchResult(throttle_ms=body["throttle_time_ms"])
        requested = dict(self._requested)
        code = body["error_code"]
        complete = True
        if self._session is not None and self._in_session:
            complete = self._session.full
            self._session.accept(code, body["session_id"])
            if code in SESSION_ERRORS and not complete:
                # The broker has dropped the session, without loss: the next request is a full one.
                return result
        if code != ErrorCode.NONE:
            result.failed = [
                (
                    partition,
                    broker_error(
                        code, f"Fetch of {partition.name} from {self.broker}", api="Fetch", topic=partition.topic
                    ),
                )
                for partition in requested.values()
            ]
            return result
        for key, row in keys_of(body["responses"], self.by_id):
            partition = requested.pop(key, None)
            if partition is None:
                self._log_unrequested(key)
                continue
            try:
                completed = partition.handle_response(row, self.broker)
            except KafkaError as error:
                result.failed.append((partition, error))
                if leader := NewLeader.from_reply(partition.topic, partition.topic_id, partition.partition, row, body):
                    result.leaders.append(leader)
            else:
                if completed is not None:
                    result.completed.append((partition, completed))
        # A throttling broker may omit all partitions, and a session's reply contains only changed ones.
        if result.throttle_ms:
            return result
        for partition in requested.values():
            if complete:
                text = f"{self.broker} has answered a Fetch without {partition.name}, which was requested"
                result.failed.append((partition, TransportError(text)))
            else:
                partition.record_success()
        return result

    def _log_unrequested(self, key: Key) -> None:
        """Log a warning, once per partition, for at most `_MAX_UNREQUESTED` partitions of a broker."""
        if key in self._logged_unrequested or len(self._logged_unrequested) >= _MAX_UNREQUESTED:
            return
        self._logged_unrequested.add(key)
        topic, partition = key
        name = f"topic id {topic.hex()}, partition {partition}" if isinstance(topic, bytes) else f"{topic}-{partition}"
        log.warning("%s has answered a Fetch with %s, which was not requested; it is ignored", self.broker, name)

    def handle_loss(self, error: KafkaError) -> FetchResult[P]:
        """Handle a missing reply: all partitions fail, and the session, whose state is unknown, is restarted."""
        if self._session is not None:
            self._session.restart()
        return FetchResult(failed=[(partition, error) for partition in self.partitions])


def requests_by_broker(
    partitions: Iterable[P], busy: Collection[Broker], now_s: float, max_bytes: int
) -> dict[Broker, list[P]]:
    """Return the partitions of the next request to each broker, in the given order.

    A request has one position per topic-partition. The `fetch_bytes` of its positions fit into `max_bytes`, except that
    the first position is always included. Brokers in `busy` get no request. Partitions without a leader or in back-off
    are left out.
    """
    requests: dict[Broker, list[P]] = {}
    requested_names: dict[Broker, set[str]] = {}
    room: dict[Broker, int] = {}
    for partition in partitions:
        broker = partition.broker
        if broker is None or broker in busy or partition.retry_at_s > now_s:
            continue
        request = requests.setdefault(broker, [])
        room_bytes, fetch_bytes = room.get(broker, max_bytes), partition.fetch_bytes()
        if request and (fetch_bytes > room_bytes or partition.name in requested_names[broker]):
            continue
        room[broker] = room_bytes - fetch_bytes
        requested_names.setdefault(broker, set()).add(partition.name)
        request.append(partition)
    return requests


def _without_newer_fields(version: int, rows: Mapping[Key, Row]) -> Mapping[Key, Row]:
    """Remove the fields that this version does not have: a change of one would send the row again in a session."""
    fields = next(iter(rows.values()), {})  # all rows have the same
    unknown = {name for name in fields if _FIRST_VERSIONS[name] > version}
    if not unknown:
        return rows
    return {key: {name: value for name, value in row.items() if name not in unknown} for key, row in rows.items()}

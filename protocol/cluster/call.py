"""One request to the broker that its API names, in the retry loop, with a check of every error code of the reply.

The message schema holds the destination (`Api.route`) and the places of error codes in a reply (`wire.parts`), so a
new API needs no code here. `Client.send` is the alternative for Fetch and Produce, which plan requests for many
partitions and handle replies row by row.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from protocol.base.clock import Deadline
from protocol.base.listing import listed
from protocol.broker_errors import ErrorCode, broker_error
from protocol.cluster.client import CONTROL, COORDINATOR, Client
from protocol.cluster.coordinators import CoordinatorKey, group_coordinator, transaction_coordinator
from protocol.cluster.metadata import Broker
from protocol.cluster.unknown_topic import is_unknown_topic
from protocol.errors import BrokerError, Corrupt, KafkaError, UsageError
from protocol.kafka_terms import TopicPartition
from protocol.wire.parts import Part, error_parts, partition_request, with_topic_names
from protocol.wire.schema import Api, Body, Route

Row = Mapping[str, Any]
Handle = Callable[[TopicPartition, Row, Broker, BrokerError | None], KafkaError | None]
Check = Callable[[Broker, Collection[TopicPartition]], Mapping[TopicPartition, BrokerError]]

_COORDINATORS = {Route.GROUP: group_coordinator, Route.TRANSACTION: transaction_coordinator}
_PURPOSES = {Route.GROUP: COORDINATOR, Route.TRANSACTION: COORDINATOR}


def call(
    client: Client,
    api: Api,
    body: Body,
    deadline: Deadline,
    *,
    to: Broker | CoordinatorKey | None = None,
    topics: Collection[str] = (),
    accept: Collection[int] = (),
    complete: Collection[TopicPartition] = (),
    topic_ids: Mapping[str, bytes] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Send a request to one broker and return its reply, which has no error codes except those in `accept`.

    A field `timeout_ms` of the message is filled in. Use `call_partitions` for requests to partition leaders. Blocks;
    callable from any thread.

    `body`: fields of the request, or a function from the version to the fields.
    `deadline`: limit of the call, including retries.
    `to`: destination, if the message does not determine it: a broker, or a coordinator if `body` is a function.
    `topics`: topics of the request, whose cached metadata is refreshed after errors such as NOT_LEADER_OR_FOLLOWER.
    `accept`: error codes to return to the caller.
    `complete`: partitions that the reply must contain; otherwise `Corrupt` is raised.
    `topic_ids`: ids by name, to name the topics of replies that identify them by id.
    `**options`: `at_least` and `at_most`: the versions that the call needs; `max_attempts`.
    Raises `BrokerError`: a non-retriable error code; its context names the part of the reply. `DeadlineExceeded`: time
    or attempts ran out; `TopicUnknown` as in `Client.retrying`.
    """
    to = to or _coordinator(api, body)
    name = _CallName(api, to, listed(sorted(topics)) if topics else "")
    timed_body = with_timeout(api, body, deadline)
    max_attempts = options.pop("max_attempts", None)

    def attempt() -> dict[str, Any]:
        broker = _destination(client, api, to, deadline)
        if broker is None:
            reply = client.ask_any(api, timed_body, deadline, **options)
        else:
            reply = client.ask(broker, api, timed_body, deadline, purpose=_PURPOSES.get(api.route, CONTROL), **options)
        if topic_ids is not None:
            reply = with_topic_names(api, reply, topic_ids)
        missing = set(complete)
        for part in error_parts(api, reply):
            if part.code != ErrorCode.NONE and part.code not in accept:
                raise name.error(part, broker)
            missing.discard(part.partition)
        if missing:
            raise name.omitted(missing, broker)
        return reply

    key = to if isinstance(to, CoordinatorKey) else None
    return client.retrying(name.text(), attempt, deadline, topics=topics, coordinator_of=key, max_attempts=max_attempts)


def call_partitions(
    client: Client,
    api: Api,
    fields: dict[str, Any],
    partitions: Mapping[TopicPartition, Row],
    deadline: Deadline,
    *,
    check_leader_epoch: bool = False,
    handle: Handle | None = None,
    check: Check | None = None,
    topic_ids: Mapping[str, bytes] | None = None,
    reply_deadline: Callable[[], Deadline] | None = None,
    **options: Any,
) -> dict[TopicPartition, Row]:
    """Send a request about partitions to their leaders in parallel, or to a coordinator; return each partition's row.

    Retriable failures are repeated for the failed partitions only. Raises as `call`, and `Corrupt` if a reply omits a
    requested partition.

    `fields`: the message without its topics.
    `partitions`: fields of each partition, except its number.
    `check_leader_epoch`: send the leader epochs of the metadata, so that brokers refuse outdated ones (KIP-320).
    `handle`: receives (topic, partition), its row, the broker and the row's error or None. Returns an error, which
    counts as the partition's failure, or None to accept the row.
    `check`: called with the broker and the partitions before each request. Returns errors of partitions that are not
    sent, which are handled as if the broker had returned them.
    `topic_ids`: the ids of all topics, for versions that identify topics by id.
    `reply_deadline`: returns the limit of a request that is sent now, which may end after `deadline`: no other request
    follows then.
    `**options`: as in `call`, and `unknown_topic_s`: raise `TopicUnknown` after brokers have not known a topic for this
    time, for callers that then check whether the topic was deleted.
    """
    to = _coordinator(api, fields)
    name = _CallName(api, to, "" if to else listed([f"{topic}-{partition}" for topic, partition in partitions]))
    rows_by_key: dict[TopicPartition, Row] = {}
    max_attempts = options.pop("max_attempts", None)
    unknown_topic_s = options.pop("unknown_topic_s", None)

    def attempt() -> dict[TopicPartition, Row]:
        failures: list[KafkaError] = []
        missing = {key: row for key, row in partitions.items() if key not in rows_by_key}
        if to is not None:
            rows_by_broker = {client.coordinator(to, deadline): missing}
        else:
            rows_by_broker = _by_leader(client, missing, deadline, failures, check_leader_epoch)
        if check is not None:
            for broker, rows in rows_by_broker.items():
                for key, error in check(broker, rows).items():
                    failures += _handle_row(key, {}, broker, error, rows_by_key, handle)
                    del rows[key]
        requests = {
            broker: with_timeout(api, partition_request(api, fields, rows, topic_ids), deadline)
            for broker, rows in rows_by_broker.items()
            if rows
        }
        until = deadline if reply_deadline is None else reply_deadline()
        replies, failure = client.ask_many(requests, api, until, purpose=_PURPOSES.get(api.route, CONTROL), **options)
        if failure is not None:
            failures.append(failure)
        for broker, reply in replies.items():
            if topic_ids is not None:
                reply = with_topic_names(api, reply, topic_ids)
            failures += _handle_reply(name, broker, reply, rows_by_broker[broker], rows_by_key, handle)
        if failures:
            raise next(filter(is_unknown_topic, failures), failures[0])
        return rows_by_key

    topics = {topic for topic, _ in partitions} if to is None else ()
    return client.retrying(
        name.text(),
        attempt,
        deadline,
        topics=topics,
        coordinator_of=to,
        max_attempts=max_attempts,
        unknown_topic_s=unknown_topic_s,
    )


# -- destination and request ----------------------------------------------------------------------


def _coordinator(api: Api, body: Body) -> CoordinatorKey | None:
    if api.route not in _COORDINATORS:
        return None
    if callable(body):
        raise UsageError(f"{api.name} goes to {api.route.value}: pass `to`, since this body depends on the version")
    key = api.coordinator_key(body)
    return None if key is None else _COORDINATORS[api.route](key)


def _destination(client: Client, api: Api, to: Broker | CoordinatorKey | None, deadline: Deadline) -> Broker | None:
    """Return the destination. None means any broker, as for a transaction API without a transactional id."""
    if isinstance(to, CoordinatorKey):
        return client.coordinator(to, deadline)
    if to is None and api.route is Route.CONTROLLER:
        return client.controller(deadline)
    if to is None and api.route not in (Route.ANY, Route.TRANSACTION):
        raise UsageError(f"{api.name} goes to {api.route.value}: pass `to`")
    return to


def _by_leader(
    client: Client,
    partitions: Mapping[TopicPartition, Row],
    deadline: Deadline,
    failures: list[KafkaError],
    check_leader_epoch: bool,
) -> dict[Broker, dict[TopicPartition, Row]]:
    leaders, failed = client.leaders(partitions, deadline)
    failures += failed.values()
    by_broker: dict[Broker, dict[TopicPartition, Row]] = {}
    for key, (broker, metadata) in leaders.items():
        row = (
            {**partitions[key], "current_leader_epoch": metadata.leader_epoch}
            if check_leader_epoch
            else partitions[key]
        )
        by_broker.setdefault(broker, {})[key] = row
    return by_broker


def with_timeout(api: Api, body: Body, deadline: Deadline) -> Body:
    """Return a body with `timeout_ms`, the remaining time of `deadline`, if the message has this field."""
    if all(field.name != "timeout_ms" for field in api.request.fields):
        return body
    return lambda version: {"timeout_ms": deadline.remaining_ms(), **(body(version) if callable(body) else body)}


# -- replies --------------------------------------------------------------------------------------


def _handle_reply(
    name: _CallName,
    broker: Broker,
    reply: Row,
    fields: Mapping[TopicPartition, Row],
    rows: dict[TopicPartition, Row],
    handle: Handle | None,
) -> list[KafkaError]:
    """Add the valid rows of a reply to `rows` and return the errors of the others; ignore unrequested partitions."""
    failures: list[KafkaError] = []
    missing = set(fields)
    for part in error_parts(name.api, reply):
        key = part.partition
        if key is not None and key not in missing:
            continue
        missing.discard(key)
        refused = name.error(part, broker) if part.code != ErrorCode.NONE else None
        if key is not None:
            failures += _handle_row(key, part.fields, broker, refused, rows, handle)
        elif refused is not None:
            failures.append(refused)
    if missing and not failures:
        failures.append(name.omitted(missing, broker))
    return failures


def _handle_row(
    key: TopicPartition,
    row: Row,
    broker: Broker,
    refused: BrokerError | None,
    rows: dict[TopicPartition, Row],
    handle: Handle | None,
) -> list[KafkaError]:
    """Add an accepted row to `rows`, or return its error."""
    error = refused if handle is None else handle(key, row, broker, refused)
    if error is not None:
        return [error]
    rows[key] = row
    return []


@dataclass(frozen=True)
class _CallName:
    """Name of a call in messages: "ListOffsets of orders-3 at broker:9092", "OffsetCommit for group etl"."""

    api: Api
    to: Broker | CoordinatorKey | None
    about: str

    def text(self, part: Part | None = None, broker: Broker | None = None) -> str:
        about = (part.name if part is not None else "") or self.about
        to = f" for {self.to}" if isinstance(self.to, CoordinatorKey) else ""
        return f"{self.api.name}{f' of {about}' if about else ''}{to}{f' at {broker}' if broker is not None else ''}"

    def error(self, part: Part, broker: Broker | None) -> BrokerError:
        own = f": {part.message}" if part.message else ""
        context = {**(self.to.context if isinstance(self.to, CoordinatorKey) else {}), **part.context}
        return broker_error(part.code, f"{self.text(part, broker)}{own}", api=self.api.name, **context)

    def omitted(self, partitions: Collection[TopicPartition], broker: Broker | None) -> Corrupt:
        topic, partition = min(partitions)
        missing = f"{replace(self, about='').text(None, broker)}: the reply omits {topic}-{partition}"
        return Corrupt(missing, topic=topic, partition=partition)

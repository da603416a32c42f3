"""Administrative requests about several resources, with a result or an error for each of them.

`Operations` is the base of the mixins of `Admin`: it holds the client and turns timeouts into deadlines. Runs in the
caller's thread; requests go through the shared retry loop, which repeats only the resources that failed transiently.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from protocol.base.clock import Deadline
from protocol.base.listing import CHOICES, listed
from protocol.broker_errors import ErrorCode, broker_error
from protocol.cluster.call import call, with_timeout
from protocol.cluster.client import CONTROL, COORDINATOR, Client
from protocol.cluster.coordinators import CoordinatorKey
from protocol.cluster.dispatch import is_retriable
from protocol.cluster.metadata import Broker
from protocol.errors import AdminFailed, Corrupt, KafkaError, UsageError
from protocol.kafka_terms import TopicPartition
from protocol.wire.schema import Api, Body, Route

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
Row = Mapping[str, Any]

# Retriable for consumers and producers; from a controller or coordinator they are final answers.
_FINAL = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
    ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
    ErrorCode.ELECTION_NOT_NEEDED,
    ErrorCode.REPLICA_NOT_AVAILABLE,
    ErrorCode.KAFKA_STORAGE_ERROR,
}


_SHARES = 3


class Operations:
    """The thread-safe client of an `Admin`, and its default timeout."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def _deadline(self, timeout_ms: float | None) -> Deadline:
        return self._client.deadline(timeout_ms)

    def _ask(self, api: Api, body: Body, deadline: Deadline, **options: Any) -> dict[str, Any]:
        """Send one request to the destination that the API names, as `call`."""
        return call(self._client, api, body, deadline, **options)

    def _brokers(self, node_ids: Iterable[int] | None, deadline: Deadline) -> list[Broker]:
        """Return brokers by node id, None for all; raise `UsageError` for an unknown id."""
        brokers = self._client.metadata([], deadline).brokers
        if node_ids is None:
            return list(brokers.values())
        ids = list(node_ids)
        for node_id in ids:
            if node_id not in brokers:
                names = listed([str(broker) for broker in brokers], CHOICES)
                raise UsageError(f"the cluster has no broker {node_id}; it has {names}")
        return [brokers[node_id] for node_id in ids]


class RowsByResource(dict[K, Row]):
    """Reply rows of the successful resources, and `errors` of those that failed after all retries."""

    def __init__(self) -> None:
        super().__init__()
        self.errors: dict[K, KafkaError] = {}

    def results(self, operation: str, result: Callable[[K, Row], V]) -> dict[K, V]:
        """Return `result(key, row)` of each row; raise `AdminFailed`, which names `operation`, if one failed."""
        return results_or_raise(operation, {key: result(key, row) for key, row in self.items()}, self.errors)


def results_or_raise(operation: str, results: Mapping[K, V], errors: Mapping[K, KafkaError]) -> dict[K, V]:
    """Return `results`; raise `AdminFailed` with them if there are `errors`."""
    if errors:
        texts = listed([str(error) for error in errors.values()], separator="; ")
        done = f" ({len(results)} done)" if results else ""
        raise AdminFailed(f"{operation} failed for {len(errors)}{done}: {texts}", errors=errors, results=results)
    return dict(results)


def shares(keys: Collection[K], deadline: Deadline) -> Iterator[tuple[K, Deadline]]:
    """Yield each key with a third of the time that is left, more for the last two.

    The keys are requested one by one: a silent broker leaves time for the others.
    """
    for number, key in enumerate(keys):
        yield key, deadline.at_most_ms(deadline.remaining_ms() / min(len(keys) - number, _SHARES))


def results_of_each(
    operation: str, keys: Iterable[K], deadline: Deadline, run: Callable[[K, Deadline], V]
) -> dict[K, V]:
    """Return `run(key, deadline)` of each key; raise `AdminFailed`, which names `operation`, if one failed."""
    results: dict[K, V] = {}
    errors: dict[K, KafkaError] = {}
    for key, share in shares(dict.fromkeys(keys), deadline):
        try:
            results[key] = run(key, share)
        except KafkaError as error:
            errors[key] = error
    return results_or_raise(operation, results, errors)


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Return the partition numbers by topic."""
    topics: dict[str, list[int]] = {}
    for topic, partition in partitions:
        topics.setdefault(topic, []).append(partition)
    return topics


def rows_of_partitions(
    topics: Iterable[Row], topic: str, rows: str = "partitions", partition: str = "partition_index"
) -> Iterator[tuple[TopicPartition, Row]]:
    """Yield the rows of a reply by (topic, partition).

    `topic`, `rows` and `partition` are the names of the reply's fields with the topic, its rows and their number.
    """
    for topic_row in topics:
        for row in topic_row[rows]:
            yield (topic_row[topic], row[partition]), row


def ask_each(
    client: Client,
    api: Api,
    keys: Iterable[K],
    body: Callable[[list[K]], Body],
    rows: Callable[[Row, list[K]], Iterable[tuple[K, Row]]],
    deadline: Deadline,
    *,
    to: Broker | CoordinatorKey | None = None,
    topics: Iterable[str] = (),
    error_context: Callable[[K], Mapping[str, Any]] = lambda key: {"resource": key},
    accept: Iterable[int] = (),
    **options: Any,
) -> RowsByResource[K]:
    """Send one request about all `keys`; repeat it for those that failed transiently.

    `body` returns the request about the given keys; a field `timeout_ms` is filled in. `rows` returns the rows of a
    reply by key: a row has `error_code` and may have `error_message`. `deadline` is for the whole operation. `to`: the
    broker or coordinator; by default the controller or any broker, as the API demands.

    The cached metadata of `topics` is refreshed after an error that calls for it. `error_context` returns the context
    of an error about a key, such as `{"topic": name}`. Error codes in `accept` are treated as success. `options` are
    `at_least` and `at_most`: API versions that the operation needs.

    Resources without a result when the operation ended have its error, such as `DeadlineExceeded`. Raises `KafkaError`
    if the operation failed before any resource had a result.
    """
    done: RowsByResource[K] = RowsByResource()
    pending = list(dict.fromkeys(keys))
    operation = f"{api.name} of {listed([key_text(key) for key in pending])}"
    accepted = {int(ErrorCode.NONE), *accept}

    def attempt() -> None:
        broker = _broker(client, api, to, deadline)
        request = with_timeout(api, body(list(pending)), deadline)
        if broker is None:
            reply: Row = client.ask_any(api, request, deadline, **options)
        else:
            purpose = COORDINATOR if api.route is Route.GROUP else CONTROL
            reply = client.ask(broker, api, request, deadline, purpose=purpose, **options)
        if (code := reply.get("error_code", 0)) not in accepted:
            raise _error(api, "", broker, code, reply.get("error_message"), {})
        failure: KafkaError | None = None
        for key, row in rows(reply, list(pending)):
            if key not in pending:
                continue
            if (code := row.get("error_code", 0)) in accepted:
                done[key] = row
            else:
                error = _error(api, key_text(key), broker, code, row.get("error_message"), error_context(key))
                if is_retriable(error) and code not in _FINAL:
                    failure = error
                    continue
                done.errors[key] = error
            pending.remove(key)
        if pending:
            raise failure or Corrupt(f"{operation}: the reply of {broker or 'a broker'} leaves out {pending[0]}")

    if not pending:
        return done
    key = to if isinstance(to, CoordinatorKey) else None
    try:
        client.retrying(operation, attempt, deadline, topics=topics, coordinator_of=key)
    except KafkaError as error:
        if not done and not done.errors:
            raise
        done.errors.update(dict.fromkeys(pending, error))
    return done


def _broker(client: Client, api: Api, to: Broker | CoordinatorKey | None, deadline: Deadline) -> Broker | None:
    if isinstance(to, CoordinatorKey):
        return client.coordinator(to, deadline)
    return client.controller(deadline) if to is None and api.route is Route.CONTROLLER else to


def key_text(key: Hashable) -> str:
    """Return a partition as "orders-0", an entity of several names as "user alice, client-id None"."""
    if isinstance(key, tuple):
        is_entity = all(isinstance(part, tuple) for part in key)
        return ", ".join(f"{kind} {name}" for kind, name in key) if is_entity else "-".join(map(str, key))
    return str(key)


def _error(api: Api, of: str, broker: Broker | None, code: int, message: str | None, context: Row) -> KafkaError:
    operation = api.name
    if of:
        operation += f" of {of}"
    if broker:
        operation += f" at {broker}"
    if message:
        operation += f": {message}"
    return broker_error(code, operation, api=api.name, **context)

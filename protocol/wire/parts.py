"""Place topics and partitions in a request, and find error codes in a reply, for any message schema.

A schema is analysed once. Called by the code that sends requests and handles replies. The meaning of error codes is
outside this module.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

from protocol.errors import UsageError
from protocol.wire.schema import Api, Array, Struct

# Fields that identify the subject of a row, and the key of that subject in an error's context.
_CONTEXT_KEYS = {
    "name": "topic",
    "topic": "topic",
    "topic_name": "topic",
    "partition": "partition",
    "partition_id": "partition",
    "partition_index": "partition",
    "index": "partition",
    "group_id": "group",
    "transactional_id": "transactional_id",
    "member_id": "member",
    "resource_name": "resource",
    "user": "user",
    "feature": "feature",
    "log_dir": "log_dir",
    "key": "key",
}

_NAMES = ("topic", "member", "resource", "user", "feature", "log_dir")


class Part(NamedTuple):
    """A reply as a whole, or one of its rows.

    `fields`: the decoded reply or row.
    `code`: its error code.
    `partition`: `(topic, partition)` if the row is about a partition.
    `parent_context`: context of the enclosing rows, such as the topic.
    `key_fields`: `(field, context key)` pairs of this row; `context` combines them with `parent_context`.
    """

    fields: Mapping[str, Any]
    code: int
    partition: tuple[str, int] | None
    parent_context: Mapping[str, Any]
    key_fields: tuple[tuple[str, str], ...]

    @property
    def message(self) -> str | None:
        """The broker's error message, if the row has one."""
        return self.fields.get("error_message")

    @property
    def context(self) -> dict[str, Any]:
        """The subject as an error's context: `{"topic": "orders", "partition": 3}`."""
        return {**self.parent_context, **{word: self.fields[field] for field, word in self.key_fields}}

    @property
    def name(self) -> str:
        """The subject of a row as text; empty if the row has no subject besides that of the request."""
        if self.partition is not None:
            return "{}-{}".format(*self.partition)
        context = self.context
        return str(next((context[word] for word in _NAMES if context.get(word)), ""))


def error_parts(api: Api, reply: Mapping[str, Any]) -> Iterator[Part]:
    """Yield the parts of a decoded reply that have an error code, including 0; the reply precedes its rows."""
    return _parts(_reply_plan(api.response, complete=True), [reply], {})


def partition_request(
    api: Api,
    fields: Mapping[str, Any],
    partitions: Mapping[tuple[str, int], Mapping[str, Any]],
    topic_ids: Mapping[str, bytes] | None = None,
) -> dict[str, Any]:
    """Build a request body from `fields` and the row of each (topic, partition), grouped by topic.

    `topic_ids` has the ids by name, for versions that identify topics by id.
    """
    plan = _request_plan(api)
    by_topic: dict[str, list[Any]] = {}
    for (topic, partition), row in partitions.items():
        by_topic.setdefault(topic, []).append({plan.partition: partition, **row} if plan.partition else partition)
    topics: list[dict[str, Any]] = [{plan.topic: name, plan.rows: rows} for name, rows in by_topic.items()]
    if topic_ids is not None:
        topics = [{**row, "topic_id": topic_ids[row[plan.topic]]} for row in topics]
    return {**fields, plan.topics: topics}


def with_topic_names(api: Api, reply: Mapping[str, Any], topic_ids: Mapping[str, bytes]) -> dict[str, Any]:
    """Return the reply with topic names filled in where it has only topic ids, also inside `groups`."""
    plan, names = _request_plan(api), {topic_id: name for name, topic_id in topic_ids.items()}

    def named(body: Mapping[str, Any]) -> dict[str, Any]:
        topics = [{**row, plan.topic: row[plan.topic] or names.get(row["topic_id"], "")} for row in body[plan.topics]]
        return {**body, plan.topics: topics}

    return {**reply, "groups": [named(group) for group in reply["groups"]]} if reply.get("groups") else named(reply)


def refusal_reply(api: Api, version: int, request: Mapping[str, Any], code: int) -> dict[str, Any]:
    """Build the reply to a refused request: the error code at the top, or in a row for each row of the request."""
    return _refusal(api.response, api.request, version, request, code)


class _ReplyPlan(NamedTuple):
    code: str | None
    key_fields: tuple[tuple[str, str], ...]
    partition: str | None
    inner: tuple[tuple[str, _ReplyPlan], ...]


class _RequestPlan(NamedTuple):
    topics: str
    topic: str
    rows: str
    partition: str | None  # None: a row is the partition's number alone


def _parts(plan: _ReplyPlan, rows: Iterable[Mapping[str, Any]], parent: Mapping[str, Any]) -> Iterator[Part]:
    code, keys, partition, inner = plan
    for row in rows:
        if code is not None:
            yield Part(row, row[code], (parent["topic"], row[partition]) if partition else None, parent, keys)
        for field, plan_of_rows in inner:
            yield from _parts(plan_of_rows, row[field] or (), {**parent, **{word: row[name] for name, word in keys}})


@cache
def _reply_plan(struct: Struct, complete: bool = False) -> _ReplyPlan:
    names = [field.name for field in struct.fields]
    # The first one: CreateTopics has a second, for the configuration of a topic that was created.
    code = next((name for name in names if name.endswith("error_code")), None)
    key_fields = () if complete else tuple((name, _CONTEXT_KEYS[name]) for name in names if name in _CONTEXT_KEYS)
    inner = [(name, _reply_plan(of)) for name, of in _arrays(struct) if isinstance(of, Struct)]
    inner = [(name, plan) for name, plan in inner if plan.code or plan.inner]
    return _ReplyPlan(code, key_fields, _field_with_key(struct, "partition"), tuple(inner))


def _refusal(response: Struct, request: Any, version: int, requested: Any, code: int) -> dict[str, Any]:
    fields = [field for field in response.fields if field.present(version)]
    refused: dict[str, Any] = {field.name: None for field in fields if field.name == "error_message"}
    place = next((field.name for field in fields if field.name.endswith("error_code")), None)
    if place is not None:
        return {**refused, place: code}
    arrays = [(name, of) for name, of in _arrays(request) if requested.get(name)]
    for name, row in _arrays(response):
        if any(field.name == name for field in fields) and isinstance(row, Struct) and any(_reply_plan(row)[::3]):
            refused[name] = [
                {**_identity(row, of, subject), **_refusal(row, of, version, subject, code)}
                for array, of in arrays
                for subject in requested[array]
            ]
    return refused


def _identity(row: Struct, request: Any, subject: Any) -> dict[str, Any]:
    """Return the fields of a reply's row that name the subject of a request's row."""
    key = next((field.name for field in row.fields if field.name in _CONTEXT_KEYS), "")
    if not isinstance(request, Struct):
        return {key: subject}
    identity = {name: subject[name] for name, _ in _shapes(request) & _shapes(row)}
    if key and key not in identity:  # such as `user`, in the request `name`
        identity[key] = next(subject[field.name] for field in request.fields if field.name in _CONTEXT_KEYS)
    return identity


def _shapes(struct: Struct) -> set[tuple[str, Any]]:
    """Return the name and the type of each field; an array of structs as the names of their fields."""
    arrays = dict(_arrays(struct))
    inner = {name: tuple(field.name for field in of.fields) for name, of in arrays.items() if isinstance(of, Struct)}
    return {(field.name, inner.get(field.name, field.type)) for field in struct.fields}


@cache
def _request_plan(api: Api) -> _RequestPlan:
    for topics, of_topics in _arrays(api.request):
        topic = _field_with_key(of_topics, "topic")
        for rows, row in _arrays(of_topics) if topic else ():
            partition = _field_with_key(row, "partition")
            if partition or row == "int32":
                return _RequestPlan(topics, str(topic), rows, partition)
    raise UsageError(f"{api.name} is not about partitions")


def _arrays(struct: Any) -> list[tuple[str, Any]]:
    fields = struct.fields if isinstance(struct, Struct) else ()
    return [(field.name, field.type.of) for field in fields if isinstance(field.type, Array)]


def _field_with_key(struct: Any, word: str) -> str | None:
    fields = struct.fields if isinstance(struct, Struct) else ()
    return next((field.name for field in fields if _CONTEXT_KEYS.get(field.name) == word), None)

"""The offsets in Spark's checkpoint: the end of a batch per partition, and the facts that a replay needs. Sans-IO.

Defines the JSON: the keys of Spark's own Kafka connector, `{"orders": {"0": 1200}}`, plus keys that cannot be topic
names, such as `@ids`. Used by the planning modules and the readers.
"""

from __future__ import annotations

import ast
import base64
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from protocol.cluster.metadata import topic_id_text
from protocol.errors import ConfigurationError
from protocol.kafka_terms import NO_LEADER_EPOCH, NO_TOPIC_ID, TopicPartition
from protocol.position import Position
from spark_kafka_source.options.partitions import by_partition, partition_name, whole_number

JsonDict = dict[str, dict[str, Any]]

_IDS, _EPOCHS, _JOINED, _LEADERS, _SKIPPED = "@ids", "@epochs", "@joined", "@leaders", "@skipped"
# `skipped` of partitions without an end. Older versions of this package refuse the key instead of dropping it.
_SKIPPED_DELETED = "@skippedDeleted"
_SCHEMAS, _CLUSTER, _GROUP = "@schemas", "@cluster", "@group"
_PARTITION_KEYS = (_EPOCHS, _JOINED, _LEADERS, _SKIPPED, _SKIPPED_DELETED)

STARTING_OFFSETS: JsonDict = {"@startingOffsets": {}}
"""The start of a query that has read nothing yet. The end of its first batch has the real start offsets."""


@dataclass(frozen=True)
class Offsets:
    """The end of a batch.

    `positions`: the position after the batch (Kafka's "next to read").
    `ids`: topic ids of the positions, without unknown ones. A different id later means that the topic was deleted and
    recreated. Before the first batch of a query that is no member also those of topics without a position.
    `joined`: first offset of the batch in partitions that its start offsets lack (all of them in a query's first
    batch), or that lost records at or before their position.
    `leaders`: node id of the leader when the batch was planned; only with `maxInputPartitions`, so that a replay
    combines the same ranges.
    `skipped`: number of offsets that the query has skipped so far because they were no longer in the log when their
    batch was planned. Includes deleted partitions: the sum never decreases.
    `schemas`: version of the subject in a schema registry that a decoded column has, by column.
    `cluster_id`: the cluster of the logs; None if its brokers have no id, and in offsets of older versions and of
    Spark's connector.
    `group`: the group that the query commits to. Only in `reportLatestOffset`, never in a checkpoint.
    """

    positions: Mapping[TopicPartition, Position]
    ids: Mapping[str, bytes] = field(default_factory=dict)
    joined: Mapping[TopicPartition, int] = field(default_factory=dict)
    leaders: Mapping[TopicPartition, int] = field(default_factory=dict)
    skipped: Mapping[TopicPartition, int] = field(default_factory=dict)
    schemas: Mapping[str, int] = field(default_factory=dict)
    cluster_id: str | None = None
    group: str | None = None

    @classmethod
    def at(cls, positions: Mapping[TopicPartition, Position], **facts: Any) -> Offsets:
        """Return the end of a batch at these positions; `facts` are other attributes."""
        return cls(positions, topic_ids({key: position.topic_id for key, position in positions.items()}), **facts)

    @cached_property
    def ends(self) -> Mapping[TopicPartition, int]:
        """Return the offset of the first record after the batch."""
        return {key: position.offset for key, position in self.positions.items()}

    def to_json_dict(self) -> JsonDict:
        """Return the dict for the checkpoint's JSON. Equal offsets give equal JSON; empty `@` keys are left out."""
        document: JsonDict = _nest(self.ends)
        epochs = {key: position.leader_epoch for key, position in self.positions.items() if position.leader_epoch >= 0}
        if self.ids:
            document[_IDS] = {topic: topic_id_text(self.ids[topic]) for topic in sorted(self.ids)}
        present = {key: count for key, count in self.skipped.items() if key in self.ends}
        deleted = {key: count for key, count in self.skipped.items() if key not in self.ends}
        numbers_by_key = (epochs, self.joined, self.leaders, present, deleted)
        document.update(
            {key: _nest(numbers) for key, numbers in zip(_PARTITION_KEYS, numbers_by_key, strict=True) if numbers}
        )
        if self.schemas:
            document[_SCHEMAS] = dict(self.schemas)
        if self.cluster_id is not None:
            document[_CLUSTER] = {"id": self.cluster_id}
        if self.group is not None:
            document[_GROUP] = {"id": self.group}
        return document

    @classmethod
    def from_json_dict(cls, document: object) -> Offsets:
        """Parse the output of `to_json_dict` or of Spark's own Kafka connector (without `@` keys).

        Raises `ConfigurationError` for offsets of another source.
        """
        if not isinstance(document, Mapping):
            raise _foreign_offsets("they are not a JSON object")
        special_keys = (_IDS, _SCHEMAS, _CLUSTER, _GROUP, *_PARTITION_KEYS)
        unknown = [key for key in document if str(key).startswith("@") and key not in special_keys]
        if unknown:
            raise _foreign_offsets(f"the key {unknown[0]!r} is unknown; a newer version wrote it")
        ends = _flatten({key: value for key, value in document.items() if not str(key).startswith("@")}, "")
        ids = {topic: _topic_id(text) for topic, text in _require_object(document.get(_IDS, {}), _IDS).items()}
        numbers = {key: _flatten(document.get(key, {}), key) for key in _PARTITION_KEYS}
        epochs, joined, leaders, skipped, deleted = numbers.values()
        without_end: dict[str, set[Any]] = {key: numbers[key].keys() - ends.keys() for key in _PARTITION_KEYS[:-1]}
        for key, extra in {_IDS: ids.keys() - {topic for topic, _ in ends}, **without_end}.items():
            if extra:
                raise _foreign_offsets(f"{key} names {sorted(map(str, extra))[0]}, which has no end offset")
        for tp, start in joined.items():
            if start > ends[tp]:
                raise _foreign_offsets(f"{_JOINED} begins {partition_name(tp)} at {start}, after its end {ends[tp]}")
        versions = _require_object(document.get(_SCHEMAS, {}), _SCHEMAS)
        schemas = {name: _version(number) for name, number in versions.items()}
        names = (_id(document, key) for key in (_CLUSTER, _GROUP))
        positions = {
            key: Position(end, epochs.get(key, NO_LEADER_EPOCH), topic_id=ids.get(key[0], NO_TOPIC_ID))
            for key, end in ends.items()
        }
        return cls(positions, ids, joined, leaders, {**deleted, **skipped}, schemas, *names)

    @classmethod
    def from_progress(cls, offset: object) -> Offsets:
        """Parse `endOffset` or `latestOffset` of a query's progress: an object in the progress' JSON.

        In a `SourceProgress` it is a text: JSON, but the repr of a dict in PySpark 4.1, and over Spark Connect before
        4.1. Raises `ConfigurationError` if the offset belongs to another source.
        """
        return cls.from_json_dict(_parsed(offset) if isinstance(offset, str) else offset)

    def require_cluster(self, cluster_id: str | None, bootstrap_servers: str) -> None:
        """Raise `ConfigurationError` if these are offsets of another cluster; an unknown id is no evidence."""
        if None in (self.cluster_id, cluster_id) or self.cluster_id == cluster_id:
            return
        raise ConfigurationError(
            f"The checkpoint has offsets of cluster {self.cluster_id}, but bootstrap.servers={bootstrap_servers} is "
            f"cluster {cluster_id}, where other records have these offsets. Nothing is read or committed. If this is "
            "another query, give it its own checkpointLocation. To move the query to this cluster, use a new "
            "checkpointLocation, with startingOffsets, or with group offsets that were committed in this cluster",
            settings=("bootstrap.servers",),
        )

    @property
    def precedes_first_batch(self) -> bool:
        """True for the offsets of a member that has not been assigned any partition since the query's start.

        The end of a batch has the id of the cluster, also if all topics were deleted or recreated.
        """
        return not self.ends and self.cluster_id is None

    @property
    def is_batch_end(self) -> bool:
        """True for the end of a batch; the offsets of `reportLatestOffset` have only ends and topic ids."""
        return bool(self.joined or self.leaders or self.skipped or self.has_epochs)

    @property
    def has_epochs(self) -> bool:
        """True if the leader epoch of a position is known, as in checkpoints of this source."""
        return any(position.leader_epoch >= 0 for position in self.positions.values())


def _parsed(text: str) -> object:
    """Parse JSON or the repr of a literal; return None for any other text."""
    try:
        return json.loads(text)
    except ValueError:
        with suppress(ValueError, SyntaxError, MemoryError, RecursionError):
            return ast.literal_eval(text)
    return None


class OffsetsParser:
    """Parses the offsets of a query's calls: Spark passes the same ones to up to four calls. Not thread-safe."""

    def __init__(self) -> None:
        self._last: tuple[tuple[object, Offsets], ...] = ()

    def parse(self, document: object) -> Offsets:
        """Return `Offsets.from_json_dict(document)`; the same object for one of the last two documents."""
        for last_document, last_offsets in self._last:
            if document == last_document:
                return last_offsets
        offsets = Offsets.from_json_dict(document)
        self._last = (*self._last[-1:], (document, offsets))
        return offsets


def topic_ids(partitions: Mapping[TopicPartition, bytes]) -> dict[str, bytes]:
    """Return topic ids by topic, without zero ids (brokers before Kafka 2.8)."""
    return {topic: topic_id for (topic, _), topic_id in partitions.items() if topic_id != NO_TOPIC_ID}


def _nest(numbers: Mapping[TopicPartition, int]) -> JsonDict:
    nested: JsonDict = {}
    for topic, partition in sorted(numbers):
        nested.setdefault(topic, {})[str(partition)] = numbers[topic, partition]
    return nested


def _flatten(document: object, key: str) -> dict[TopicPartition, int]:
    try:
        return by_partition(document, whole_number)
    except ValueError as error:
        raise _foreign_offsets(f"{key}: {error}" if key else str(error)) from error


def _id(document: Mapping[str, Any], key: str) -> str | None:
    name = _require_object(document.get(key, {}), key).get("id")
    if not isinstance(name, str | None):
        raise _foreign_offsets(f"{key} has the id {name!r}, which is no text")
    return name


def _require_object(value: object, key: str) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise _foreign_offsets(f"{key} is not a JSON object")
    return value


def _version(number: object) -> int:
    if isinstance(number, int) and not isinstance(number, bool) and number > 0:
        return number
    raise _foreign_offsets(f"{_SCHEMAS} has {number!r}, which is no version")


def _topic_id(text: object) -> bytes:
    if isinstance(text, str) and re.fullmatch(r"[A-Za-z0-9_-]{22}", text):
        topic_id = base64.urlsafe_b64decode(text + "==")
        if topic_id_text(topic_id) == text:
            return topic_id
    raise _foreign_offsets(f"{_IDS} has {text!r}, which is no topic id")


def _foreign_offsets(why: str) -> ConfigurationError:
    return ConfigurationError(
        f"The checkpoint's offsets are not those of a Kafka source: {why}. "
        "Use the checkpointLocation that belongs to this query, or a new one."
    )

"""The partitions that a query may read in one trigger, and its positions in them. Sans-IO.

A topic may be deleted and created again between any two requests, and brokers learn of that at different times. This
module decides which positions count in the topic that exists now; planning, comparing and committing use no others.
`driver/trigger.py` sends the requests.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass, field, replace

from protocol.cluster.metadata import topic_id_text
from protocol.kafka_terms import NO_TOPIC_ID, TopicIds, TopicPartition
from protocol.position import Position, is_another_topic
from spark_kafka_source.plan.offsets import Offsets, topic_ids


@dataclass(frozen=True)
class QueryAssignment:
    """The partitions that a query may read in one trigger: all of its topics, or those that its group has assigned.

    `readable`: topic id (16 bytes, zeros before Kafka 2.8) of each partition that a batch may read.
    `starts`: position at which a partition was assigned, until a batch that contains it is complete, it is revoked, or
    its topic is recreated. A partition that was never read and is not in here is read from its log start offset. So is
    a partition of a topic that was recreated since the last batch, unless it was assigned at a position in the new one.
    `kept`: other partitions whose position is kept, since another member of the group reads them or the topic is
    awaited. Any other partition that was read before is a loss: it was deleted, or the group has assigned it in
    the topic that was read, while a new topic has its name.
    `existing_ids`: ids of the topics that exist, also without a readable partition, but for those about which brokers
    do not agree.
    `awaited`: topics that may have been recreated, with the reason why nothing can be read from them yet.
    """

    readable: Mapping[TopicPartition, bytes]
    starts: Mapping[TopicPartition, Position] = field(default_factory=dict)
    kept: Collection[TopicPartition] = frozenset()
    existing_ids: Mapping[str, bytes] = field(default_factory=dict)
    awaited: Mapping[str, str] = field(default_factory=dict)

    def without_starts(self, partitions: Collection[TopicPartition]) -> QueryAssignment:
        """Return a copy in which the positions of these partitions in `starts` no longer apply."""
        return replace(self, starts={key: start for key, start in self.starts.items() if key not in partitions})

    def without(self, partitions: Collection[TopicPartition]) -> QueryAssignment:
        """Return a copy without these partitions among the readable ones."""
        return replace(
            self, readable={key: topic_id for key, topic_id in self.readable.items() if key not in partitions}
        )

    def recreated(self, completed: Offsets) -> dict[str, bytes]:
        """Return the new ids of topics that were deleted and recreated since they were read.

        Topics whose partitions are all kept are left out.
        """
        ids = self.existing_ids or topic_ids(self.readable)
        changed = {topic for topic, topic_id in completed.ids.items() if topic in ids and ids[topic] != topic_id}
        if not changed:
            return {}
        missing = completed.ends.keys() - self.readable.keys() - set(self.kept)
        return {topic: ids[topic] for topic in sorted(changed & {topic for topic, _ in (*self.readable, *missing)})}

    def positions(self, completed: Offsets) -> Mapping[TopicPartition, Position]:
        """Return the position in each partition that was read or assigned at a position, readable or not.

        The later of both: this query has delivered up to `completed`, the previous owner up to the assigned position.
        An assigned position in another topic than `completed` counts alone. `outdated` positions are left out: no
        batch, no comparison and no commit may use them. `completed` is the batch before this assignment; see `after`
        for a later one.
        """
        positions, outdated = self._positions_in_any_topic(completed), self.outdated(completed)
        return {key: at for key, at in positions.items() if key not in outdated} if outdated else positions

    def outdated(self, completed: Offsets) -> Mapping[TopicPartition, Position]:
        """Return the positions in the deleted topics of recreated ones, also those without a topic id."""
        recreated = self.recreated(completed)
        positions = self._positions_in_any_topic(completed).items() if recreated else ()
        return {key: at for key, at in positions if key[0] in recreated and at.topic_id != self.readable.get(key)}

    def _positions_in_any_topic(self, completed: Offsets) -> Mapping[TopicPartition, Position]:
        ends = completed.positions
        starts = {
            key: ends[key].later(start) if key in ends and ends[key].is_in(start.topic_id) else start
            for key, start in self.starts.items()
        }
        return {**ends, **starts} if starts else ends

    def after(self, planned: Offsets) -> QueryAssignment:
        """Return the assignment after a batch that was planned with it: its ends replace the assigned positions.

        An end is lower than the assigned position if the log was truncated before it.
        """
        return self.without_starts(planned.ends.keys())


def suspected_topics(
    existing: TopicIds, assigned_ids: TopicIds, completed: Offsets, before: Set[str] = frozenset()
) -> set[str]:
    """Return topics that seem recreated by the reply of one broker; `Client.ids_at_brokers` tells what others say.

    A group that has assigned a partition of the topic by the new id confirms it. Topics of which this query has neither
    a partition nor, as it seems, lost one are left out. Arguments as in `query_assignment`.

    `before`: topics about which brokers did not agree in the last trigger. They are suspected also by the reply of a
    broker that still names the topic that was read.
    """
    ids = topic_ids(existing)
    changed = {topic for topic in ids.keys() & completed.ids.keys() if ids[topic] != completed.ids[topic]}
    if not changed:
        return set(before & ids.keys())
    assigned, missing = assigned_ids.keys() & existing.keys(), completed.ends.keys() - existing.keys()
    confirmed = changed & {key[0] for key in assigned if assigned_ids[key] == existing[key]}
    return (changed & {topic for topic, _ in (*assigned, *missing)} | before & ids.keys()) - confirmed


def query_assignment(
    existing: TopicIds, assigned_ids: TopicIds, completed: Offsets, ids_at_brokers: Mapping[str, Set[bytes]]
) -> QueryAssignment:
    """Return the assignment of a query, without positions.

    `existing`: the partitions of the subscribed topics, with the ids of their topics.
    `assigned_ids`: the partitions that the query should read, with the topic ids by which its group has assigned them;
    zeros if it assigns names, or without a group.
    `completed`: end of the last batch.
    `ids_at_brokers`: ids of the `suspected_topics`, and of those that a leader's reply contradicts, at several brokers.
    If they differ, or too few brokers answer, the topic is awaited.
    """
    ids = topic_ids(existing)
    disputed = {}
    for topic, reported in ids_at_brokers.items():
        if not reported:
            disputed[topic] = "too few brokers answer whether it was recreated"
        elif reported != {ids[topic]}:
            disputed[topic] = f"brokers do not agree whether it was recreated ({_ids_text(reported)})"
    awaited = dict(disputed)
    readable, in_deleted_topic = {}, set()
    for key, assigned_id in assigned_ids.items():
        if key not in existing or key[0] in disputed:
            continue
        if not is_another_topic(existing[key], assigned_id):
            readable[key] = existing[key]
            continue
        awaited[key[0]] = f"the group has not assigned the recreated topic yet ({_ids_text([existing[key]])})"
        if completed.ids.get(key[0]) == assigned_id:
            in_deleted_topic.add(key)
    kept = existing.keys() - readable.keys() - in_deleted_topic
    if disputed:
        kept |= {key for key in completed.ends if key[0] in disputed}
        ids = {topic: topic_id for topic, topic_id in ids.items() if topic not in disputed}
    return QueryAssignment(readable, {}, kept, ids, awaited)


def _ids_text(ids: Collection[bytes]) -> str:
    texts = sorted(topic_id_text(topic_id) for topic_id in ids if topic_id != NO_TOPIC_ID)
    return f"topic id {' or '.join([*texts, *(['none'] if NO_TOPIC_ID in ids else [])])}"

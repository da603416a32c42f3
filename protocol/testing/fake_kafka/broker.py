"""One broker: its replicas, the cluster image that it has received, and the partitions that it leads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from protocol.broker_errors import ErrorCode
from protocol.testing.fake_kafka.controller import Image, PartitionImage, TopicImage
from protocol.testing.fake_kafka.fetch_sessions import FetchSessions
from protocol.testing.fake_kafka.log import Log
from protocol.testing.fake_kafka.requests import Body, Refused, row_of
from protocol.wire.schema import NO_UUID, Api

if TYPE_CHECKING:
    from protocol.testing.fake_kafka.cluster import Cluster


@dataclass
class Replica:
    """A broker's copy of one partition. All in-sync replicas have the records before `high_watermark`."""

    log: Log = field(default_factory=Log)
    high_watermark: int = 0

    @property
    def last_stable_offset(self) -> int:
        """Offset before which all transactions are complete."""
        return self.log.last_stable_offset(self.high_watermark)


@dataclass(frozen=True)
class Hosted:
    """A partition with a replica on a broker, as that broker sees it."""

    topic: TopicImage
    number: int
    partition: PartitionImage
    replica: Replica

    @property
    def log(self) -> Log:
        """The log of the replica."""
        return self.replica.log


class Broker:
    """One broker.

    Attributes
    ----------
    running
        The broker accepts connections.
    silent_since_s
        Time since which the host sends nothing, as after a network failure.
    isolated
        Decisions of the controller do not reach the broker, not even its own fencing.
    """

    def __init__(self, cluster: Cluster, node_id: int) -> None:
        self.cluster = cluster
        self.node_id = node_id
        self.image = Image()
        self.replicas: dict[tuple[bytes, int], Replica] = {}
        self.sessions = FetchSessions()
        self.running = True
        self.isolated = False
        self.silent_since_s: float | None = None

    @property
    def silent(self) -> bool:
        """True if the host sends nothing."""
        return self.silent_since_s is not None

    # -- replicas -----------------------------------------------------------------------------

    def apply(self, image: Image) -> None:
        """Apply changes of the image: new replicas, removed replicas, and epochs in which the broker leads."""
        self.image = image
        hosted = {}
        for topic in image.topics.values():
            for number, partition in enumerate(topic.partitions):
                if self.node_id in partition.replicas:
                    replica = self.replicas.get((topic.topic_id, number)) or Replica()
                    hosted[topic.topic_id, number] = replica
                    if partition.leader == self.node_id:
                        replica.log.begin_epoch(partition.leader_epoch)
        self.replicas = hosted

    def follow(self, led: Hosted) -> bool:
        """Copy the leader's log, and truncate records that the leader does not have; return True if successful."""
        topic = self.image.topics.get(led.topic.name)
        if not self.running or self.silent or topic is None or topic.topic_id != led.topic.topic_id:
            return False
        replica = self.replicas.get((topic.topic_id, led.number))
        if replica is None or topic.partitions[led.number].leader_epoch != led.partition.leader_epoch:
            return False
        if replica.log != led.log:
            replica.log = led.log.copy()
        replica.high_watermark = min(led.replica.high_watermark, led.log.end_offset)
        return True

    def leads(self) -> Iterator[Hosted]:
        """Return all partitions that the broker leads."""
        for topic in self.image.topics.values():
            for number, partition in enumerate(topic.partitions):
                if partition.leader == self.node_id:
                    yield Hosted(topic, number, partition, self.replicas[topic.topic_id, number])

    # -- requests about partitions ----------------------------------------------------------------

    def topic(self, asked: Body) -> TopicImage:
        """Return the topic of a request's row, by its id or its name. Raises `Refused`."""
        topic_id = bytes(asked.get("topic_id", NO_UUID))
        name = asked.get("name") or asked.get("topic")
        found = self.image.topics.get(name) if name else self.image.topic_of_id(topic_id)
        if found is None:
            raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if name else ErrorCode.UNKNOWN_TOPIC_ID)
        return found

    def hosted(self, topic: TopicImage, number: int, epoch: int = -1) -> Hosted:
        """Return the partition if the broker has a replica and knows no other epoch. Raises `Refused`."""
        if not 0 <= number < len(topic.partitions):
            raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        partition = topic.partitions[number]
        replica = self.replicas.get((topic.topic_id, number))
        if replica is None:
            raise Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if 0 <= epoch < partition.leader_epoch:
            raise Refused(ErrorCode.FENCED_LEADER_EPOCH)
        if epoch > partition.leader_epoch:
            raise Refused(ErrorCode.UNKNOWN_LEADER_EPOCH)
        return Hosted(topic, number, partition, replica)

    def led(self, topic: TopicImage, number: int, epoch: int = -1) -> Hosted:
        """Return the partition if the broker leads it. Raises `Refused`."""
        found = self.hosted(topic, number, epoch)
        if found.partition.leader != self.node_id:
            raise Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return found

    def row(
        self, api: Api, asked: Body, number: int, act: Callable[[TopicImage], Body], *, key: str, refused: Body
    ) -> Body:
        """Return a partition's row of a reply: the result of `act`, or the error with the fields `refused`.

        `key` is the name of the field with the partition's number.
        """

        def unless_refused() -> Body:
            name = asked.get("name") or asked.get("topic")
            if name:
                # Before the topic is looked up: others must not learn whether it exists.
                self.cluster.authorizer.require(api, "Topic", name)
            topic = self.topic(asked)
            self.cluster.authorizer.require(api, "Topic", topic.name)
            self.cluster.faults.refuse(api, self.node_id, (topic.name, number))
            return act(topic)

        row = row_of(unless_refused, **{key: number})
        return {**refused, **row} if row["error_code"] else row

    def rows(
        self,
        api: Api,
        topics: Iterable[Body],
        act: Callable[[TopicImage, Body], Body],
        *,
        parts: str = "partitions",
        key: str = "partition_index",
        answers: str = "partitions",
        refused: Body | None = None,
    ) -> list[Body]:
        """Return the topics of a reply, with the result of `act` for each partition.

        `parts` and `answers` are the names of the fields with the partitions' rows.
        """

        def row(asked: Body, part: Body) -> Body:
            return self.row(api, asked, part[key], lambda topic: act(topic, part), key=key, refused=refused or {})

        return [{**named(asked), answers: [row(asked, part) for part in asked[parts]]} for asked in topics]

    def newer_leaders(self, topics: Sequence[Body], answers: str, key: str) -> list[Body]:
        """Add the current leader to rows of partitions that moved to another broker; return the leaders' addresses."""
        leaders = set()
        for asked in topics:
            for row in asked[answers]:
                if row["error_code"] in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH):
                    partition = self.topic(asked).partitions[row[key]]
                    row["current_leader"] = {"leader_id": partition.leader, "leader_epoch": partition.leader_epoch}
                    leaders.add(partition.leader)
        return self.cluster.endpoints(leaders)


def named(asked: Body) -> Body:
    """Return a request's reference to a topic: its name, its id, or both."""
    return {key: asked[key] for key in ("topic", "name", "topic_id") if key in asked}

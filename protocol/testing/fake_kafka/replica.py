"""The replicas of partitions on brokers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from protocol.testing.fake_kafka.controller import PartitionImage, TopicImage
from protocol.testing.fake_kafka.log import Log


@dataclass
class Replica:
    """A broker's copy of one partition. All in-sync replicas have the records before `high_watermark`."""

    log: Log = field(default_factory=Log)
    high_watermark: int = 0

    @property
    def last_stable_offset(self) -> int:
        """Offset before which all transactions are complete."""
        return self.log.last_stable_offset(self.high_watermark)


class Hosted(NamedTuple):
    """A partition with a replica on a broker, as that broker sees it."""

    topic: TopicImage
    number: int
    partition: PartitionImage
    replica: Replica

    @property
    def log(self) -> Log:
        """The log of the replica."""
        return self.replica.log

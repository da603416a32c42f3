"""The ledger of a query: its newest start, and the decided transactions of its last batch. Sans-IO.

Stored as committed offsets of a group with the name `Query.transactional_id`, so that it is written in a transaction
and fenced like other writes. The offsets belong to partition 0 of one topic and, for a long ledger, to the next ones.
The offset is the number of the next batch; the metadata is a piece of the ledger's text.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from protocol.errors import Corrupt, UsageError
from protocol.group.commits.committed_offsets import CommittedOffset
from protocol.kafka_terms import TopicPartition
from protocol.producer.idempotence import ProducerIdentity

# Brokers take 4,096 bytes of metadata by default (`offset.metadata.max.bytes`).
_PIECE_BYTES = 4_000
_STARTS_KEPT = 20


@dataclass(frozen=True)
class Ledger:
    """The decisions of a query.

    `topic`: topic of the offsets; the tasks' markers use its partition 0, too.
    `starts`: Spark's run ids of the query's last 20 starts, the newest last; only the newest may write.
    `batch_id`: the last decided batch; -1: none.
    `task_count`: number of the batch's tasks. Only tasks with rows have a transaction.
    `transactions`: identity of each task's transaction.
    """

    topic: str
    starts: tuple[str, ...] = ()
    batch_id: int = -1
    task_count: int = 0
    transactions: Mapping[int, ProducerIdentity] = field(default_factory=dict)

    @property
    def start_id(self) -> str:
        """The newest start."""
        return self.starts[-1] if self.starts else ""

    def is_fenced(self, start_id: str) -> bool:
        """Return True if `start_id` is in `starts` and is not the newest; False for an unknown start."""
        return start_id in self.starts[:-1]

    def started(self, start_id: str) -> Ledger:
        """Return the ledger with a new start; the oldest is removed if there are more than 20."""
        return replace(self, starts=(*self.starts, start_id)[-_STARTS_KEPT:])

    def decided(self, batch_id: int, task_count: int, transactions: Mapping[int, ProducerIdentity]) -> Ledger:
        """Return the ledger with a decided batch."""
        return replace(self, batch_id=batch_id, task_count=task_count, transactions=transactions)

    @property
    def marker_key(self) -> TopicPartition:
        """The partition of the tasks' markers."""
        return self.topic, 0


def to_offsets(ledger: Ledger, partition_count: int) -> dict[TopicPartition, CommittedOffset]:
    """Return the offsets to commit. Raises `UsageError` if the ledger needs more partitions than the topic has."""
    body = {"starts": ledger.starts, "tasks": ledger.task_count, "transactions": _packed(ledger.transactions)}
    text = json.dumps(body, separators=(",", ":"))
    pieces = [text[at : at + _PIECE_BYTES] for at in range(0, len(text), _PIECE_BYTES)]
    if len(pieces) > partition_count:
        raise UsageError(
            f"exactly-once with {ledger.task_count} tasks needs {len(pieces)} partitions of topic {ledger.topic} to "
            f"record the transactions of a batch, and the topic has {partition_count}. Write with fewer tasks: "
            "coalesce() before writeStream."
        )
    return {
        (ledger.topic, number): CommittedOffset(ledger.batch_id + 1, metadata=f"{number + 1}/{len(pieces)} {piece}")
        for number, piece in enumerate(pieces)
    }


def from_offsets(offsets: Mapping[TopicPartition, CommittedOffset]) -> Ledger | None:
    """Return the ledger, None if there is none yet. Raises `Corrupt` for offsets of another origin."""
    if not offsets:
        return None
    # There may be more offsets: pieces of a longer ledger, or a ledger at another topic, written while the user could
    # not read this one.
    topic = max(offsets, key=lambda key: (key[1] == 0, offsets[key].offset, key))[0]
    try:
        first = offsets[topic, 0]
        count = int(first.metadata.partition(" ")[0].partition("/")[2])
        text = "".join(offsets[topic, number].metadata.partition(" ")[2] for number in range(count))
        body = json.loads(text)
        starts, task_count = body["starts"], body["tasks"]
        if not isinstance(task_count, int) or not isinstance(starts, list):
            raise ValueError(f"starts {starts!r}, tasks {task_count!r}")
        if not all(isinstance(start, str) for start in starts):
            raise ValueError(f"starts {starts!r}")
        return Ledger(topic, tuple(starts), first.offset - 1, task_count, _unpacked(body["transactions"]))
    except (KeyError, TypeError, ValueError, zlib.error) as error:
        raise Corrupt(
            f"the offsets at topic {topic} are not a ledger of an exactly-once sink: {error!r}. Does another "
            "application use the group whose name is transactionalIdPrefix and the query's id?"
        ) from error


def _packed(transactions: Mapping[int, ProducerIdentity]) -> str:
    """Pack tasks, producer ids and epochs as differences, which are mostly equal: ids are consecutive."""
    rows = [(task, identity.producer_id, identity.producer_epoch) for task, identity in sorted(transactions.items())]
    columns = np.array(rows, "<i8").reshape(-1, 3).T
    return base64.b64encode(zlib.compress(np.diff(columns, prepend=0).tobytes())).decode()


def _unpacked(text: str) -> dict[int, ProducerIdentity]:
    differences = np.frombuffer(zlib.decompress(base64.b64decode(text)), "<i8").reshape(3, -1)
    return {task: ProducerIdentity(*identity) for task, *identity in np.cumsum(differences, axis=1).T.tolist()}

"""A query's ledger: which start of it writes, and which transactions of its last batch are to be committed.

Kept as committed offsets of a group that is named as the query (`query.Query.transactional_id`), so that it is written
in a transaction and fenced like everything else. One topic holds the keys: the ledger lies at its partition 0 and, if
it is long, on at the next ones. The offset is the number of the next batch, the metadata a piece of the ledger's text.

Pure: a `Ledger` to committed offsets and back.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from protocol.errors import Corrupt, UsageError
from protocol.group.committed_offsets import CommittedOffset
from protocol.kafka_terms import TopicPartition
from protocol.producer.idempotence import ProducerIdentity

# Brokers take 4,096 bytes of metadata by default (`offset.metadata.max.bytes`).
_PIECE_BYTES = 4_000
_STARTS_KEPT = 20


@dataclass(frozen=True)
class Ledger:
    """What is decided of a query.

    Attributes
    ----------
    topic : holds the keys; markers of tasks lie at its partition 0, too.
    starts : Spark's run ids of the query's starts, the newest last: that one alone may write.
    batch_id : the last batch that was decided, -1: none.
    task_count : how many tasks it had. Those with rows have a transaction.
    transactions : of these, by task: under which identity its transaction was written, and is to be committed.
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

    def is_superseded(self, start_id: str) -> bool:
        """Whether a newer start of the query has come after this one."""
        return start_id in self.starts[:-1]

    def started(self, start_id: str) -> Ledger:
        return replace(self, starts=(*self.starts, start_id)[-_STARTS_KEPT:])

    def decided(self, batch_id: int, task_count: int, transactions: Mapping[int, ProducerIdentity]) -> Ledger:
        return replace(self, batch_id=batch_id, task_count=task_count, transactions=transactions)

    @property
    def marker_key(self) -> TopicPartition:
        return self.topic, 0


def to_offsets(ledger: Ledger, partition_count: int) -> dict[TopicPartition, CommittedOffset]:
    """The offsets to commit; `partition_count` is that of its topic. Raises `UsageError` if it does not fit there."""
    body = {"starts": ledger.starts, "tasks": ledger.task_count, "transactions": _packed(ledger.transactions)}
    text = json.dumps(body, separators=(",", ":"))
    pieces = [text[at : at + _PIECE_BYTES] for at in range(0, len(text), _PIECE_BYTES)]
    if len(pieces) > partition_count:
        raise UsageError(
            f"exactly-once with {ledger.task_count} tasks needs {len(pieces)} partitions of topic {ledger.topic} to "
            f"write down which transactions a batch has, and there are {partition_count}. Write with fewer tasks: "
            "coalesce() before writeStream."
        )
    return {
        (ledger.topic, number): CommittedOffset(ledger.batch_id + 1, metadata=f"{number + 1}/{len(pieces)} {piece}")
        for number, piece in enumerate(pieces)
    }


def from_offsets(offsets: Mapping[TopicPartition, CommittedOffset]) -> Ledger | None:
    """The ledger; None: there is none yet. Raises `Corrupt` for offsets that nobody has committed here."""
    if not offsets:
        return None
    # A longer one of before has left its other pieces behind.
    topic, _ = min(offsets)
    try:
        first = offsets[topic, 0]
        count = int(first.metadata.partition(" ")[0].partition("/")[2])
        text = "".join(offsets[topic, number].metadata.partition(" ")[2] for number in range(count))
        body = json.loads(text)
        starts, task_count = body["starts"], body["tasks"]
        if not isinstance(task_count, int) or not isinstance(starts, list):
            raise ValueError(f"starts {starts!r}, tasks {task_count!r}")
        if not all(isinstance(each, str) for each in starts):
            raise ValueError(f"starts {starts!r}")
        return Ledger(topic, tuple(starts), first.offset - 1, task_count, _unpacked(body["transactions"]))
    except (KeyError, TypeError, ValueError, zlib.error) as error:
        raise Corrupt(
            f"the offsets at topic {topic} are not a ledger of an exactly-once sink: {error!r}. Is the group that is "
            "named as transactionalIdPrefix and the query's id used by somebody else?"
        ) from error


def _packed(transactions: Mapping[int, ProducerIdentity]) -> str:
    """Task, producer id and epoch as differences, which are mostly the same: brokers hand out ids in a row."""
    rows = [(task, each.producer_id, each.producer_epoch) for task, each in sorted(transactions.items())]
    columns = np.array(rows, "<i8").reshape(-1, 3).T
    return base64.b64encode(zlib.compress(np.diff(columns, prepend=0).tobytes())).decode()


def _unpacked(text: str) -> dict[int, ProducerIdentity]:
    differences = np.frombuffer(zlib.decompress(base64.b64decode(text)), "<i8").reshape(3, -1)
    return {task: ProducerIdentity(*each) for task, *each in np.cumsum(differences, axis=1).T.tolist()}

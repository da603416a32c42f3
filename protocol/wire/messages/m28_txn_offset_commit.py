"""TxnOffsetCommit (key 28): commits a group's offsets as part of a transaction.

Version 3 adds the member, so that zombies are fenced. Version 5 (only with `transaction.version` 2) adds the group to
the transaction implicitly. Version 6 identifies topics by id (KIP-1319).
"""

from __future__ import annotations

from protocol.wire.schema import THROTTLE_TIME, Array, Field, Route, Struct, api

TXN_OFFSET_COMMIT_REQUEST_PARTITION = Struct(
    Field("partition_index", "int32"),
    Field("committed_offset", "int64", doc="the next offset to read"),
    Field("committed_leader_epoch", "int32", since=2, default=-1, ignorable=True),
    Field("committed_metadata", "string", nullable_since=0),
)

TXN_OFFSET_COMMIT_REQUEST_TOPIC = Struct(
    Field("name", "string", until=5, ignorable=True),
    Field("topic_id", "uuid", since=6, ignorable=True),
    Field("partitions", Array(TXN_OFFSET_COMMIT_REQUEST_PARTITION)),
)

TXN_OFFSET_COMMIT_REQUEST = Struct(
    Field("transactional_id", "string"),
    Field("group_id", "string"),
    Field("producer_id", "int64"),
    Field("producer_epoch", "int16"),
    Field("generation_id_or_member_epoch", "int32", since=3, default=-1),
    Field("member_id", "string", since=3),
    Field("group_instance_id", "string", since=3, nullable_since=3, default=None),
    Field("topics", Array(TXN_OFFSET_COMMIT_REQUEST_TOPIC)),
)

TXN_OFFSET_COMMIT_RESPONSE_PARTITION = Struct(Field("partition_index", "int32"), Field("error_code", "int16"))

TXN_OFFSET_COMMIT_RESPONSE_TOPIC = Struct(
    Field("name", "string", until=5, ignorable=True),
    Field("topic_id", "uuid", since=6, ignorable=True),
    Field("partitions", Array(TXN_OFFSET_COMMIT_RESPONSE_PARTITION)),
)

TXN_OFFSET_COMMIT_RESPONSE = Struct(THROTTLE_TIME, Field("topics", Array(TXN_OFFSET_COMMIT_RESPONSE_TOPIC)))

TXN_OFFSET_COMMIT = api(
    28, "TxnOffsetCommit", TXN_OFFSET_COMMIT_REQUEST, TXN_OFFSET_COMMIT_RESPONSE, "0-6", "3+", Route.GROUP
)

LAST_BEFORE_TRANSACTION_V2 = 4
"""The last version for clusters with `transaction.version` below 2."""
LAST_WITH_TOPIC_NAMES = 5

"""Name the ACL that a refused request lacks: an operation on a resource, as Kafka's `KafkaApis` authorises it.

Pure functions for the error texts of `broker_errors`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

CODES: Mapping[int, tuple[str, str]] = {
    29: ("Topic", "topic"),
    30: ("Group", "group"),
    31: ("Cluster", ""),
    53: ("TransactionalId", "transactional_id"),
}
"""The resource of each authorisation error by its code, and the key of its name in an error's context."""

OPERATIONS: Mapping[str, Mapping[str, str]] = {
    "Topic": {
        "": "Describe",
        "Fetch": "Read",
        "OffsetCommit": "Read",
        "TxnOffsetCommit": "Read",
        "Produce": "Write",
        "AddPartitionsToTxn": "Write",
        "CreateTopics": "Create",
        "DeleteTopics": "Delete",
        "DeleteRecords": "Delete",
        "CreatePartitions": "Alter",
        "DescribeProducers": "Read",
        "OffsetDelete": "Read",
        "DescribeConfigs": "DescribeConfigs",
        "AlterConfigs": "AlterConfigs",
        "IncrementalAlterConfigs": "AlterConfigs",
    },
    "Group": {
        "": "Read",
        "FindCoordinator": "Describe",
        "OffsetFetch": "Describe",
        "DescribeGroups": "Describe",
        "ConsumerGroupDescribe": "Describe",
        "DeleteGroups": "Delete",
        "OffsetDelete": "Delete",
    },
    "Cluster": {
        "": "Describe",
        "InitProducerId": "IdempotentWrite",
        "CreateTopics": "Create",
        "WriteTxnMarkers": "Alter",
        "CreateAcls": "Alter",
        "DeleteAcls": "Alter",
        "DescribeConfigs": "DescribeConfigs",
        "AlterConfigs": "AlterConfigs",
        "IncrementalAlterConfigs": "AlterConfigs",
        "AlterReplicaLogDirs": "Alter",
        "ElectLeaders": "Alter",
        "AlterPartitionReassignments": "Alter",
        "DescribeClientQuotas": "DescribeConfigs",
        "AlterClientQuotas": "AlterConfigs",
        "AlterUserScramCredentials": "Alter",
        "UpdateFeatures": "Alter",
    },
    "TransactionalId": {"": "Write", "FindCoordinator": "Describe", "DescribeTransactions": "Describe"},
}
"""Operations by resource and API; "" means all other APIs. Read, Write, Delete and Alter include Describe."""

_GRANTS: Mapping[tuple[str, str], str] = {
    ("Topic", "Describe"): "grant Read to consume or Write to produce, which includes Describe",
    ("Group", "Describe"): "grant Read to join or commit, or Delete to delete it, which includes Describe",
    ("TransactionalId", "Describe"): "grant Write to produce, which includes Describe",
    ("Cluster", "IdempotentWrite"): "since Kafka 2.8 Write on the topic suffices",
}
"""For an operation that precedes others: the ACL to grant, so that the requests after it are not refused either."""


def missing_right(code: int, context: Mapping[str, Any]) -> str | None:
    """Return the missing ACL, such as `"Read on Topic orders"`, and one that the requests after it need, too.

    `code`: Kafka's error code of the refusal.
    `context`: context of the error; the keys `api`, `topic`, `group` and `transactional_id` are used.
    Returns None if `code` is not an authorisation error.
    """
    if code not in CODES:
        return None
    resource, about = CODES[code]
    operations = OPERATIONS[resource]
    operation = operations.get(str(context.get("api")), operations[""])
    name = context.get(about, "")
    grant = _GRANTS.get((resource, operation))
    return f"{operation} on {resource}{f' {name}' if name else ''}{f'; {grant}' if grant else ''}"

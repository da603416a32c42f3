"""Which right a refused request lacks, in the words of Kafka's ACLs: an operation on a resource. Pure.

Used by `broker_errors` alone, for the text of an error. As Kafka's `KafkaApis` asks its authorizer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_CODES = {
    29: ("Topic", "topic"),
    30: ("Group", "group"),
    31: ("Cluster", ""),
    53: ("TransactionalId", "transactional_id"),
}

# By resource and API; "" is for all others. Read, Write, Delete and Alter include Describe.
_OPERATIONS: Mapping[str, Mapping[str, str]] = {
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


def missing_right(code: int, context: Mapping[str, Any]) -> str | None:
    """`"Read on Topic orders"`; None for a code that is not about rights. `context`: of the error, with its `api`."""
    if code not in _CODES:
        return None
    resource, about = _CODES[code]
    operations = _OPERATIONS[resource]
    operation = operations.get(str(context.get("api")), operations[""])
    name = context.get(about, "")
    return f"{operation} on {resource}{f' {name}' if name else ''}"

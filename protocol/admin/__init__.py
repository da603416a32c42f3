"""Administration: `Admin`, and the values that its methods take and return. See docs/admin.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocol.base.lazy_names import attach

if TYPE_CHECKING:
    from protocol.admin.acls import AclBinding, AclFilter, AclOperation, AclPermission, PatternType, ResourceType
    from protocol.admin.admin import Admin
    from protocol.admin.cluster import (
        ClusterDescription,
        FeatureDescription,
        FeatureUpdate,
        QuorumDescription,
        QuorumReplica,
        UpgradeType,
    )
    from protocol.admin.configs import (
        AlterConfigOp,
        AlterConfigOpType,
        ConfigEntry,
        ConfigResource,
        ConfigResourceType,
        ConfigSource,
        broker_resource,
        topic_resource,
    )
    from protocol.admin.groups import GroupDescription, ListedGroup, Member
    from protocol.admin.partitions import ElectionType, LogDirDescription, PartitionReassignment, ReplicaInfo
    from protocol.admin.topics import CreatedTopic, NewPartitions, NewTopic, TopicDescription, TopicListing
    from protocol.admin.transactions import ListedTransaction, OpenTransaction, ProducerState, TransactionDescription
    from protocol.admin.users import DelegationToken, ScramDeletion, ScramMechanism, ScramUpsertion, quota_entity
    from protocol.kafka_terms import EARLIEST_LOCAL, EARLIEST_PENDING_UPLOAD, LATEST_TIERED, MAX_TIMESTAMP

_MODULES = {
    "protocol.admin.acls": "AclBinding AclFilter AclOperation AclPermission PatternType ResourceType",
    "protocol.admin.admin": "Admin",
    "protocol.admin.cluster": (
        "ClusterDescription FeatureDescription FeatureUpdate QuorumDescription QuorumReplica UpgradeType"
    ),
    "protocol.admin.configs": (
        "AlterConfigOp AlterConfigOpType ConfigEntry ConfigResource ConfigResourceType ConfigSource "
        "broker_resource topic_resource"
    ),
    "protocol.admin.groups": "GroupDescription ListedGroup Member",
    "protocol.admin.partitions": "ElectionType LogDirDescription PartitionReassignment ReplicaInfo",
    "protocol.admin.topics": "CreatedTopic NewPartitions NewTopic TopicDescription TopicListing",
    "protocol.admin.transactions": "ListedTransaction OpenTransaction ProducerState TransactionDescription",
    "protocol.admin.users": "DelegationToken ScramDeletion ScramMechanism ScramUpsertion quota_entity",
    "protocol.kafka_terms": "EARLIEST_LOCAL EARLIEST_PENDING_UPLOAD LATEST_TIERED MAX_TIMESTAMP",
}

__all__ = [
    "EARLIEST_LOCAL",
    "EARLIEST_PENDING_UPLOAD",
    "LATEST_TIERED",
    "MAX_TIMESTAMP",
    "AclBinding",
    "AclFilter",
    "AclOperation",
    "AclPermission",
    "Admin",
    "AlterConfigOp",
    "AlterConfigOpType",
    "ClusterDescription",
    "ConfigEntry",
    "ConfigResource",
    "ConfigResourceType",
    "ConfigSource",
    "CreatedTopic",
    "DelegationToken",
    "ElectionType",
    "FeatureDescription",
    "FeatureUpdate",
    "GroupDescription",
    "ListedGroup",
    "ListedTransaction",
    "LogDirDescription",
    "Member",
    "NewPartitions",
    "NewTopic",
    "OpenTransaction",
    "PartitionReassignment",
    "PatternType",
    "ProducerState",
    "QuorumDescription",
    "QuorumReplica",
    "ReplicaInfo",
    "ResourceType",
    "ScramDeletion",
    "ScramMechanism",
    "ScramUpsertion",
    "TopicDescription",
    "TopicListing",
    "TransactionDescription",
    "UpgradeType",
    "broker_resource",
    "quota_entity",
    "topic_resource",
]

__getattr__, __dir__ = attach(__name__, _MODULES)

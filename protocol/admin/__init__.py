"""Administration: `Admin`, and the values that its methods take and return. See docs/admin.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocol.lazy_names import attach

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

_MODULES = {
    **dict.fromkeys(
        (
            "AclBinding",
            "AclFilter",
            "AclOperation",
            "AclPermission",
            "PatternType",
            "ResourceType",
        ),
        "protocol.admin.acls",
    ),
    **dict.fromkeys(("Admin",), "protocol.admin.admin"),
    **dict.fromkeys(
        (
            "ClusterDescription",
            "FeatureDescription",
            "FeatureUpdate",
            "QuorumDescription",
            "QuorumReplica",
            "UpgradeType",
        ),
        "protocol.admin.cluster",
    ),
    **dict.fromkeys(
        (
            "AlterConfigOp",
            "AlterConfigOpType",
            "ConfigEntry",
            "ConfigResource",
            "ConfigResourceType",
            "ConfigSource",
            "broker_resource",
            "topic_resource",
        ),
        "protocol.admin.configs",
    ),
    **dict.fromkeys(
        (
            "GroupDescription",
            "ListedGroup",
            "Member",
        ),
        "protocol.admin.groups",
    ),
    **dict.fromkeys(
        (
            "ElectionType",
            "LogDirDescription",
            "PartitionReassignment",
            "ReplicaInfo",
        ),
        "protocol.admin.partitions",
    ),
    **dict.fromkeys(
        (
            "CreatedTopic",
            "NewPartitions",
            "NewTopic",
            "TopicDescription",
            "TopicListing",
        ),
        "protocol.admin.topics",
    ),
    **dict.fromkeys(
        (
            "ListedTransaction",
            "OpenTransaction",
            "ProducerState",
            "TransactionDescription",
        ),
        "protocol.admin.transactions",
    ),
    **dict.fromkeys(
        (
            "DelegationToken",
            "ScramDeletion",
            "ScramMechanism",
            "ScramUpsertion",
            "quota_entity",
        ),
        "protocol.admin.users",
    ),
}

__all__ = [
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

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
    "AclBinding": "protocol.admin.acls",
    "AclFilter": "protocol.admin.acls",
    "AclOperation": "protocol.admin.acls",
    "AclPermission": "protocol.admin.acls",
    "Admin": "protocol.admin.admin",
    "AlterConfigOp": "protocol.admin.configs",
    "AlterConfigOpType": "protocol.admin.configs",
    "ClusterDescription": "protocol.admin.cluster",
    "ConfigEntry": "protocol.admin.configs",
    "ConfigResource": "protocol.admin.configs",
    "ConfigResourceType": "protocol.admin.configs",
    "ConfigSource": "protocol.admin.configs",
    "CreatedTopic": "protocol.admin.topics",
    "DelegationToken": "protocol.admin.users",
    "ElectionType": "protocol.admin.partitions",
    "FeatureDescription": "protocol.admin.cluster",
    "FeatureUpdate": "protocol.admin.cluster",
    "GroupDescription": "protocol.admin.groups",
    "ListedGroup": "protocol.admin.groups",
    "ListedTransaction": "protocol.admin.transactions",
    "LogDirDescription": "protocol.admin.partitions",
    "Member": "protocol.admin.groups",
    "NewPartitions": "protocol.admin.topics",
    "NewTopic": "protocol.admin.topics",
    "OpenTransaction": "protocol.admin.transactions",
    "PartitionReassignment": "protocol.admin.partitions",
    "PatternType": "protocol.admin.acls",
    "ProducerState": "protocol.admin.transactions",
    "QuorumDescription": "protocol.admin.cluster",
    "QuorumReplica": "protocol.admin.cluster",
    "ReplicaInfo": "protocol.admin.partitions",
    "ResourceType": "protocol.admin.acls",
    "ScramDeletion": "protocol.admin.users",
    "ScramMechanism": "protocol.admin.users",
    "ScramUpsertion": "protocol.admin.users",
    "TopicDescription": "protocol.admin.topics",
    "TopicListing": "protocol.admin.topics",
    "TransactionDescription": "protocol.admin.transactions",
    "UpgradeType": "protocol.admin.cluster",
    "broker_resource": "protocol.admin.configs",
    "quota_entity": "protocol.admin.users",
    "topic_resource": "protocol.admin.configs",
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

"""Kafka's table of error codes: name, text, retriable or not, metadata to refresh, effect on groups and transactions.

The only place that gives a code a meaning; all readers of replies use it. The caller decides how to react: the retry
loop reads `retriable` and `refresh`, group members and committers read `group_effect`, and transactional producers read
`transaction_effect`. `retriable` is as in Kafka's Java client. This module knows no message and no retry policy.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Any

from protocol.acls import missing_right
from protocol.errors import BrokerError


class Refresh(Enum):
    """State of the client that an error code shows to be outdated: refresh it before the next try."""

    NONE = "nothing"
    METADATA = "metadata"
    COORDINATOR = "coordinator"


class GroupEffect(Enum):
    """Effect of a code on a group member or a committer of offsets; repeating the same request does not help."""

    NOTHING = "nothing"
    COMMIT_REFUSED = "this offset commit is refused for good"
    ASSIGNMENT_LOST = (
        "the member has lost its partitions, and its member id, generation or epoch is stale; it may rejoin"
    )
    MEMBER_FAILED = "the member must report the error: rejoining does not help before the user has acted"


class TransactionEffect(Enum):
    """Effect of a non-retriable code on a transactional producer, as in Java's `TransactionManager`."""

    ABORTABLE = "the transaction must be aborted; the producer remains usable"
    NEEDS_PRODUCER_ID = "the transaction must be aborted; then the producer requests another producer id or epoch"
    FATAL = "fatal: the producer can only be closed"
    FENCED = "fatal: a newer producer has taken over the transactional id"


_NOTHING: dict[str, Any] = {}
_RETRY: dict[str, Any] = {"retriable": True}
_RETRY_SOON: dict[str, Any] = {"retriable": True, "soon": True}
_METADATA: dict[str, Any] = {"refresh": Refresh.METADATA}
_RETRY_METADATA, _RETRY_COORDINATOR = _RETRY | _METADATA, _RETRY | {"refresh": Refresh.COORDINATOR}
_REFUSED, _FENCED, _FATAL = (
    {"group_effect": GroupEffect.COMMIT_REFUSED},
    {"group_effect": GroupEffect.ASSIGNMENT_LOST},
    {"group_effect": GroupEffect.MEMBER_FAILED},
)
_FORGETS, _STOPS, _FENCES = (
    {"transaction_effect": TransactionEffect.NEEDS_PRODUCER_ID},
    {"transaction_effect": TransactionEffect.FATAL},
    {"transaction_effect": TransactionEffect.FENCED},
)


class ErrorCode(IntEnum):
    """Kafka's error codes by name; each member is an int. `BY_CODE` has the complete rows."""

    _row: dict[str, Any]

    def __new__(cls, code: int, text: str, row: dict[str, Any] = _NOTHING) -> ErrorCode:
        """Make a member that is the code as an int."""
        member = int.__new__(cls, code)
        member._value_ = code
        member._row = {"text": text, **row}
        return member

    UNKNOWN_SERVER_ERROR = -1, "the broker failed unexpectedly; its log says why"
    NONE = 0, "no error"
    OFFSET_OUT_OF_RANGE = 1, "the offset is not in the log (deleted by retention, or not written yet)"
    CORRUPT_MESSAGE = (
        2,
        "the record batch fails its checksum, is too large, or lacks a key a compacted topic needs",
        _RETRY,
    )
    UNKNOWN_TOPIC_OR_PARTITION = 3, "the broker does not host this partition; the topic may not exist", _RETRY_METADATA
    INVALID_FETCH_SIZE = 4, "the fetch size is not valid"
    LEADER_NOT_AVAILABLE = 5, "the partition has no leader at the moment", _RETRY_METADATA
    NOT_LEADER_OR_FOLLOWER = (
        6,
        "the broker is not, or no longer, the partition's leader (or a replica of it)",
        _RETRY_METADATA,
    )
    REQUEST_TIMED_OUT = 7, "the broker did not finish in the time the request gave it", _RETRY
    BROKER_NOT_AVAILABLE = 8, "the broker is not available"
    REPLICA_NOT_AVAILABLE = 9, "the replica of the partition is not available", _RETRY_METADATA
    MESSAGE_TOO_LARGE = 10, "a record batch is larger than the topic's max.message.bytes"
    STALE_CONTROLLER_EPOCH = 11, "the controller has moved to another broker"
    OFFSET_METADATA_TOO_LARGE = 12, "the metadata of the commit is longer than offset.metadata.max.bytes", _REFUSED
    NETWORK_EXCEPTION = 13, "the broker lost the connection before it had an answer", _RETRY_METADATA
    COORDINATOR_LOAD_IN_PROGRESS = 14, "the coordinator is still loading its state", _RETRY
    COORDINATOR_NOT_AVAILABLE = 15, "there is no coordinator at the moment", _RETRY_COORDINATOR
    NOT_COORDINATOR = 16, "the broker is not, or no longer, the coordinator", _RETRY_COORDINATOR
    INVALID_TOPIC_EXCEPTION = 17, "the topic's name is not valid, or the topic is an internal one"
    RECORD_LIST_TOO_LARGE = 18, "a record batch is larger than the topic's segment.bytes"
    NOT_ENOUGH_REPLICAS = 19, "fewer replicas are in sync than min.insync.replicas; nothing was written", _RETRY
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20, "written, but to fewer in-sync replicas than min.insync.replicas", _RETRY
    INVALID_REQUIRED_ACKS = 21, "acks must be 0, 1 or all"
    ILLEGAL_GENERATION = 22, "the group has moved on to another generation; rejoin", _FENCED
    INCONSISTENT_GROUP_PROTOCOL = 23, "no assignment strategy in common with the group's members", _FATAL
    INVALID_GROUP_ID = 24, "the group id is not valid", _FATAL
    UNKNOWN_MEMBER_ID = 25, "the coordinator does not know this member (any more); rejoin", _FENCED
    INVALID_SESSION_TIMEOUT = 26, "the session timeout is outside the range the broker allows", _FATAL
    REBALANCE_IN_PROGRESS = 27, "the group is rebalancing; rejoin"
    INVALID_COMMIT_OFFSET_SIZE = 28, "the committed offset and its metadata are too large", _REFUSED
    TOPIC_AUTHORIZATION_FAILED = 29, "this user may not do that on the topic; check its ACLs"
    GROUP_AUTHORIZATION_FAILED = 30, "this user may not use the group; check its ACLs", _FATAL
    CLUSTER_AUTHORIZATION_FAILED = 31, "this user may not do that on the cluster; check its ACLs", _FATAL | _STOPS
    INVALID_TIMESTAMP = 32, "a record's timestamp is outside the range the topic allows"
    UNSUPPORTED_SASL_MECHANISM = 33, "the broker has not enabled this SASL mechanism", _FATAL
    ILLEGAL_SASL_STATE = 34, "the request does not fit the state of the SASL exchange", _FATAL
    UNSUPPORTED_VERSION = 35, "the broker does not support this version of the API", _FATAL | _STOPS
    TOPIC_ALREADY_EXISTS = 36, "a topic of this name exists"
    INVALID_PARTITIONS = 37, "the number of partitions is not valid"
    INVALID_REPLICATION_FACTOR = 38, "the replication factor is below 1 or above the number of brokers"
    INVALID_REPLICA_ASSIGNMENT = 39, "the assignment of replicas is not valid"
    INVALID_CONFIG = 40, "a configuration value is not valid"
    NOT_CONTROLLER = 41, "the broker is not, or no longer, the controller", _RETRY_METADATA
    INVALID_REQUEST = 42, "the broker rejects the request as malformed; its log says why", _FATAL
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43, "the topic's message format is too old for this", _STOPS
    POLICY_VIOLATION = 44, "the request violates a policy configured on the broker"
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45, "a batch's sequence number does not follow the last one: something was lost"
    DUPLICATE_SEQUENCE_NUMBER = 46, "the broker already has a batch with this sequence number"
    INVALID_PRODUCER_EPOCH = 47, "the producer epoch is old: a newer producer took over, or it was aborted", _FENCES
    INVALID_TXN_STATE = 48, "the transaction is not in a state that allows this", _STOPS
    INVALID_PRODUCER_ID_MAPPING = 49, "the producer id is not the one now assigned to the transactional id", _FORGETS
    INVALID_TRANSACTION_TIMEOUT = 50, "the transaction timeout is above the broker's transaction.max.timeout.ms", _STOPS
    CONCURRENT_TRANSACTIONS = 51, "the previous change of the same transaction is not finished", _RETRY_SOON
    TRANSACTION_COORDINATOR_FENCED = 52, "the transaction marker came from a former coordinator"
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53, "this user may not use the transactional id; check its ACLs", _STOPS
    SECURITY_DISABLED = 54, "the broker has no authorizer configured"
    OPERATION_NOT_ATTEMPTED = 55, "not tried, because another part of the same request failed"
    KAFKA_STORAGE_ERROR = 56, "the broker has a disk error", _RETRY_METADATA
    LOG_DIR_NOT_FOUND = 57, "the broker has no such log directory"
    SASL_AUTHENTICATION_FAILED = 58, "the credentials were refused", _FATAL | _STOPS
    UNKNOWN_PRODUCER_ID = 59, "the broker has no state of this producer id (its last records may be deleted)"
    REASSIGNMENT_IN_PROGRESS = 60, "the partition is being reassigned"
    DELEGATION_TOKEN_AUTH_DISABLED = 61, "delegation tokens are not enabled"
    DELEGATION_TOKEN_NOT_FOUND = 62, "there is no such delegation token"
    DELEGATION_TOKEN_OWNER_MISMATCH = 63, "this user is neither owner nor renewer of the delegation token"
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64, "delegation tokens cannot be handled over this kind of connection"
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65, "this user may not use the delegation token; check its ACLs"
    DELEGATION_TOKEN_EXPIRED = 66, "the delegation token has expired"
    INVALID_PRINCIPAL_TYPE = 67, "this type of principal is not supported"
    NON_EMPTY_GROUP = 68, "the group still has members"
    GROUP_ID_NOT_FOUND = 69, "there is no such group", _FENCED
    FETCH_SESSION_ID_NOT_FOUND = 70, "the broker has dropped the fetch session; start a new one", _RETRY
    INVALID_FETCH_SESSION_EPOCH = 71, "the fetch session has another epoch; start a new one", _RETRY
    LISTENER_NOT_FOUND = 72, "the leader has no listener like the one this connection uses", _RETRY_METADATA
    TOPIC_DELETION_DISABLED = 73, "the broker has delete.topic.enable=false"
    FENCED_LEADER_EPOCH = 74, "the leader epoch in the request is older than the broker's", _RETRY_METADATA
    UNKNOWN_LEADER_EPOCH = 75, "the leader epoch in the request is newer than the broker's", _RETRY_METADATA
    UNSUPPORTED_COMPRESSION_TYPE = 76, "the version of the request does not allow the compression of the partition"
    STALE_BROKER_EPOCH = 77, "the broker has been restarted meanwhile"
    OFFSET_NOT_AVAILABLE = 78, "the new leader does not know the high watermark yet", _RETRY_METADATA
    MEMBER_ID_REQUIRED = 79, "join again with the member id of this reply"
    PREFERRED_LEADER_NOT_AVAILABLE = 80, "the preferred leader is not available", _RETRY_METADATA
    GROUP_MAX_SIZE_REACHED = 81, "the group has as many members as the broker's group.max.size allows", _FATAL
    FENCED_INSTANCE_ID = 82, "another member has joined with the same group.instance.id", _FATAL
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83, "no replica that could become leader is available", _RETRY_METADATA
    ELECTION_NOT_NEEDED = 84, "the partition needs no election", _RETRY_METADATA
    NO_REASSIGNMENT_IN_PROGRESS = 85, "the partition is not being reassigned"
    GROUP_SUBSCRIBED_TO_TOPIC = 86, "the group is subscribed to the topic, so its offsets cannot be deleted"
    INVALID_RECORD = 87, "the broker rejects a record; its reply may say which and why"
    UNSTABLE_OFFSET_COMMIT = 88, "an open transaction may still commit these offsets; retry after its end", _RETRY
    THROTTLING_QUOTA_EXCEEDED = 89, "more changes than the quota allows", _RETRY
    PRODUCER_FENCED = 90, "a newer producer with the same transactional id has taken over", _FENCES
    RESOURCE_NOT_FOUND = 91, "there is no such resource"
    DUPLICATE_RESOURCE = 92, "the request names the same resource twice"
    UNACCEPTABLE_CREDENTIAL = 93, "the credential does not meet the broker's rules"
    INCONSISTENT_VOTER_SET = 94, "the sender or the receiver is not one of the voters"
    INVALID_UPDATE_VERSION = 95, "the version of the update is not valid"
    FEATURE_UPDATE_FAILED = 96, "the cluster's features could not be updated"
    PRINCIPAL_DESERIALIZATION_FAILURE = 97, "a broker could not read the principal of a forwarded request"
    SNAPSHOT_NOT_FOUND = 98, "there is no such snapshot"
    POSITION_OUT_OF_RANGE = 99, "the position is not in the snapshot"
    UNKNOWN_TOPIC_ID = 100, "the broker does not host a topic of this id; was the topic deleted?", _RETRY_METADATA
    DUPLICATE_BROKER_REGISTRATION = 101, "another broker is registered with this id"
    BROKER_ID_NOT_REGISTERED = 102, "no broker is registered with this id"
    INCONSISTENT_TOPIC_ID = 103, "the topic has another id; was the topic recreated?", _RETRY_METADATA
    INCONSISTENT_CLUSTER_ID = 104, "the broker belongs to another cluster"
    TRANSACTIONAL_ID_NOT_FOUND = 105, "the coordinator knows no such transactional id"
    FETCH_SESSION_TOPIC_ID_ERROR = 106, "the fetch session mixes topic names and ids; start a new one", _RETRY
    INELIGIBLE_REPLICA = 107, "a replica that cannot be in sync is among the new in-sync replicas"
    NEW_LEADER_ELECTED = 108, "the change was made, and the partition has another leader now"
    OFFSET_MOVED_TO_TIERED_STORAGE = 109, "the offset has moved to tiered storage"
    FENCED_MEMBER_EPOCH = 110, "the member epoch is fenced: release all partitions and rejoin", _FENCED
    UNRELEASED_INSTANCE_ID = 111, "a member that has not left yet holds this group.instance.id", _FATAL
    UNSUPPORTED_ASSIGNOR = 112, "the coordinator does not have this assignor", _FATAL
    STALE_MEMBER_EPOCH = 113, "the member epoch is old; retry with the epoch of the next heartbeat"
    MISMATCHED_ENDPOINT_TYPE = 114, "the request went to a broker instead of a controller, or the other way round"
    UNSUPPORTED_ENDPOINT_TYPE = 115, "this kind of endpoint is not supported yet"
    UNKNOWN_CONTROLLER_ID = 116, "no controller of this id is registered"
    UNKNOWN_SUBSCRIPTION_ID = 117, "the telemetry subscription is not valid (any more)"
    TELEMETRY_TOO_LARGE = 118, "the telemetry is larger than the broker accepts"
    INVALID_REGISTRATION = 119, "the controller refuses the broker's registration"
    TRANSACTION_ABORTABLE = 120, "the transaction failed and must be aborted; the producer remains usable"
    INVALID_RECORD_STATE = 121, "the record is not in a state that allows its acknowledgement"
    SHARE_SESSION_NOT_FOUND = 122, "the share session was not found", _RETRY
    INVALID_SHARE_SESSION_EPOCH = 123, "the share session has another epoch", _RETRY
    FENCED_STATE_EPOCH = 124, "the share group has another state epoch"
    INVALID_VOTER_KEY = 125, "the voter's key is not the replica's"
    DUPLICATE_VOTER = 126, "the voter exists already"
    VOTER_NOT_FOUND = 127, "there is no such voter"
    INVALID_REGULAR_EXPRESSION = 128, "the regular expression is not valid (the broker takes RE2 syntax)", _FATAL
    REBOOTSTRAP_REQUIRED = 129, "the client's metadata is too old: start again from the bootstrap servers", _METADATA
    STREAMS_INVALID_TOPOLOGY = 130, "the streams topology is not valid"
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131, "the epoch of the streams topology is not valid"
    STREAMS_TOPOLOGY_FENCED = 132, "the epoch of the streams topology is old"
    SHARE_SESSION_LIMIT_REACHED = 133, "the broker has as many share sessions as it allows", _RETRY
    GROUP_DELETION_FAILED = 134, "the coordinator failed to delete the group; its message says why"
    STREAMS_TOPOLOGY_DESCRIPTION_UPDATE_FAILED = 135, "the broker could not store the streams topology"
    CONTROLLER_ID_NOT_REGISTERED = 136, "no controller is registered with this id"


@dataclass(frozen=True, slots=True)
class ErrorRow:
    """The meaning of one error code.

    `name`: Kafka's name of the code.
    `text`: one line for people.
    `retriable`: the same request may succeed later.
    `soon`: retry after a few milliseconds instead of `retry.backoff.ms`.
    `refresh`: state to refresh before the retry.
    `group_effect`: effect on group members and committers.
    `transaction_effect`: effect on transactional producers.
    """

    code: int
    name: str
    text: str
    retriable: bool = False
    soon: bool = False
    refresh: Refresh = Refresh.NONE
    group_effect: GroupEffect = GroupEffect.NOTHING
    transaction_effect: TransactionEffect = TransactionEffect.ABORTABLE


BY_CODE = {int(code): ErrorRow(int(code), code.name, **code._row) for code in ErrorCode}


def error_row(code: int) -> ErrorRow:
    """Return the row of a code. A code newer than this table gets a non-retriable row with a text that says so."""
    return BY_CODE.get(code) or ErrorRow(code, f"UNKNOWN_ERROR_CODE_{code}", "an error code newer than this client")


def broker_error(code: int, message: str, **context: Any) -> BrokerError:
    """Build the exception for a reply with an error code.

    `code`: Kafka's error code; its name and text are appended to the message.
    `message`: the failed operation, with topic, partition, host:port, API and version where known.
    `**context`: kept in `context` of the exception, beside `code` and `name`. With `api` (the name of the request), the
    message of an authorisation error names the missing ACL.
    """
    row = error_row(code)
    right = missing_right(code, context)
    remedy = f" (it needs {right})" if right else ""
    return BrokerError(
        f"{message}: {row.name} ({code}), {row.text}{remedy}", **{**context, "code": code, "name": row.name}
    )

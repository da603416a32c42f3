"""The handler and the versions of each API, and the requests about the whole cluster."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from protocol.broker_errors import ErrorCode
from protocol.kafka_terms import TopicPartition
from protocol.testing.fake_kafka import access_administration, administration, group_handlers
from protocol.testing.fake_kafka.broker import Broker
from protocol.testing.fake_kafka.fetch import fetch
from protocol.testing.fake_kafka.leader import delete_records, list_offsets, offset_for_leader_epoch, produce
from protocol.testing.fake_kafka.requests import ANONYMOUS, Body, Pending, Refused, Request, row_of
from protocol.testing.fake_kafka.topics import create_partitions, create_topics, delete_topics, metadata
from protocol.wire.messages.m03_metadata import METADATA
from protocol.wire.messages.m09_offset_fetch import OFFSET_FETCH
from protocol.wire.messages.m10_find_coordinator import GROUP, TRANSACTION
from protocol.wire.messages.m17_sasl_handshake import SASL_HANDSHAKE
from protocol.wire.messages.m36_sasl_authenticate import SASL_AUTHENTICATE
from protocol.wire.registry import API_BY_KEY
from protocol.wire.schema import Api, Route

Handler = Callable[[Broker, Request], "Body | Pending"]

# First version of the requests that a connection's `SaslSession` handles.
SASL = {SASL_HANDSHAKE: 1, SASL_AUTHENTICATE: 0}
# Not implemented; its presence in the list identifies a KRaft broker.
_DESCRIBE_QUORUM = 55


def api_versions(broker: Broker, request: Request) -> Body:
    """Handle ApiVersions. As in Kafka, the ids are compared on SASL listeners only after authentication."""
    intended = request.body["cluster_id"], request.body["node_id"]
    if (intended[0] is None) != (intended[1] == -1):
        raise Refused(ErrorCode.INVALID_REQUEST)
    authenticated = request.principal != ANONYMOUS or not broker.cluster.authenticates
    if authenticated and intended not in ((None, -1), (broker.cluster.cluster_id, broker.node_id)):
        raise Refused(ErrorCode.REBOOTSTRAP_REQUIRED)
    rows = [{"api_key": api.key, "min_version": first, "max_version": last} for api, (first, last) in VERSIONS.items()]
    rows += [{"api_key": api.key, "min_version": first, "max_version": api.last} for api, first in SASL.items()]
    if broker.cluster.settings["process.roles"] == "broker":
        rows.append({"api_key": _DESCRIBE_QUORUM, "min_version": 0, "max_version": 2})
    features = {"transaction.version": int(broker.cluster.settings["transaction.version"]), "group.version": 1}
    return {
        "api_keys": rows,
        "supported_features": [{"name": k, "min_version": 0, "max_version": v} for k, v in features.items()],
        "finalized_features_epoch": 1,
        "finalized_features": [
            {"name": name, "min_version_level": level, "max_version_level": level} for name, level in features.items()
        ],
    }


def find_coordinator(broker: Broker, request: Request) -> Body:
    """Handle FindCoordinator."""
    kind, cluster = request.body["key_type"], broker.cluster

    def where(key: str) -> Body:
        cluster.authorizer.require(request.api, "Group" if kind == GROUP else "TransactionalId", key)
        return cluster.endpoints([cluster.coordinator(kind, key)])[0]

    nowhere = {"node_id": -1, "host": "", "port": -1, "error_message": None}
    keys = request.body["coordinator_keys"]
    return {"coordinators": [{**nowhere, **row_of(partial(where, key), key=key)} for key in keys]}


def _of_group(act: Callable[[Broker, Request, float], Body | Pending]) -> Handler:
    """Return a handler that refuses the request unless the broker coordinates the group."""

    def handler(broker: Broker, request: Request) -> Body | Pending:
        broker.cluster.authorizer.require(request.api, "Group", request.body["group_id"])
        broker.cluster.require_coordinator(broker, GROUP, request.body["group_id"])
        return act(broker, request, broker.cluster.clock.now_s())

    return handler


def _of_transaction(act: Callable[[Broker, Request], Body], key: str = "transactional_id") -> Handler:
    """Return a handler that refuses the request unless the broker coordinates the transactional id, if there is one."""

    def handler(broker: Broker, request: Request) -> Body:
        authorizer, transactional_id = broker.cluster.authorizer, request.body[key]
        if transactional_id is not None:
            authorizer.require(request.api, "TransactionalId", transactional_id)
            broker.cluster.require_coordinator(broker, TRANSACTION, transactional_id)
        elif not authorizer.allows_on_any_topic("Write"):
            authorizer.require(request.api, "Cluster")
        return act(broker, request)

    return handler


def describe_transactions(broker: Broker, request: Request) -> Body:
    """Handle DescribeTransactions."""

    def described(transactional_id: str) -> Body:
        broker.cluster.authorizer.require(request.api, "TransactionalId", transactional_id)
        broker.cluster.require_coordinator(broker, TRANSACTION, transactional_id)
        return broker.cluster.transactions.describe(transactional_id)

    names = request.body["transactional_ids"]
    return {"transaction_states": [row_of(partial(described, name), transactional_id=name) for name in names]}


def list_transactions(broker: Broker, request: Request) -> Body:
    """Return the transactional ids that this broker coordinates."""
    cluster, states = broker.cluster, request.body["state_filters"]
    rows = [
        {"transactional_id": name, "producer_id": transaction.producer_id, "transaction_state": transaction.state.value}
        for name, transaction in cluster.transactions.transactions.items()
        if cluster.coordinator(TRANSACTION, name) == broker.node_id
        and cluster.authorizer.may(request.api, "TransactionalId", name)
        and (not states or transaction.state.value in states)
    ]
    return {"transaction_states": rows}


def _add_partitions(broker: Broker, request: Request) -> Body:
    topics, authorizer = broker.image.topics, broker.cluster.authorizer

    def refusal(key: TopicPartition) -> ErrorCode | None:
        if not authorizer.may(request.api, "Topic", key[0]):
            return ErrorCode.TOPIC_AUTHORIZATION_FAILED
        exists = key[0] in topics and key[1] < len(topics[key[0]].partitions)
        return None if exists else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    return broker.cluster.transactions.add_partitions(request, refusal)


def _add_offsets(broker: Broker, request: Request) -> Body:
    broker.cluster.authorizer.require(request.api, "Group", request.body["group_id"])
    return broker.cluster.transactions.add_offsets(request)


_HANDLERS: dict[str, Handler] = {
    "Produce": produce,
    "Fetch": fetch,
    "ListOffsets": list_offsets,
    "Metadata": metadata,
    "OffsetCommit": _of_group(group_handlers.commit_offsets),
    "OffsetFetch": group_handlers.fetch_offsets,
    "FindCoordinator": find_coordinator,
    "JoinGroup": _of_group(lambda broker, *arguments: broker.cluster.groups.join(*arguments)),
    "Heartbeat": _of_group(lambda broker, *arguments: broker.cluster.groups.heartbeat(*arguments)),
    "LeaveGroup": _of_group(lambda broker, *arguments: broker.cluster.groups.leave(*arguments)),
    "SyncGroup": _of_group(lambda broker, *arguments: broker.cluster.groups.sync(*arguments)),
    "ConsumerGroupHeartbeat": _of_group(
        lambda broker, *arguments: broker.cluster.groups.consumer_heartbeat(*arguments, broker.image.topics)
    ),
    "DescribeGroups": group_handlers.describe_groups,
    "ListGroups": group_handlers.list_groups,
    "ApiVersions": api_versions,
    "CreateTopics": create_topics,
    "DeleteTopics": delete_topics,
    "DeleteRecords": delete_records,
    "InitProducerId": _of_transaction(lambda broker, request: broker.cluster.transactions.init_producer_id(request)),
    "OffsetForLeaderEpoch": offset_for_leader_epoch,
    "AddPartitionsToTxn": _of_transaction(_add_partitions, "v3_and_below_transactional_id"),
    "AddOffsetsToTxn": _of_transaction(_add_offsets),
    "EndTxn": _of_transaction(lambda broker, request: broker.cluster.transactions.end(request)),
    "TxnOffsetCommit": _of_group(group_handlers.commit_in_transaction),
    "CreatePartitions": create_partitions,
    "DescribeTransactions": describe_transactions,
    "ListTransactions": list_transactions,
    "DescribeAcls": access_administration.describe_acls,
    "CreateAcls": access_administration.create_acls,
    "DeleteAcls": access_administration.delete_acls,
    "DescribeConfigs": administration.describe_configs,
    "AlterConfigs": administration.alter_configs,
    "IncrementalAlterConfigs": administration.incremental_alter_configs,
    "DescribeLogDirs": administration.describe_log_dirs,
    "DeleteGroups": group_handlers.delete_groups,
    "ElectLeaders": administration.elect_leaders,
    "AlterPartitionReassignments": administration.alter_reassignments,
    "ListPartitionReassignments": administration.list_reassignments,
    "OffsetDelete": group_handlers.delete_offsets,
    "DescribeClientQuotas": access_administration.describe_client_quotas,
    "AlterClientQuotas": access_administration.alter_client_quotas,
    "DescribeUserScramCredentials": access_administration.describe_scram_credentials,
    "AlterUserScramCredentials": access_administration.alter_scram_credentials,
    "DescribeCluster": administration.describe_cluster,
    "DescribeProducers": administration.describe_producers,
    "ConsumerGroupDescribe": group_handlers.describe_consumer_groups,
}
_APIS = {api.name: api for api in API_BY_KEY.values()}
HANDLERS = {_APIS[name]: handler for name, handler in _HANDLERS.items()}

# All versions that the schemas describe, except one that cannot report an error.
VERSIONS = {api: (api.first, api.last) for api in HANDLERS} | {OFFSET_FETCH: (2, OFFSET_FETCH.last)}


def refuses_by_row(api: Api) -> bool:
    """Return True if the handler itself refuses rows: leaders each partition, and Metadata each topic."""
    return api.route is Route.LEADER or api is METADATA

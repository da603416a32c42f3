"""The handler and the versions of each API, and the requests about the whole cluster."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from protocol.broker_errors import ErrorCode
from protocol.kafka_terms import TopicPartition
from protocol.testing.fake_kafka.access_administration import (
    alter_client_quotas,
    alter_scram_credentials,
    create_acls,
    delete_acls,
    describe_acls,
    describe_client_quotas,
    describe_scram_credentials,
)
from protocol.testing.fake_kafka.administration import (
    alter_configs,
    alter_reassignments,
    describe_cluster,
    describe_configs,
    describe_log_dirs,
    describe_producers,
    elect_leaders,
    incremental_alter_configs,
    list_reassignments,
)
from protocol.testing.fake_kafka.broker import Broker
from protocol.testing.fake_kafka.fetch import fetch
from protocol.testing.fake_kafka.group_handlers import (
    commit_in_transaction,
    commit_offsets,
    delete_groups,
    delete_offsets,
    describe_consumer_groups,
    describe_groups,
    fetch_offsets,
    list_groups,
)
from protocol.testing.fake_kafka.leader import delete_records, list_offsets, offset_for_leader_epoch, produce
from protocol.testing.fake_kafka.requests import Body, Pending, Request, row_of
from protocol.testing.fake_kafka.topics import create_partitions, create_topics, delete_topics, metadata
from protocol.wire.messages.m00_produce import PRODUCE
from protocol.wire.messages.m01_fetch import FETCH
from protocol.wire.messages.m02_list_offsets import LIST_OFFSETS
from protocol.wire.messages.m03_metadata import METADATA
from protocol.wire.messages.m08_offset_commit import OFFSET_COMMIT
from protocol.wire.messages.m09_offset_fetch import OFFSET_FETCH
from protocol.wire.messages.m10_find_coordinator import FIND_COORDINATOR, GROUP, TRANSACTION
from protocol.wire.messages.m11_join_group import JOIN_GROUP
from protocol.wire.messages.m12_heartbeat import HEARTBEAT
from protocol.wire.messages.m13_leave_group import LEAVE_GROUP
from protocol.wire.messages.m14_sync_group import SYNC_GROUP
from protocol.wire.messages.m15_describe_groups import DESCRIBE_GROUPS
from protocol.wire.messages.m16_list_groups import LIST_GROUPS
from protocol.wire.messages.m17_sasl_handshake import SASL_HANDSHAKE
from protocol.wire.messages.m18_api_versions import API_VERSIONS
from protocol.wire.messages.m19_create_topics import CREATE_TOPICS
from protocol.wire.messages.m20_delete_topics import DELETE_TOPICS
from protocol.wire.messages.m21_delete_records import DELETE_RECORDS
from protocol.wire.messages.m22_init_producer_id import INIT_PRODUCER_ID
from protocol.wire.messages.m23_offset_for_leader_epoch import OFFSET_FOR_LEADER_EPOCH
from protocol.wire.messages.m24_add_partitions_to_txn import ADD_PARTITIONS_TO_TXN
from protocol.wire.messages.m24_add_partitions_to_txn import LAST_CLIENT_VERSION as LAST_ADD_PARTITIONS
from protocol.wire.messages.m25_add_offsets_to_txn import ADD_OFFSETS_TO_TXN
from protocol.wire.messages.m26_end_txn import END_TXN
from protocol.wire.messages.m28_txn_offset_commit import TXN_OFFSET_COMMIT
from protocol.wire.messages.m29_acls import CREATE_ACLS, DELETE_ACLS, DESCRIBE_ACLS
from protocol.wire.messages.m32_describe_configs import DESCRIBE_CONFIGS
from protocol.wire.messages.m33_alter_configs import ALTER_CONFIGS, INCREMENTAL_ALTER_CONFIGS
from protocol.wire.messages.m34_log_dirs import DESCRIBE_LOG_DIRS
from protocol.wire.messages.m36_sasl_authenticate import SASL_AUTHENTICATE
from protocol.wire.messages.m37_create_partitions import CREATE_PARTITIONS
from protocol.wire.messages.m42_delete_groups import DELETE_GROUPS
from protocol.wire.messages.m43_elect_leaders import ELECT_LEADERS
from protocol.wire.messages.m45_partition_reassignments import (
    ALTER_PARTITION_REASSIGNMENTS,
    LIST_PARTITION_REASSIGNMENTS,
)
from protocol.wire.messages.m47_offset_delete import OFFSET_DELETE
from protocol.wire.messages.m48_client_quotas import ALTER_CLIENT_QUOTAS, DESCRIBE_CLIENT_QUOTAS
from protocol.wire.messages.m50_user_scram_credentials import (
    ALTER_USER_SCRAM_CREDENTIALS,
    DESCRIBE_USER_SCRAM_CREDENTIALS,
)
from protocol.wire.messages.m60_describe_cluster import DESCRIBE_CLUSTER
from protocol.wire.messages.m61_describe_producers import DESCRIBE_PRODUCERS
from protocol.wire.messages.m65_describe_transactions import DESCRIBE_TRANSACTIONS
from protocol.wire.messages.m66_list_transactions import LIST_TRANSACTIONS
from protocol.wire.messages.m68_consumer_group_heartbeat import CONSUMER_GROUP_HEARTBEAT
from protocol.wire.messages.m69_consumer_group_describe import CONSUMER_GROUP_DESCRIBE
from protocol.wire.schema import Api, Route

Handler = Callable[[Broker, Request], "Body | Pending"]

# First version of the requests that a connection's `SaslSession` handles.
SASL = {SASL_HANDSHAKE: 1, SASL_AUTHENTICATE: 0}
# Not implemented; its presence in the list identifies a KRaft broker.
_DESCRIBE_QUORUM = 55


def api_versions(broker: Broker, request: Request) -> Body:
    """Handle ApiVersions."""
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
        cluster.authorizer.require(FIND_COORDINATOR, "Group" if kind == GROUP else "TransactionalId", key)
        return cluster.endpoints([cluster.coordinator(kind, key)])[0]

    nowhere = {"node_id": -1, "host": "", "port": -1, "error_message": None}
    keys = request.body["coordinator_keys"]
    return {"coordinators": [{**nowhere, **row_of(partial(where, each), key=each)} for each in keys]}


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
        broker.cluster.authorizer.require(DESCRIBE_TRANSACTIONS, "TransactionalId", transactional_id)
        broker.cluster.require_coordinator(broker, TRANSACTION, transactional_id)
        return broker.cluster.transactions.describe(transactional_id)

    names = request.body["transactional_ids"]
    return {"transaction_states": [row_of(partial(described, each), transactional_id=each) for each in names]}


def list_transactions(broker: Broker, request: Request) -> Body:
    """Return the transactional ids that this broker coordinates."""
    cluster, wanted = broker.cluster, request.body["state_filters"]
    rows = [
        {"transactional_id": name, "producer_id": each.producer_id, "transaction_state": each.state.value}
        for name, each in cluster.transactions.transactions.items()
        if cluster.coordinator(TRANSACTION, name) == broker.node_id
        and cluster.authorizer.may(LIST_TRANSACTIONS, "TransactionalId", name)
        and (not wanted or each.state.value in wanted)
    ]
    return {"transaction_states": rows}


def _add_partitions(broker: Broker, request: Request) -> Body:
    topics, authorizer = broker.image.topics, broker.cluster.authorizer

    def refusal(key: TopicPartition) -> ErrorCode | None:
        if not authorizer.may(ADD_PARTITIONS_TO_TXN, "Topic", key[0]):
            return ErrorCode.TOPIC_AUTHORIZATION_FAILED
        known = key[0] in topics and key[1] < len(topics[key[0]].partitions)
        return None if known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    return broker.cluster.transactions.add_partitions(request, refusal)


def _add_offsets(broker: Broker, request: Request) -> Body:
    broker.cluster.authorizer.require(ADD_OFFSETS_TO_TXN, "Group", request.body["group_id"])
    return broker.cluster.transactions.add_offsets(request)


HANDLERS: dict[Api, Handler] = {
    PRODUCE: produce,
    FETCH: fetch,
    LIST_OFFSETS: list_offsets,
    METADATA: metadata,
    OFFSET_COMMIT: _of_group(commit_offsets),
    OFFSET_FETCH: fetch_offsets,
    FIND_COORDINATOR: find_coordinator,
    JOIN_GROUP: _of_group(lambda broker, *rest: broker.cluster.groups.join(*rest)),
    HEARTBEAT: _of_group(lambda broker, *rest: broker.cluster.groups.heartbeat(*rest)),
    LEAVE_GROUP: _of_group(lambda broker, *rest: broker.cluster.groups.leave(*rest)),
    SYNC_GROUP: _of_group(lambda broker, *rest: broker.cluster.groups.sync(*rest)),
    CONSUMER_GROUP_HEARTBEAT: _of_group(
        lambda broker, *rest: broker.cluster.groups.consumer_heartbeat(*rest, broker.image.topics)
    ),
    DESCRIBE_GROUPS: describe_groups,
    LIST_GROUPS: list_groups,
    API_VERSIONS: api_versions,
    CREATE_TOPICS: create_topics,
    DELETE_TOPICS: delete_topics,
    DELETE_RECORDS: delete_records,
    INIT_PRODUCER_ID: _of_transaction(lambda broker, each: broker.cluster.transactions.init_producer_id(each)),
    OFFSET_FOR_LEADER_EPOCH: offset_for_leader_epoch,
    ADD_PARTITIONS_TO_TXN: _of_transaction(_add_partitions, "v3_and_below_transactional_id"),
    ADD_OFFSETS_TO_TXN: _of_transaction(_add_offsets),
    END_TXN: _of_transaction(lambda broker, each: broker.cluster.transactions.end(each)),
    TXN_OFFSET_COMMIT: _of_group(commit_in_transaction),
    CREATE_PARTITIONS: create_partitions,
    DESCRIBE_TRANSACTIONS: describe_transactions,
    LIST_TRANSACTIONS: list_transactions,
    DESCRIBE_ACLS: describe_acls,
    CREATE_ACLS: create_acls,
    DELETE_ACLS: delete_acls,
    DESCRIBE_CONFIGS: describe_configs,
    ALTER_CONFIGS: alter_configs,
    INCREMENTAL_ALTER_CONFIGS: incremental_alter_configs,
    DESCRIBE_LOG_DIRS: describe_log_dirs,
    DELETE_GROUPS: delete_groups,
    ELECT_LEADERS: elect_leaders,
    ALTER_PARTITION_REASSIGNMENTS: alter_reassignments,
    LIST_PARTITION_REASSIGNMENTS: list_reassignments,
    OFFSET_DELETE: delete_offsets,
    DESCRIBE_CLIENT_QUOTAS: describe_client_quotas,
    ALTER_CLIENT_QUOTAS: alter_client_quotas,
    DESCRIBE_USER_SCRAM_CREDENTIALS: describe_scram_credentials,
    ALTER_USER_SCRAM_CREDENTIALS: alter_scram_credentials,
    DESCRIBE_CLUSTER: describe_cluster,
    DESCRIBE_PRODUCERS: describe_producers,
    CONSUMER_GROUP_DESCRIBE: describe_consumer_groups,
}

# All versions that the schemas describe, except those that only brokers send, and one that cannot report an error.
VERSIONS = {api: (api.first, api.last) for api in HANDLERS} | {
    ADD_PARTITIONS_TO_TXN: (ADD_PARTITIONS_TO_TXN.first, LAST_ADD_PARTITIONS),
    OFFSET_FETCH: (2, OFFSET_FETCH.last),
}


def refuses_by_row(api: Api) -> bool:
    """Return True if the handler itself refuses rows: leaders each partition, and Metadata each topic."""
    return api.route is Route.LEADER or api is METADATA

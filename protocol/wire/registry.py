"""Every API by its key: for the broker's side, a table of versions, and tests.

Importing this module imports all messages. A client imports only the message files that it uses.
"""

from __future__ import annotations

from protocol.wire.messages.m00_produce import PRODUCE
from protocol.wire.messages.m01_fetch import FETCH
from protocol.wire.messages.m02_list_offsets import LIST_OFFSETS
from protocol.wire.messages.m03_metadata import METADATA
from protocol.wire.messages.m08_offset_commit import OFFSET_COMMIT
from protocol.wire.messages.m09_offset_fetch import OFFSET_FETCH
from protocol.wire.messages.m10_find_coordinator import FIND_COORDINATOR
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
from protocol.wire.messages.m25_add_offsets_to_txn import ADD_OFFSETS_TO_TXN
from protocol.wire.messages.m26_end_txn import END_TXN
from protocol.wire.messages.m27_write_txn_markers import WRITE_TXN_MARKERS
from protocol.wire.messages.m28_txn_offset_commit import TXN_OFFSET_COMMIT
from protocol.wire.messages.m29_acls import CREATE_ACLS, DELETE_ACLS, DESCRIBE_ACLS
from protocol.wire.messages.m32_describe_configs import DESCRIBE_CONFIGS
from protocol.wire.messages.m33_alter_configs import ALTER_CONFIGS, INCREMENTAL_ALTER_CONFIGS
from protocol.wire.messages.m34_log_dirs import ALTER_REPLICA_LOG_DIRS, DESCRIBE_LOG_DIRS
from protocol.wire.messages.m36_sasl_authenticate import SASL_AUTHENTICATE
from protocol.wire.messages.m37_create_partitions import CREATE_PARTITIONS
from protocol.wire.messages.m38_delegation_tokens import (
    CREATE_DELEGATION_TOKEN,
    DESCRIBE_DELEGATION_TOKEN,
    EXPIRE_DELEGATION_TOKEN,
    RENEW_DELEGATION_TOKEN,
)
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
from protocol.wire.messages.m55_describe_quorum import DESCRIBE_QUORUM
from protocol.wire.messages.m57_update_features import UPDATE_FEATURES
from protocol.wire.messages.m60_describe_cluster import DESCRIBE_CLUSTER
from protocol.wire.messages.m61_describe_producers import DESCRIBE_PRODUCERS
from protocol.wire.messages.m65_describe_transactions import DESCRIBE_TRANSACTIONS
from protocol.wire.messages.m66_list_transactions import LIST_TRANSACTIONS
from protocol.wire.messages.m68_consumer_group_heartbeat import CONSUMER_GROUP_HEARTBEAT
from protocol.wire.messages.m69_consumer_group_describe import CONSUMER_GROUP_DESCRIBE
from protocol.wire.messages.m74_list_config_resources import LIST_CONFIG_RESOURCES
from protocol.wire.schema import Api

API_BY_KEY: dict[int, Api] = {
    api.key: api
    for api in (
        PRODUCE,
        FETCH,
        LIST_OFFSETS,
        METADATA,
        OFFSET_COMMIT,
        OFFSET_FETCH,
        FIND_COORDINATOR,
        JOIN_GROUP,
        HEARTBEAT,
        LEAVE_GROUP,
        SYNC_GROUP,
        DESCRIBE_GROUPS,
        LIST_GROUPS,
        SASL_HANDSHAKE,
        API_VERSIONS,
        CREATE_TOPICS,
        DELETE_TOPICS,
        DELETE_RECORDS,
        INIT_PRODUCER_ID,
        OFFSET_FOR_LEADER_EPOCH,
        ADD_PARTITIONS_TO_TXN,
        ADD_OFFSETS_TO_TXN,
        END_TXN,
        WRITE_TXN_MARKERS,
        TXN_OFFSET_COMMIT,
        DESCRIBE_CONFIGS,
        SASL_AUTHENTICATE,
        CREATE_PARTITIONS,
        DELETE_GROUPS,
        DESCRIBE_CLUSTER,
        DESCRIBE_PRODUCERS,
        DESCRIBE_TRANSACTIONS,
        LIST_TRANSACTIONS,
        CONSUMER_GROUP_HEARTBEAT,
        CONSUMER_GROUP_DESCRIBE,
        DESCRIBE_ACLS,
        CREATE_ACLS,
        DELETE_ACLS,
        ALTER_CONFIGS,
        INCREMENTAL_ALTER_CONFIGS,
        ALTER_REPLICA_LOG_DIRS,
        DESCRIBE_LOG_DIRS,
        CREATE_DELEGATION_TOKEN,
        RENEW_DELEGATION_TOKEN,
        EXPIRE_DELEGATION_TOKEN,
        DESCRIBE_DELEGATION_TOKEN,
        ELECT_LEADERS,
        ALTER_PARTITION_REASSIGNMENTS,
        LIST_PARTITION_REASSIGNMENTS,
        OFFSET_DELETE,
        DESCRIBE_CLIENT_QUOTAS,
        ALTER_CLIENT_QUOTAS,
        DESCRIBE_USER_SCRAM_CREDENTIALS,
        ALTER_USER_SCRAM_CREDENTIALS,
        DESCRIBE_QUORUM,
        UPDATE_FEATURES,
        LIST_CONFIG_RESOURCES,
    )
}

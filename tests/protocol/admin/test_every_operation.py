"""Every operation of `Admin`, compared with Kafka's own tools: in `make soak`, on brokers 2.8, 3.9 and 4.1 to 4.4."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from protocol import EARLIEST, LATEST, Admin, KafkaConsumer, TransactionalProducer
from protocol.admin.acls import AclBinding, AclFilter, AclOperation, ResourceType
from protocol.admin.cluster import FeatureUpdate, UpgradeType
from protocol.admin.configs import (
    AlterConfigOp,
    AlterConfigOpType,
    ConfigResource,
    ConfigResourceType,
    broker_resource,
    topic_resource,
)
from protocol.admin.topics import NewTopic
from protocol.admin.users import ScramDeletion, ScramMechanism, ScramUpsertion, quota_entity
from protocol.errors import ProducerFenced, UnsupportedVersion
from spark_kafka_source.local_kafka import LocalKafka
from spark_kafka_source.local_kafka.config import tool_class, version_numbers
from spark_kafka_source.local_kafka.secured import USERS
from spark_kafka_source.local_kafka.users import acl_settings, sasl_properties
from tests.protocol.fetch.consuming import produce
from tests.support.documents import ROOT
from tests.support.soak import SOAK
from tests.support.wait_for_brokers import wait_until_known
from tests.support.wait_until import wait_until

pytestmark = pytest.mark.soak

VERSIONS = ("2.8.2", "3.9.1", "4.1.1", "4.2.0", "4.3.1", "4.4.0")
USER = "User:alice"


@dataclass
class Cluster:
    """A cluster with an authorizer, delegation tokens and two log directories; two brokers since Kafka 3.3."""

    kafka: LocalKafka
    admin: Admin
    folder: Path
    opened: ExitStack
    count: int = 0
    used: set[str] = field(default_factory=set)

    @property
    def version(self) -> tuple[int, ...]:
        return version_numbers(self.kafka.version)

    @property
    def properties(self) -> dict[str, str]:
        return {"bootstrap.servers": self.kafka.bootstrap_servers}

    def topic(self, partitions: int = 1) -> str:
        """Create a topic with all replicas on broker 1."""
        self.count += 1
        name = f"every-{self.count}"
        self.admin.create_topics([NewTopic(name, assignment={number: [1] for number in range(partitions)})])
        wait_until_known(self.kafka, name, partitions)
        return name

    def tool(self, names: tuple[str, ...], *arguments: str) -> str:
        """Return what one of Kafka's tools prints about this cluster, in single spaces."""
        return self.run(names, "--bootstrap-server", self.kafka.bootstrap_servers, *arguments)

    def run(self, names: tuple[str, ...], *arguments: str) -> str:
        """Return what one of Kafka's tools prints, in single spaces. `names` are its classes in Kafka's versions."""
        self.used.add(SCRIPTS[names[0].rpartition(".")[2]])
        return re.sub(r"[ \t]+", " ", self.kafka.run_tool(tool_class(self.kafka.cluster_config, *names), *arguments))


SCRIPTS = {
    "AclCommand": "kafka-acls.sh",
    "BrokerApiVersionsCommand": "kafka-broker-api-versions.sh",
    "ClientMetricsCommand": "kafka-client-metrics.sh",
    "ClusterTool": "kafka-cluster.sh",
    "ConfigCommand": "kafka-configs.sh",
    "ConsumerGroupCommand": "kafka-consumer-groups.sh",
    "DelegationTokenCommand": "kafka-delegation-tokens.sh",
    "FeatureCommand": "kafka-features.sh",
    "GetOffsetShell": "kafka-get-offsets.sh",
    "LogDirsCommand": "kafka-log-dirs.sh",
    "MetadataQuorumCommand": "kafka-metadata-quorum.sh",
    "ReassignPartitionsCommand": "kafka-reassign-partitions.sh",
    "TopicCommand": "kafka-topics.sh",
    "TransactionsCommand": "kafka-transactions.sh",
}


def named(name: str, folder: str = "") -> tuple[str, ...]:
    return (f"org.apache.kafka.tools.{folder}{name}", f"kafka.admin.{name}", f"kafka.tools.{name}")


TOPICS, CONFIGS, ACLS, LOG_DIRS = map(named, ("TopicCommand", "ConfigCommand", "AclCommand", "LogDirsCommand"))
GROUPS = named("ConsumerGroupCommand", "consumer.group.")
REASSIGN = named("ReassignPartitionsCommand", "reassign.")
OFFSETS, FEATURES, QUORUM = map(named, ("GetOffsetShell", "FeatureCommand", "MetadataQuorumCommand"))
TRANSACTIONS, TOKENS, METRICS = map(named, ("TransactionsCommand", "DelegationTokenCommand", "ClientMetricsCommand"))
API_VERSIONS = named("BrokerApiVersionsCommand")


def cluster_of(version: str, folder: Path) -> Iterator[Cluster]:
    key, authorizer = "delegation.token.secret.key", acl_settings()
    if version_numbers(version) < (3, 3):
        key = "delegation.token.master.key"
        authorizer["authorizer.class.name"] = "kafka.security.authorizer.AclAuthorizer"
    numbers = [1] if version_numbers(version) < (3, 3) else [1, 2]
    dirs = {number: {"log.dirs": f"{folder}/{number}-a,{folder}/{number}-b"} for number in numbers}
    with ExitStack() as opened:
        kafka = opened.enter_context(
            LocalKafka(
                len(numbers), version, {key: "key-of-a-test", **authorizer}, broker_settings=dirs,
                security="sasl_plaintext",
                # Its only feature that can be changed is upgraded later.
                format_arguments=("--release-version", "3.8") if version.startswith("3.9.") else (),
            )
        )  # fmt: skip
        admin = opened.enter_context(Admin({"bootstrap.servers": kafka.bootstrap_servers}))
        yield Cluster(kafka, admin, folder, opened)


# -- topics ---------------------------------------------------------------------------------------


def create_topics(on: Cluster) -> None:
    on.admin.create_topics([NewTopic("created", 3, 1, {"retention.ms": "3600000"})])
    wait_until_known(on.kafka, "created", 3)
    shown = on.tool(TOPICS, "--describe", "--topic", "created")
    assert "PartitionCount: 3" in shown
    assert "retention.ms=3600000" in shown


def delete_topics(on: Cluster) -> None:
    name = on.topic()
    assert name in on.tool(TOPICS, "--list").split()
    on.admin.delete_topics([name])
    wait_until(lambda: name not in on.tool(TOPICS, "--list").split())


def list_topics(on: Cluster) -> None:
    on.topic()
    wait_until(lambda: set(on.admin.list_topics(internal=True)) == set(on.tool(TOPICS, "--list").split()))


def describe_topics(on: Cluster) -> None:
    name = on.topic(2)
    topic = on.admin.describe_topics([name])[name]
    shown = on.tool(TOPICS, "--describe", "--topic", name)
    if on.version >= (3, 1):
        assert f"TopicId: {topic.topic_id}" in shown
    for number, partition in topic.partitions.items():
        assert (
            f"Partition: {number} Leader: {partition.leader} Replicas: {partition.replicas[0]} Isr: {partition.isr[0]}"
            in shown
        )


def create_partitions(on: Cluster) -> None:
    name = on.topic()
    on.admin.create_partitions({name: 4})
    wait_until(lambda: "PartitionCount: 4" in on.tool(TOPICS, "--describe", "--topic", name))


def delete_records(on: Cluster) -> None:
    name = on.topic()
    produce(on.kafka, name, range(5))
    on.admin.delete_records({(name, 0): 3})
    assert offsets_of_tool(on, name, "-2") == f"{name}:0:3"


def offsets_of_tool(on: Cluster, topic: str, time: str) -> str:
    if on.version >= (3, 0):
        return on.tool(OFFSETS, "--topic", topic, "--time", time).strip()
    arguments = ("--broker-list", on.kafka.bootstrap_servers, "--topic", topic, "--time", time)
    return on.run(OFFSETS, *arguments).strip()


def list_offsets(on: Cluster) -> None:
    name = on.topic()
    produce(on.kafka, name, range(5))
    for time, word in ((EARLIEST, "-2"), (LATEST, "-1")):
        offset = on.admin.list_offsets({(name, 0): time})[name, 0].offset
        assert offsets_of_tool(on, name, word) == f"{name}:0:{offset}"


# -- configurations -------------------------------------------------------------------------------


def configs_of_tool(on: Cluster, topic: str, *arguments: str) -> str:
    return on.tool(CONFIGS, "--describe", "--entity-type", "topics", "--entity-name", topic, *arguments)


def describe_configs(on: Cluster) -> None:
    name = on.topic()
    entries = on.admin.describe_configs([topic_resource(name)])[topic_resource(name)]
    shown = configs_of_tool(on, name, "--all")
    assert {f" {entry.name}={entry.value} " in shown for entry in entries.values() if entry.value} == {True}
    assert len(re.findall(r"^ \S+=", shown, re.MULTILINE)) == len(entries)


def incremental_alter_configs(on: Cluster) -> None:
    name = on.topic()
    on.admin.incremental_alter_configs({topic_resource(name): [AlterConfigOp("retention.ms", "3600000")]})
    wait_until(lambda: " retention.ms=3600000 " in configs_of_tool(on, name))


def alter_configs(on: Cluster) -> None:
    name = on.topic()
    on.admin.alter_configs({topic_resource(name): {"max.message.bytes": "6000"}})
    wait_until(lambda: " max.message.bytes=6000 " in configs_of_tool(on, name))


def list_config_resources(on: Cluster) -> None:
    metrics = ConfigResource(ConfigResourceType.CLIENT_METRICS, "every-metrics")
    result = partial(on.admin.list_config_resources, [ConfigResourceType.CLIENT_METRICS])
    assert result() == []
    on.admin.incremental_alter_configs({metrics: [AlterConfigOp("interval.ms", "60000")]})
    wait_until(lambda: result() == [metrics])
    wait_until(lambda: on.tool(METRICS, "--list").split() == [metrics.name])


# -- groups ---------------------------------------------------------------------------------------


def group_of(on: Cluster, name: str, offset: int = 3) -> str:
    on.count += 1
    group = f"group-{on.count}"
    on.admin.alter_consumer_group_offsets(group, {(name, 0): offset, (name, 1): 0})
    return group


def committed(on: Cluster, group: str) -> dict[int, int]:
    """Return the offsets that Kafka's tool shows."""
    shown = on.tool(GROUPS, "--timeout", "30000", "--describe", "--group", group)
    return {int(row[0]): int(row[1]) for row in re.findall(rf"^{group} \S+ (\d+) (\d+) ", shown, re.MULTILINE)}


def member_of(on: Cluster, group: str, topic: str, **properties: str) -> None:
    consumer = KafkaConsumer({**on.properties, "group.id": group, "enable.auto.commit": "false"}, **properties)
    on.opened.enter_context(consumer)
    consumer.subscribe([topic])
    wait_until(lambda: consumer.poll(100) is not None and bool(consumer.assignment))


def list_groups(on: Cluster) -> None:
    group_of(on, on.topic(2))
    assert {group.group for group in on.admin.list_groups()} == set(on.tool(GROUPS, "--list").split())


def describe_groups(on: Cluster) -> None:
    name, group = on.topic(2), "described"
    member_of(on, group, name)
    (member,) = on.admin.describe_groups([group])[group].members
    shown = on.tool(GROUPS, "--timeout", "30000", "--describe", "--members", "--verbose", "--group", group)
    assert f"{group} {member.member_id} {member.client_host} {member.client_id} {len(member.assignment)} " in shown


def delete_groups(on: Cluster) -> None:
    group = group_of(on, on.topic(2))
    assert group in on.tool(GROUPS, "--list").split()
    on.admin.delete_groups([group])
    assert group not in on.tool(GROUPS, "--list").split()


def list_consumer_group_offsets(on: Cluster) -> None:
    group = group_of(on, on.topic(2), 7)
    result = {key[1]: offset.offset for key, offset in on.admin.list_consumer_group_offsets(group).items()}
    assert result == committed(on, group) == {0: 7, 1: 0}


def alter_consumer_group_offsets(on: Cluster) -> None:
    name = on.topic(2)
    group = group_of(on, name)
    on.admin.alter_consumer_group_offsets(group, {(name, 0): 1})
    assert committed(on, group) == {0: 1, 1: 0}


def delete_consumer_group_offsets(on: Cluster) -> None:
    name = on.topic(2)
    group = group_of(on, name)
    on.admin.delete_consumer_group_offsets(group, [(name, 0)])
    assert committed(on, group) == {1: 0}


def remove_members(on: Cluster) -> None:
    name, group = on.topic(2), "removed"
    member_of(on, group, name, group_instance_id="fixed")
    shown = partial(on.tool, GROUPS, "--timeout", "30000", "--describe", "--members", "--group", group)
    assert "fixed" in shown()
    on.admin.remove_members(group, ["fixed"])
    assert "fixed" not in shown()


# -- the cluster ----------------------------------------------------------------------------------


def describe_cluster(on: Cluster) -> None:
    cluster = on.admin.describe_cluster()
    shown = on.tool(API_VERSIONS)
    assert sorted(re.findall(r"^(\S+):(\d+) \(id: (\d+) ", shown, re.MULTILINE)) == sorted(
        (broker.host, str(broker.port), str(number)) for number, broker in cluster.brokers.items()
    )
    arguments = ("cluster-id", "--bootstrap-server", on.kafka.bootstrap_servers)
    assert on.run(named("ClusterTool"), *arguments).strip() == f"Cluster ID: {cluster.cluster_id}"


def features_of_tool(on: Cluster) -> dict[str, tuple[int, ...]]:
    shown = on.tool(FEATURES, "describe" if on.version >= (3, 3) else "--describe")
    return {line.split()[1]: line for line in shown.splitlines() if line.startswith("Feature:")}


def describe_features(on: Cluster) -> None:
    features, shown = on.admin.describe_features(), features_of_tool(on)
    assert features.keys() == shown.keys()
    for name, feature in features.items():
        level = f"FinalizedVersionLevel: {feature.finalized or 0}"
        assert level in str(shown[name]) or name == "metadata.version", shown[name]


def update_features(on: Cluster) -> None:
    if on.version < (3, 3):
        assert on.admin.describe_features() == features_of_tool(on) == {}, "no feature can be changed"
        return
    if on.version < (4, 0):
        assert on.admin.describe_features()["metadata.version"].finalized == 20
        on.admin.update_features({"metadata.version": FeatureUpdate(21)})
        wait_until(lambda: "FinalizedVersionLevel: 3.9-IV0" in str(features_of_tool(on)["metadata.version"]))
        return
    name = "transaction.version"
    before = on.admin.describe_features()[name].finalized or 0
    level = before - 1 if before else 1
    kind = UpgradeType.UPGRADE if level > before else UpgradeType.SAFE_DOWNGRADE
    on.admin.update_features({name: FeatureUpdate(level, kind)})
    wait_until(lambda: f"FinalizedVersionLevel: {level}" in str(features_of_tool(on)[name]))


def describe_metadata_quorum(on: Cluster) -> None:
    quorum = on.admin.describe_metadata_quorum()
    shown = on.tool(QUORUM, "describe", "--replication")
    roles = {int(line.split()[0]): line.split()[-1] for line in shown.splitlines()[1:] if line.strip()}
    expected = {voter.replica_id: "Follower" for voter in quorum.voters} | {quorum.leader_id: "Leader"}
    assert roles == {observer.replica_id: "Observer" for observer in quorum.observers} | expected


# -- security -------------------------------------------------------------------------------------


def _acl(on: Cluster) -> AclBinding:
    on.count += 1
    return AclBinding(ResourceType.TOPIC, f"acl-{on.count}", USER, AclOperation.READ)


def _acl_is_shown(on: Cluster, acl: AclBinding) -> bool:
    return "operation=READ, permissionType=ALLOW" in on.tool(ACLS, "--list", "--topic", acl.resource_name)


def create_acls(on: Cluster) -> None:
    acl = _acl(on)
    on.admin.create_acls([acl])
    wait_until(lambda: _acl_is_shown(on, acl))


def describe_acls(on: Cluster) -> None:
    acl = _acl(on)
    where = ("--topic", acl.resource_name, "--allow-principal", USER, "--operation", "Read")
    on.tool(ACLS, "--add", *where)
    wait_until(lambda: on.admin.describe_acls(AclFilter(ResourceType.TOPIC, acl.resource_name)) == [acl])


def delete_acls(on: Cluster) -> None:
    acl = _acl(on)
    on.admin.create_acls([acl])
    wait_until(lambda: _acl_is_shown(on, acl))
    on.admin.delete_acls([AclFilter(ResourceType.TOPIC, acl.resource_name)])
    wait_until(lambda: not _acl_is_shown(on, acl))


def users_of_tool(on: Cluster, *arguments: str) -> str:
    return on.tool(CONFIGS, "--describe", "--entity-type", "users", *arguments)


def alter_user_scram_credentials(on: Cluster) -> None:
    on.admin.alter_user_scram_credentials([ScramUpsertion("erin", "secret", ScramMechanism.SCRAM_SHA_256, 4096)])
    wait_until(lambda: "SCRAM-SHA-256=iterations=4096" in users_of_tool(on, "--entity-name", "erin"))
    on.admin.alter_user_scram_credentials([ScramDeletion("erin", ScramMechanism.SCRAM_SHA_256)])
    wait_until(lambda: "iterations=4096" not in users_of_tool(on, "--entity-name", "erin"))


def describe_user_scram_credentials(on: Cluster) -> None:
    where = ("--entity-type", "users", "--entity-name", "frank")
    on.tool(CONFIGS, "--alter", "--add-config", "SCRAM-SHA-512=[iterations=5000,password=secret]", *where)
    expected = {ScramMechanism.SCRAM_SHA_512: 5000}
    wait_until(lambda: on.admin.describe_user_scram_credentials().get("frank") == expected)


def alter_client_quotas(on: Cluster) -> None:
    on.admin.alter_client_quotas({quota_entity(user="gina"): {"producer_byte_rate": 1.5e6}})
    wait_until(lambda: "producer_byte_rate=1500000.0" in users_of_tool(on, "--entity-name", "gina"))


def describe_client_quotas(on: Cluster) -> None:
    where = ("--entity-type", "users", "--entity-name", "hugo")
    on.tool(CONFIGS, "--alter", "--add-config", "consumer_byte_rate=1024", *where)
    expected = {quota_entity(user="hugo"): {"consumer_byte_rate": 1024.0}}
    wait_until(lambda: on.admin.describe_client_quotas(user="hugo") == expected)


# -- partitions -----------------------------------------------------------------------------------


def alter_partition_reassignments(on: Cluster) -> None:
    name = on.topic()
    if on.version < (3, 3):
        on.admin.alter_partition_reassignments({(name, 0): [1]})
        assert "Replicas: 1 " in on.tool(TOPICS, "--describe", "--topic", name)
        return
    on.admin.alter_partition_reassignments({(name, 0): [2]})
    wait_until(lambda: "Replicas: 2 " in on.tool(TOPICS, "--describe", "--topic", name))


def list_partition_reassignments(on: Cluster) -> None:
    name = on.topic()
    if on.version < (3, 3):
        assert on.admin.list_partition_reassignments() == {}
        assert "No partition reassignments found" in on.tool(REASSIGN, "--list")
        return
    produce(on.kafka, name, range(5_000))
    limited = topic_resource(name)
    rates = {"leader.replication.throttled.rate": "1", "follower.replication.throttled.rate": "1"}
    replicas = [AlterConfigOp(f"{side}.replication.throttled.replicas", "*") for side in ("leader", "follower")]
    brokers = {broker_resource(number): [AlterConfigOp(*rate) for rate in rates.items()] for number in (1, 2)}
    on.admin.incremental_alter_configs({**brokers, limited: replicas})
    on.admin.alter_partition_reassignments({(name, 0): [2]})
    reassignment = on.admin.list_partition_reassignments()[name, 0]
    shown = on.tool(REASSIGN, "--list")
    assert (reassignment.adding_replicas, reassignment.removing_replicas) == ((2,), (1,))
    assert f"{name}-0: replicas: {','.join(map(str, reassignment.replicas))}. adding: 2. removing: 1." in shown
    on.admin.alter_partition_reassignments({(name, 0): None})
    assert "No partition reassignments found" in on.tool(REASSIGN, "--list")
    removed = [AlterConfigOp(name, None, AlterConfigOpType.DELETE) for name in rates]
    on.admin.incremental_alter_configs(dict.fromkeys(brokers, removed))


def elect_leaders(on: Cluster) -> None:
    name = on.topic()
    if on.version < (3, 3):
        on.admin.elect_leaders([(name, 0)])
        assert "Leader: 1 " in on.tool(TOPICS, "--describe", "--topic", name)
        return
    on.admin.alter_partition_reassignments({(name, 0): [2, 1]})
    in_sync = re.compile(r"Leader: 1 Replicas: 2,1 Isr: (1,2|2,1)\b")
    wait_until(lambda: in_sync.search(on.tool(TOPICS, "--describe", "--topic", name)) is not None)
    on.admin.elect_leaders([(name, 0)])
    wait_until(lambda: "Leader: 2 " in on.tool(TOPICS, "--describe", "--topic", name))


def log_dirs_of_tool(on: Cluster, topic: str) -> dict[str, int]:
    """Return the bytes of partition 0 on broker 1 by directory."""
    shown = on.tool(LOG_DIRS, "--describe", "--topic-list", topic, "--broker-list", "1")
    (line,) = (line for line in shown.splitlines() if line.startswith("{"))
    return {
        log_dir["logDir"]: replica["size"]
        for broker in json.loads(line)["brokers"]
        for log_dir in broker["logDirs"]
        for replica in log_dir["partitions"]
        if replica["partition"] == f"{topic}-0" and not replica["isFuture"]
    }


def _log_dirs(on: Cluster, topic: str) -> dict[str, int]:
    log_dirs = on.admin.describe_log_dirs([1], partitions=[(topic, 0)])[1]
    return {
        path: log_dir.replicas[topic, 0].size_bytes
        for path, log_dir in log_dirs.items()
        if (topic, 0) in log_dir.replicas
    }


def describe_log_dirs(on: Cluster) -> None:
    name = on.topic()
    produce(on.kafka, name, range(5))
    assert _log_dirs(on, name) == log_dirs_of_tool(on, name)
    assert sum(_log_dirs(on, name).values()) > 0


def alter_replica_log_dirs(on: Cluster) -> None:
    name = on.topic()
    produce(on.kafka, name, range(5))
    (before,) = log_dirs_of_tool(on, name)
    target = str(on.folder / ("1-b" if before.endswith("1-a") else "1-a"))
    on.admin.alter_replica_log_dirs({(name, 0, 1): target})
    wait_until(lambda: list(log_dirs_of_tool(on, name)) == [target])


# -- transactions ---------------------------------------------------------------------------------


def transaction_of(on: Cluster, name: str) -> TransactionalProducer:
    producer = TransactionalProducer({**on.properties, "transactional.id": name})
    producer.init_transactions()
    producer.begin_transaction()
    producer.send(on.topic(), b"open")
    producer.flush()
    return producer


def list_transactions(on: Cluster) -> None:
    with transaction_of(on, "listed") as producer:
        (transaction,) = on.admin.list_transactions(prefix="listed")
        row = f"{transaction.transactional_id} {transaction.coordinator} {transaction.producer_id} {transaction.state}"
        assert row in on.tool(TRANSACTIONS, "list")
        producer.abort_transaction()


def describe_transactions(on: Cluster) -> None:
    with transaction_of(on, "described") as producer:
        transaction = on.admin.describe_transactions(["described"])["described"]
        identity = transaction.identity
        row = (
            f"{transaction.coordinator} described {identity.producer_id} {identity.producer_epoch} {transaction.state}"
        )
        assert row in on.tool(TRANSACTIONS, "describe", "--transactional-id", "described")
        producer.abort_transaction()


def abort_transaction(on: Cluster) -> None:
    producer = transaction_of(on, "aborted")
    on.admin.abort_transaction("aborted")
    if on.version >= (3, 0):
        ended = re.compile(" aborted .* (CompleteAbort|Empty) ")
        wait_until(lambda: ended.search(on.tool(TRANSACTIONS, "describe", "--transactional-id", "aborted")) is not None)
    with pytest.raises(ProducerFenced):
        producer.commit_transaction()


def describe_producers(on: Cluster) -> None:
    with transaction_of(on, "producing") as producer:
        name = f"every-{on.count}"
        (producer_state,) = on.admin.describe_producers([(name, 0)])[name, 0]
        assert producer_state.transaction_start_offset == 0
        if on.version >= (3, 0):
            row = f"{producer_state.producer_id} {producer_state.producer_epoch} "
            shown = on.tool(TRANSACTIONS, "describe-producers", "--topic", name, "--partition", "0")
            assert shown.splitlines()[1].startswith(row)
        producer.abort_transaction()


def fence_producers(on: Cluster) -> None:
    producer = transaction_of(on, "fenced")
    identity = on.admin.fence_producers(["fenced"])["fenced"]
    if on.version >= (3, 0):
        wait_until(
            lambda: (
                f" fenced {identity.producer_id} {identity.producer_epoch} "
                in on.tool(TRANSACTIONS, "describe", "--transactional-id", "fenced")
            )
        )
    with pytest.raises(ProducerFenced):
        producer.commit_transaction()


# -- tokens ---------------------------------------------------------------------------------------


def tokens(on: Cluster) -> None:
    """Create, describe, renew and expire a delegation token; Kafka's tool signs in, too."""
    properties = on.kafka.client_properties("SASL_PLAINTEXT") | sasl_properties("PLAIN", "alice", USERS["alice"])
    file = on.folder / "tokens.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))

    def shown() -> str:
        arguments = ("--bootstrap-server", properties["bootstrap.servers"], "--command-config", str(file), "--describe")
        return on.run(TOKENS, *arguments, "--owner-principal", USER)

    with Admin(properties) as admin:
        token = admin.create_delegation_token()
        wait_until(lambda: token.token_id in shown())
        assert [token.token_id for token in admin.describe_delegation_tokens()] == [token.token_id]
        assert admin.renew_delegation_token(token.hmac) >= token.expiry_ms
        admin.expire_delegation_token(token.hmac)
        wait_until(lambda: token.token_id not in shown())


CHECKS: tuple[Callable[[Cluster], None], ...] = (
    *(create_topics, delete_topics, list_topics, describe_topics, create_partitions, delete_records),
    *(describe_configs, incremental_alter_configs, alter_configs, list_config_resources),
    *(list_groups, describe_groups, delete_groups, list_consumer_group_offsets, alter_consumer_group_offsets),
    *(delete_consumer_group_offsets, remove_members),
    *(describe_cluster, describe_features, update_features, describe_metadata_quorum),
    *(create_acls, describe_acls, delete_acls, describe_user_scram_credentials, alter_user_scram_credentials),
    *(describe_client_quotas, alter_client_quotas),
    *(alter_partition_reassignments, list_partition_reassignments, elect_leaders, describe_log_dirs),
    *(alter_replica_log_dirs, list_offsets),
    *(list_transactions, describe_transactions, abort_transaction, describe_producers, fence_producers, tokens),
)

# Operations that a broker lacks, with the API that is missing.
LACKS = {
    "2.8.2": {
        "list_config_resources": "ListConfigResources",
        "describe_metadata_quorum": "DescribeQuorum",
        "list_transactions": "ListTransactions",
        "describe_transactions": "DescribeTransactions",
        "abort_transaction": "DescribeTransactions",
    },
    "3.9.1": {"list_config_resources": "ListConfigResources"},
}
RELEASES = {"2.8.2": "Kafka 2.7 to 3.0", "3.9.1": "Kafka 3.9 to 4.0"}
# One check is about all operations on tokens.
NAMES = {
    check.__name__: (check.__name__,)
    if check is not tokens
    else (
        *("create_delegation_token", "renew_delegation_token", "expire_delegation_token"),
        "describe_delegation_tokens",
    )
    for check in CHECKS
}


@pytest.fixture(scope="module")
def on(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    yield from cluster_of(request.param, tmp_path_factory.mktemp("every"))


def rows_of_docs() -> dict[str, list[str]]:
    """Return the row of each operation in the table of docs/admin.md, by its name."""
    text = (ROOT / "docs" / "admin.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    return {name: row for row in rows if len(row) == 6 for name in re.findall(r"`([a-z_]+)`", row[1])}


@pytest.mark.skipif(not SOAK, reason="runs a hundred Java tools")
@pytest.mark.parametrize("on", VERSIONS, indirect=True, scope="module")
@pytest.mark.kafka
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_operation_agrees_with_kafkas_tool(on: Cluster, check: Callable[[Cluster], None]) -> None:
    on.used.clear()
    api = LACKS.get(on.kafka.version, {}).get(check.__name__)
    if api is not None:
        with pytest.raises(UnsupportedVersion, match=api) as caught:
            check(on)
        assert f"the broker ({RELEASES[on.kafka.version]})" in str(caught.value)
        return
    check(on)
    for name in NAMES[check.__name__]:
        scripts = set(re.findall(r"kafka-\S+\.sh", rows_of_docs()[name][4]))
        # This tool begins with Kafka 3.0.
        assert scripts - on.used <= ({"kafka-transactions.sh"} if on.version < (3, 0) else set())


def test_docs_table_has_every_operation_of_admin() -> None:
    public = {name for name in dir(Admin) if not name.startswith("_")} - {"close"}
    rows = rows_of_docs()
    assert rows.keys() == public == {name for names in NAMES.values() for name in names}
    assert all(re.search(r"kafka-\S+\.sh", row[4]) for row in rows.values())
    since = {name: row[5] for name, row in rows.items()}
    for check, names in NAMES.items():
        lacking = [version.rpartition(".")[0] for version in VERSIONS if check in LACKS.get(version, {})]
        for name in names:
            assert since[name] == ("all" if not lacking else f"not {', '.join(lacking)}"), name

"""Checks of `Admin`, each with the name of an operation: groups, the cluster, users, transactions and tokens."""

from __future__ import annotations

import re
from functools import partial

import pytest

from protocol import Admin, KafkaConsumer, TransactionalProducer
from protocol.admin.acls import AclBinding, AclFilter, AclOperation, ResourceType
from protocol.admin.cluster import FeatureUpdate, UpgradeType
from protocol.admin.users import ScramDeletion, ScramMechanism, ScramUpsertion, quota_entity
from protocol.errors import ProducerFenced
from spark_kafka_source.local_kafka.secured import USERS
from spark_kafka_source.local_kafka.users import sasl_properties
from tests.protocol.admin.kafkas_tools import (
    ACLS,
    API_VERSIONS,
    CONFIGS,
    FEATURES,
    GROUPS,
    QUORUM,
    TOKENS,
    TRANSACTIONS,
    Cluster,
    named,
)
from tests.support.wait_until import wait_until

USER = "User:alice"

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

"""`Admin` on a real cluster; librdkafka's AdminClient and Kafka's own tools read the changes back."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka import admin as librdkafka

from protocol import EARLIEST, Admin, CommittedOffset
from protocol.admin.cluster import FeatureUpdate, UpgradeType
from protocol.admin.configs import (
    AlterConfigOp,
    AlterConfigOpType,
    ConfigResource,
    ConfigResourceType,
    ConfigSource,
    broker_resource,
    topic_resource,
)
from protocol.admin.topics import NewPartitions, NewTopic
from protocol.admin.users import ScramDeletion, ScramMechanism, ScramUpsertion
from protocol.errors import AdminFailed, BrokerError, ConfigurationError, UsageError
from spark_kafka_source.local_kafka import LocalKafka
from spark_kafka_source.local_kafka.config import version_numbers
from tests.conftest import KAFKA_VERSION, TopicFactory
from tests.protocol.fetch.consuming import produce
from tests.support.documents import block
from tests.support.wait_until import wait_until

SINCE_4_1 = pytest.mark.skipif(version_numbers(KAFKA_VERSION) < (4, 1), reason="the operation begins with Kafka 4.1")
KRAFT = pytest.mark.skipif(version_numbers(KAFKA_VERSION) < (3, 3), reason="needs a KRaft cluster")


@pytest.fixture
def admin(kafka1: LocalKafka) -> Iterator[Admin]:
    with Admin({"bootstrap.servers": kafka1.bootstrap_servers}) as first:
        yield first


@pytest.fixture
def librdkafka_admin(kafka1: LocalKafka) -> librdkafka.AdminClient:
    return librdkafka.AdminClient({"bootstrap.servers": kafka1.bootstrap_servers})


def new_name() -> str:
    return f"admin-{uuid.uuid4().hex[:10]}"


def codes(failed: AdminFailed) -> dict[object, str]:
    return {key: error.name for key, error in failed.errors.items() if isinstance(error, BrokerError)}


# Topics


def test_create_topics_with_one_refused_creates_the_others(
    admin: Admin, librdkafka_admin: librdkafka.AdminClient, topic1: TopicFactory
) -> None:
    existing, name, assigned = topic1(), new_name(), new_name()
    with pytest.raises(AdminFailed, match=f"{existing}.*already exists") as caught:
        admin.create_topics(
            [
                NewTopic(name, 3, 1, {"retention.ms": "3600000"}),
                NewTopic(existing, 1, 1),
                NewTopic(assigned, assignment={0: [1], 1: [1]}),
            ]
        )
    assert codes(caught.value) == {existing: "TOPIC_ALREADY_EXISTS"}
    created = caught.value.results
    assert (created[name].partitions, created[name].configs["retention.ms"]) == (3, "3600000")
    topics = librdkafka_admin.list_topics().topics
    assert (len(topics[name].partitions), len(topics[assigned].partitions)) == (3, 2)
    admin.delete_topics([name], ids=[created[assigned].topic_id])
    wait_until(lambda: not {name, assigned} & librdkafka_admin.list_topics().topics.keys())


def test_describe_topics_by_name_and_id_agrees_with_librdkafka(
    admin: Admin, librdkafka_admin: librdkafka.AdminClient, topic1: TopicFactory
) -> None:
    name = topic1(2, config={"max.message.bytes": "4096"})
    topic = admin.describe_topics([name], configs=True)[name]
    partitions_of_librdkafka = librdkafka_admin.list_topics(name).topics[name].partitions
    assert {
        number: (part.leader, list(part.replicas), list(part.isr)) for number, part in topic.partitions.items()
    } == {number: (part.leader, part.replicas, part.isrs) for number, part in partitions_of_librdkafka.items()}
    assert topic.configs is not None
    assert topic.configs["max.message.bytes"].value == "4096"
    assert admin.describe_topics(ids=[topic.topic_id])[topic.topic_id].name == name
    assert admin.list_topics()[name].topic_id == topic.topic_id
    with pytest.raises(AdminFailed, match="UNKNOWN_TOPIC_OR_PARTITION"):
        admin.describe_topics([name, new_name()])
    with pytest.raises(UsageError, match="is not a topic id"):
        admin.describe_topics(ids=["orders"])


def test_create_partitions_and_delete_records_change_the_topic(
    admin: Admin, kafka1: LocalKafka, librdkafka_admin: librdkafka.AdminClient, topic1: TopicFactory
) -> None:
    name, second = topic1(), topic1()
    produce(kafka1, name, range(10))
    admin.create_partitions({name: 2, second: NewPartitions(2, [[1]])})
    wait_until(lambda: len(librdkafka_admin.list_topics(name).topics[name].partitions) == 2)
    with pytest.raises(AdminFailed) as caught:
        admin.create_partitions({name: 1})
    assert codes(caught.value) == {name: "INVALID_PARTITIONS"}
    assert admin.delete_records({(name, 0): 4}) == {(name, 0): 4}
    assert admin.list_offsets({(name, 0): EARLIEST})[name, 0].offset == 4


def test_example_of_the_docs_runs(kafka1: LocalKafka, capsys: pytest.CaptureFixture[str]) -> None:
    name = new_name()
    text = block("admin.md", "admin.create_topics(").with_names({'"orders"': f'"{name}"'})
    exec(text, {"bootstrap_servers": kafka1.bootstrap_servers})
    assert capsys.readouterr().out.splitlines() == [f"['{name}'] ['not a name']", "1"]


# Configurations


def test_incremental_config_changes_agree_with_librdkafka(
    admin: Admin, librdkafka_admin: librdkafka.AdminClient, topic1: TopicFactory
) -> None:
    resource = topic_resource(topic1(config={"retention.ms": "1000"}))
    admin.incremental_alter_configs(
        {
            resource: [
                AlterConfigOp("retention.ms", None, AlterConfigOpType.DELETE),
                AlterConfigOp("cleanup.policy", "compact", AlterConfigOpType.APPEND),
                AlterConfigOp("max.message.bytes", "5000"),
            ]
        }
    )
    requested = librdkafka.ConfigResource(librdkafka.RESOURCE_TOPIC, resource.name)

    def described() -> dict[str, str]:
        observed = librdkafka_admin.describe_configs([requested])[requested].result(30)
        return {key: observed[key].value for key in ("retention.ms", "cleanup.policy", "max.message.bytes")}

    expected = {"retention.ms": "604800000", "cleanup.policy": "delete,compact", "max.message.bytes": "5000"}
    wait_until(lambda: described() == expected, described)
    entries = admin.describe_configs([resource], names=["cleanup.policy"], synonyms=True)[resource]
    assert entries["cleanup.policy"].source is ConfigSource.DYNAMIC_TOPIC_CONFIG
    assert ("log.cleanup.policy", "delete", ConfigSource.DEFAULT_CONFIG) in entries["cleanup.policy"].synonyms
    admin.alter_configs({resource: {"max.message.bytes": "6000"}})
    wait_until(lambda: described() == {**expected, "cleanup.policy": "delete", "max.message.bytes": "6000"}, described)


def test_invalid_config_change_fails_only_for_its_resource(admin: Admin, topic1: TopicFactory) -> None:
    good, bad = topic_resource(topic1()), topic_resource(topic1())
    with pytest.raises(AdminFailed, match="nonsense") as caught:
        admin.incremental_alter_configs(
            {good: [AlterConfigOp("retention.ms", "9")], bad: [AlterConfigOp("nonsense", "1")]}
        )
    assert codes(caught.value) == {bad: "INVALID_CONFIG"}
    assert set(caught.value.results) == {good}


def test_configs_of_brokers_and_loggers_are_described_by_that_broker(admin: Admin) -> None:
    logger = ConfigResource(ConfigResourceType.BROKER_LOGGER, "1")
    configs = admin.describe_configs([broker_resource(1), broker_resource(), logger], documentation=True)
    assert (
        configs[broker_resource(1)]["broker.id" if version_numbers(KAFKA_VERSION) < (3, 3) else "node.id"].value == "1"
    )
    assert "The " in (configs[broker_resource(1)]["num.io.threads"].documentation or "")
    assert configs[logger]["root"].source is ConfigSource.DYNAMIC_BROKER_LOGGER_CONFIG
    with pytest.raises(UsageError, match="no broker 9"):
        admin.describe_configs([broker_resource(9)])


@SINCE_4_1
def test_resources_with_a_configuration_are_listed(admin: Admin, topic1: TopicFactory) -> None:
    assert topic_resource(topic1()) in admin.list_config_resources([ConfigResourceType.TOPIC])


# Groups


def test_group_offsets_agree_with_librdkafka(
    admin: Admin, librdkafka_admin: librdkafka.AdminClient, topic1: TopicFactory
) -> None:
    name, group = topic1(2), new_name()
    admin.alter_consumer_group_offsets(group, {(name, 0): 3, (name, 1): CommittedOffset(4, metadata="mine")})
    partitions = ConsumerGroupTopicPartitions(group)
    observed = librdkafka_admin.list_consumer_group_offsets([partitions])[group].result(30).topic_partitions
    assert {(offset.topic, offset.partition, offset.offset) for offset in observed} == {(name, 0, 3), (name, 1, 4)}
    assert admin.list_consumer_group_offsets(group)[name, 1] == CommittedOffset(4, metadata="mine")
    admin.delete_consumer_group_offsets(group, [(name, 0)])
    assert set(admin.list_consumer_group_offsets(group)) == {(name, 1)}
    assert [
        group_listing.group for group_listing in admin.list_groups(states=["empty"]) if group_listing.group == group
    ] == [group]
    assert group not in {group.group for group in admin.list_groups(states=["Stable"])}
    unknown = new_name()
    assert {key: description.state for key, description in admin.describe_groups([group, unknown]).items()} == {
        group: "Empty",
        unknown: "Dead",
    }
    with pytest.raises(AdminFailed) as caught:
        admin.delete_groups([group, unknown])
    assert codes(caught.value) == {unknown: "GROUP_ID_NOT_FOUND"}
    assert set(caught.value.results) == {group}


def test_remove_members_removes_dynamic_and_static_members(
    admin: Admin, kafka1: LocalKafka, topic1: TopicFactory
) -> None:
    from confluent_kafka import Consumer

    name, group = topic1(2), new_name()
    settings = {"bootstrap.servers": kafka1.bootstrap_servers, "group.id": group, "session.timeout.ms": 45_000}
    static, dynamic = Consumer({**settings, "group.instance.id": "fixed"}), Consumer(settings)
    for consumer in (static, dynamic):
        consumer.subscribe([name])

    def stable() -> bool:
        static.poll(0.1), dynamic.poll(0.1)
        remembered = admin.describe_groups([group])[group]
        return remembered.state == "Stable" and len(remembered.members) == 2

    wait_until(stable, timeout_s=60)
    with pytest.raises(AdminFailed) as caught:
        admin.remove_members(group, ["fixed", "no-such"])
    assert codes(caught.value) == {"no-such": "UNKNOWN_MEMBER_ID"}
    assert "fixed" not in {member.group_instance_id for member in admin.describe_groups([group])[group].members}
    admin.remove_members(group)
    assert admin.describe_groups([group])[group].members == ()
    for consumer in (static, dynamic):
        consumer.close()


# The cluster


def test_describe_cluster_agrees_with_librdkafka(admin: Admin, librdkafka_admin: librdkafka.AdminClient) -> None:
    observed = librdkafka_admin.describe_cluster().result(30)
    cluster = admin.describe_cluster()
    assert (cluster.cluster_id, sorted(cluster.brokers)) == (observed.cluster_id, [node.id for node in observed.nodes])
    with pytest.raises(ConfigurationError, match=r"bootstrap\.servers is missing"):
        Admin()


@KRAFT
def test_features_and_quorum_agree_with_kafkas_tools(admin: Admin, kafka1: LocalKafka) -> None:
    features = admin.describe_features()
    shown = kafka1.run_tool(
        "org.apache.kafka.tools.FeatureCommand", "--bootstrap-server", kafka1.bootstrap_servers, "describe"
    )
    line = next(line for line in shown.splitlines() if "metadata.version" in line)
    assert features["metadata.version"].finalized is not None
    assert "Feature: metadata.version" in line
    quorum = admin.describe_metadata_quorum()
    assert quorum.leader_id == 1
    assert [voter.replica_id for voter in quorum.voters] == [1]
    with pytest.raises((AdminFailed, BrokerError), match="INVALID_UPDATE_VERSION"):
        admin.update_features({"metadata.version": FeatureUpdate(1, UpgradeType.SAFE_DOWNGRADE)}, validate_only=True)


# Users


@pytest.mark.parametrize("iterations", [-1, 0, 4095, 16_385, 10**9])
def test_iterations_that_brokers_refuse_are_refused_before_hashing(iterations: int) -> None:
    with pytest.raises(UsageError, match="Kafka takes 4096 to 16384"):
        ScramUpsertion("alice", "hunter2", iterations=iterations)


@pytest.mark.skipif(version_numbers(KAFKA_VERSION) < (3, 5), reason="KRaft has users of SCRAM since Kafka 3.5")
def test_scram_users_agree_with_librdkafka(admin: Admin, librdkafka_admin: librdkafka.AdminClient) -> None:
    user = new_name()
    new = ScramUpsertion(user, "hunter2-of-admin", ScramMechanism.SCRAM_SHA_256, 4096)
    assert "hunter2" not in repr(new)
    admin.alter_user_scram_credentials([new])
    wait_until(lambda: user in admin.describe_user_scram_credentials())
    (info,) = librdkafka_admin.describe_user_scram_credentials([user])[user].result(30).scram_credential_infos
    assert (info.mechanism.name, info.iterations) == ("SCRAM_SHA_256", 4096)
    assert admin.describe_user_scram_credentials([user]) == {user: {ScramMechanism.SCRAM_SHA_256: 4096}}
    admin.alter_user_scram_credentials([ScramDeletion(user, ScramMechanism.SCRAM_SHA_256)])
    with pytest.raises(AdminFailed, match="RESOURCE_NOT_FOUND"):
        admin.alter_user_scram_credentials([ScramDeletion(new_name(), ScramMechanism.SCRAM_SHA_256)])


# Partitions


def test_log_dirs_have_the_replicas_and_refuse_an_unknown_path(
    admin: Admin, kafka1: LocalKafka, topic1: TopicFactory
) -> None:
    name = topic1()
    produce(kafka1, name, range(5))
    (description,) = admin.describe_log_dirs(partitions=[(name, 0)])[1].values()
    assert description.error is None
    assert set(description.replicas) == {(name, 0)}
    assert description.replicas[name, 0].size_bytes > 0
    with pytest.raises(AdminFailed, match=f"{name}-0.*LOG_DIR_NOT_FOUND") as caught:
        admin.alter_replica_log_dirs({(name, 0, 1): "/no-such"})
    assert codes(caught.value) == {(name, 0, 1): "LOG_DIR_NOT_FOUND"}


def test_reassignment_and_election_move_the_leader(kafka: LocalKafka, topic: TopicFactory) -> None:
    with Admin({"bootstrap.servers": kafka.bootstrap_servers}) as admin:
        name = new_name()
        admin.create_topics([NewTopic(name, assignment={0: [1, 2]})])
        with pytest.raises(AdminFailed) as caught:
            admin.alter_partition_reassignments({(name, 0): [2, 3], (new_name(), 0): [1]})
        assert set(codes(caught.value).values()) == {"UNKNOWN_TOPIC_OR_PARTITION"}
        wait_until(lambda: not admin.list_partition_reassignments())
        wait_until(lambda: admin.describe_topics([name])[name].partitions[0].replicas == (2, 3))
        admin.elect_leaders([(name, 0)])  # no effect where the preferred replica already leads
        wait_until(lambda: admin.describe_topics([name])[name].partitions[0].leader == 2)
        with pytest.raises(AdminFailed, match="NO_REASSIGNMENT_IN_PROGRESS"):
            admin.alter_partition_reassignments({(name, 0): None})
        # Make the other replica, which does not lead yet, the preferred one.
        admin.alter_partition_reassignments({(name, 0): [3, 2]})
        wait_until(lambda: admin.describe_topics([name])[name].partitions[0].replicas == (3, 2))
        wait_until(lambda: admin.elect_leaders([(name, 0)]) or leader_of(admin, name) == 3)
        wait_until(lambda: leader_of(admin, name) == 3)
        assert sorted(admin.describe_log_dirs([2, 3], partitions=[(name, 0)])) == [2, 3]
        admin.delete_topics([name])


def leader_of(admin: Admin, name: str) -> int:
    return admin.describe_topics([name])[name].partitions[0].leader


# Transactions


def test_fence_producers_fences_a_producer_of_librdkafka(
    admin: Admin, kafka1: LocalKafka, topic1: TopicFactory
) -> None:
    from confluent_kafka import KafkaException, Producer

    name, transactional_id = topic1(), new_name()
    producer = Producer({"bootstrap.servers": kafka1.bootstrap_servers, "transactional.id": transactional_id})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(name, b"value")
    producer.flush(30)
    (listed,) = admin.list_transactions(prefix=transactional_id)
    assert listed.state == "Ongoing"
    (state,) = admin.describe_producers([(name, 0)])[name, 0]
    assert (state.producer_id, state.transaction_start_offset) == (listed.producer_id, 0)
    fenced = admin.fence_producers([transactional_id])[transactional_id]
    assert fenced.producer_epoch > 0
    with pytest.raises(KafkaException, match=r"(?i)fenced"):
        producer.commit_transaction(30)

"""A cluster with all that `Admin` can change, and Kafka's own tools, which show it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from protocol import Admin
from protocol.admin.topics import NewTopic
from spark_kafka_source.local_kafka import LocalKafka
from spark_kafka_source.local_kafka.config import tool_class, version_numbers
from spark_kafka_source.local_kafka.users import acl_settings
from tests.support.wait_for_brokers import wait_until_known


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

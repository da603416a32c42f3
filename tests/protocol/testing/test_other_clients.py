"""The in-memory cluster with librdkafka and with Kafka's Java tools, which send other versions of the messages."""

from __future__ import annotations

import re
from collections.abc import Iterator

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from protocol.testing import FakeKafka, RealKafka
from spark_kafka_source.local_kafka import LocalKafka
from tests.support.wait_until import wait_until

TOPICS = "org.apache.kafka.tools.TopicCommand"
GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
PRODUCER = "org.apache.kafka.tools.ConsoleProducer"
GROUP = {"group.id": "g", "auto.offset.reset": "earliest"}
CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"


@pytest.fixture
def fake() -> Iterator[FakeKafka]:
    with FakeKafka(3, settings={"group.consumer.heartbeat.interval.ms": "200"}) as running:
        running.create_topic("orders", 3)
        yield running


class TestLibrdkafka:
    @pytest.fixture
    def client(self, fake: FakeKafka) -> dict[str, object]:
        # The cluster ends before the clients, which would log that.
        return {"bootstrap.servers": fake.bootstrap_servers, "log_level": 0}

    @pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
    def test_idempotent_producer_writes_all_records(
        self, fake: FakeKafka, client: dict[str, object], codec: str
    ) -> None:
        producer = confluent_kafka.Producer({**client, "enable.idempotence": True, "compression.type": codec})
        for number in range(200):
            producer.produce("orders", b"%d" % number, key=b"%d" % number, headers={"h": b"1"})
        assert producer.flush(30) == 0
        records = fake.records("orders")
        assert sorted(int(record.value) for record in records) == list(range(200))
        assert all(record.key == record.value and record.headers == [("h", b"1")] for record in records)

    @pytest.mark.parametrize("protocol", ["classic", "consumer"])
    def test_group_shares_partitions_and_commits(
        self, fake: FakeKafka, client: dict[str, object], protocol: str
    ) -> None:
        fake.produce("orders", *map(str, range(30)))
        members = [confluent_kafka.Consumer({**client, **GROUP, "group.protocol": protocol}) for _ in "12"]
        collected: list[int] = []

        def shared() -> bool:
            for member in members:
                messages = member.consume(100, 0.05)
                collected.extend(int(message.value()) for message in messages if message.error() is None)
            return sorted(len(member.assignment()) for member in members) == [1, 2] and len(set(collected)) == 30

        for member in members:
            member.subscribe(["orders"])
        wait_until(shared)
        for member in members:
            member.close()
        assert fake.committed_offsets("g") == {("orders", number): 10 for number in range(3)}

    def test_transactions_commit_and_abort(self, fake: FakeKafka, client: dict[str, object]) -> None:
        producer = confluent_kafka.Producer({**client, "transactional.id": "t"})
        producer.init_transactions(30)
        for value, end in ((b"kept", producer.commit_transaction), (b"dropped", producer.abort_transaction)):
            producer.begin_transaction()
            producer.produce("orders", value)
            producer.flush(30)
            end(30)
        assert [record.value for record in fake.records("orders")] == [b"kept"]
        reader = confluent_kafka.Consumer({**client, **GROUP})
        reader.subscribe(["orders"])
        assert [message.value() for message in reader.consume(1, 30)] == [b"kept"]
        reader.close()

    def test_offsets_are_committed_in_a_transaction(self, fake: FakeKafka, client: dict[str, object]) -> None:
        fake.produce("orders", "1", partition=0)
        consumer = confluent_kafka.Consumer({**client, **GROUP, "enable.auto.commit": False})
        consumer.subscribe(["orders"])
        (record,) = consumer.consume(1, 30)
        producer = confluent_kafka.Producer({**client, "transactional.id": "t"})
        producer.init_transactions(30)
        producer.begin_transaction()
        after = confluent_kafka.TopicPartition("orders", 0, record.offset() + 1)
        producer.send_offsets_to_transaction([after], consumer.consumer_group_metadata(), 30)
        assert fake.committed_offsets("g") == {}
        producer.commit_transaction(30)
        assert fake.committed_offsets("g") == {("orders", 0): 1}
        consumer.close()

    def test_administration(self, fake: FakeKafka, client: dict[str, object]) -> None:
        admin = AdminClient(client)
        admin.create_topics([NewTopic("new", 2, config={"retention.ms": "1000"})])["new"].result(30)
        resource = ConfigResource(ResourceType.TOPIC, "new")
        assert admin.describe_configs([resource])[resource].result(30)["retention.ms"].value == "1000"
        assert set(admin.list_topics(timeout=30).topics) == {"orders", "new"}
        assert len(admin.describe_cluster().result(30).nodes) == 3
        admin.delete_topics(["new"])["new"].result(30)
        assert set(fake.controller.image.topics) == {"orders"}

    def test_producer_survives_moved_leaders_and_dropped_connections(
        self, fake: FakeKafka, client: dict[str, object]
    ) -> None:
        producer = confluent_kafka.Producer({**client, "enable.idempotence": True, "retry.backoff.ms": 20})
        for number in range(100):
            producer.produce("orders", b"%d" % number, partition=0)
            if number % 20 == 10:
                producer.poll(0.05)
                fake.drop_connections()
                fake.shuffle_leaders()
        assert producer.flush(60) == 0
        assert [int(record.value) for record in fake.records("orders", 0)] == list(range(100))


class TestJavaTools:
    """The same commands on the in-memory cluster and on a real one print the same."""

    def outputs(self, fake: FakeKafka | RealKafka, tools: LocalKafka) -> list[str]:
        """Return the output of each command, without what differs between any two clusters."""
        at = ("--bootstrap-server", fake.bootstrap_servers)
        topic, group = "java-tools", "java-tools-group"
        create = ("--create", "--topic", topic, "--partitions", "2", "--config", "retention.ms=-1")
        keyed = ("--reader-property", "parse.key=true", "--reader-property", "key.separator=:")
        read = ("--topic", topic, "--from-beginning", "--max-messages", "3", "--timeout-ms", "60000", "--group")
        consumer_protocol = (group + "-2", "--command-property", "group.protocol=consumer")
        lines = [
            tools.run_tool(TOPICS, *at, *create),
            tools.run_tool(TOPICS, *at, "--describe", "--topic", topic),
            tools.run_tool(PRODUCER, *at, "--topic", topic, *keyed, input_text="a:1\na:2\na:3\n"),
            tools.run_tool(CONSUMER, *at, *read, group, "--formatter-property", "print.partition=true"),
            tools.run_tool(GROUPS, *at, "--describe", "--group", group, "--timeout", "30000"),
            tools.run_tool(CONSUMER, *at, *read, *consumer_protocol),
            tools.run_tool(GROUPS, *at, "--delete", "--group", group),
        ]
        return [_normal(line) for line in lines]

    def test_outputs_equal_those_of_a_real_cluster(self, kafka1: LocalKafka) -> None:
        """Slow: starts fourteen JVMs, one for each command of Kafka's tools on each cluster."""
        with FakeKafka() as fake, RealKafka(kafka1.bootstrap_servers, exclusive=True) as real:
            assert self.outputs(fake, kafka1) == self.outputs(real, kafka1)


def _normal(output: str) -> str:
    """Return an output without topic ids, broker settings, eligible leaders (KIP-966) and the width of columns."""
    output = re.sub(r"TopicId: \S+|Configs: \S+|\b(LastKnown)?Elr:.*", "", output)
    return "\n".join(" ".join(line.split()) for line in output.splitlines())

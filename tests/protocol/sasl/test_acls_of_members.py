"""Group members without an ACL: a query names it; a leader names the topic of another member that it lacks it for."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator

import pytest

from protocol.consumer.group_consumer_config import parse_group_consumer
from protocol.consumer.kafka_consumer import KafkaConsumer
from protocol.errors import BrokerError, KafkaError
from spark_kafka_source.driver.stream_reader import KafkaStreamReader
from spark_kafka_source.local_kafka.config import version_numbers
from spark_kafka_source.options.parsing import parse_source_options
from tests.conftest import KAFKA_VERSION, TopicFactory, topic_factory
from tests.protocol.consumer.members import Member, read
from tests.protocol.fetch.consuming import produce
from tests.protocol.sasl.acls import ALICE, BOB, Acl, allow
from tests.protocol.sasl.conftest import ClientFactory
from tests.protocol.security.secure_parts import options
from tests.support.secured_kafka import SecuredKafka
from tests.support.wait_until import wait_until

pytestmark = pytest.mark.kafka

# A short heartbeat interval, so that a leader learns soon that another member has joined.
CLASSIC = {"group.protocol": "classic", "heartbeat.interval.ms": "300"}


@pytest.fixture
def topic(secured: SecuredKafka) -> Iterator[TopicFactory]:
    """Create a topic with three records."""
    factory = topic_factory(secured.kafka)
    create = next(factory)

    def filled() -> str:
        name = create()
        produce(secured.kafka, name, range(3))
        return name

    yield filled
    for _ in factory:
        pass


def acls_of_member(topic: str, group: str) -> list[Acl]:
    return [Acl("Read", "Group", group), Acl("Read", "Topic", topic)]


def query_of_bob(secured: SecuredKafka, topic: str, group: str, protocol: dict[str, str]) -> KafkaStreamReader:
    properties = secured.properties("SASL_PLAINTEXT") | BOB | {"group.id": group, **protocol}
    return KafkaStreamReader(parse_source_options({**options(properties), "subscribe": topic}, streaming=True))


def begin(query: KafkaStreamReader) -> None:
    query.latestOffset(query.initialOffset(), query.getDefaultReadLimit())


@pytest.mark.parametrize(
    "protocol", [CLASSIC, {"group.protocol": "consumer"}], ids=lambda protocol: protocol["group.protocol"]
)
@pytest.mark.parametrize("missing", ["Group", "Topic"])
def test_query_names_the_missing_acl(
    secured: SecuredKafka, topic: TopicFactory, protocol: dict[str, str], missing: str
) -> None:
    if protocol is not CLASSIC and version_numbers(KAFKA_VERSION) < (4, 0):
        pytest.skip("the consumer protocol begins with Kafka 4.0")
    name = topic()
    acls = {acl.resource: acl for acl in acls_of_member(name, f"group-{name}")}
    lacking = acls.pop(missing)
    allow(secured.kafka, acls.values())
    query = query_of_bob(secured, name, f"group-{name}", protocol)
    with pytest.raises(KafkaError, match=rf"\(it needs .*on {missing} {lacking.name}\b.*"):
        begin(query)
    query.stop()


class TestLeader:
    """bob leads a classic group and assigns for all members, without an ACL for a topic that alice subscribes to."""

    @pytest.fixture
    def allowed_topic(self, secured: SecuredKafka, topic: TopicFactory) -> str:
        """Return the name of the topic and of the group."""
        name = topic()
        allow(secured.kafka, acls_of_member(name, name))
        return name

    def test_leaders_poll_raises_the_missing_acl_once(
        self, secured: SecuredKafka, client: ClientFactory, topic: TopicFactory, allowed_topic: str
    ) -> None:
        with consumer(client, BOB, allowed_topic) as leader, consumer(client, ALICE, allowed_topic) as second:
            leader.subscribe([allowed_topic])
            read(leader, 3)
            second.subscribe([hidden := topic()])
            with pytest.raises(BrokerError, match=missing_read_acl_of(hidden)):
                wait_until(lambda: not (leader.poll(50), second.poll(50)))
            produce(secured.kafka, allowed_topic, range(3, 6))
            read(leader, 3)

    def test_leaders_handler_gets_the_missing_acl(
        self, client: ClientFactory, topic: TopicFactory, allowed_topic: str
    ) -> None:
        leader = Member(client(BOB), allowed_topic, allowed_topic, **CLASSIC)
        try:
            wait_until(lambda: len(leader.handled) == 3)
            with consumer(client, ALICE, allowed_topic) as second:
                second.subscribe([hidden := topic()])
                wait_until(lambda: second.poll(50) is not None and leader.errors)
        finally:
            leader.close()
        (error,) = leader.errors
        assert re.search(missing_read_acl_of(hidden), str(error))

    def test_leading_query_logs_the_missing_acl(
        self,
        secured: SecuredKafka,
        client: ClientFactory,
        topic: TopicFactory,
        allowed_topic: str,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        leader = query_of_bob(secured, allowed_topic, allowed_topic, CLASSIC)
        begin(leader)
        with consumer(client, ALICE, allowed_topic) as second, caplog.at_level(logging.WARNING):
            second.subscribe([hidden := topic()])

            def is_said() -> bool:
                second.poll(50)
                begin(leader)
                return re.search(missing_read_acl_of(hidden), caplog.text) is not None

            wait_until(is_said)
        leader.stop()


def consumer(client: ClientFactory, who: dict[str, str], group: str) -> KafkaConsumer:
    properties = {"group.id": group, "auto.offset.reset": "earliest", **CLASSIC}
    return KafkaConsumer(client(who), parse_group_consumer(properties))


def missing_read_acl_of(topic: str) -> str:
    return rf"no member is assigned the partitions of {topic}: TOPIC_AUTH.* \(it needs Describe on Topic {topic}\b"

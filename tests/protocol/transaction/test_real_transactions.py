"""Transactions on a real Kafka, in both protocols; verified with librdkafka, Kafka's own tools and our consumer."""

from __future__ import annotations

import itertools
import random
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import nullcontext, suppress

import pytest

from protocol.admin.transactions import OPEN_STATES, list_transactions
from protocol.cluster.client import Client
from protocol.cluster.coordinators import transaction_coordinator
from protocol.config import parse_client
from protocol.errors import KafkaError, OutcomeLost, OutcomeUnknown, ProducerFenced, UsageError
from protocol.producer.results import RecordMetadata
from protocol.producer.transactional_producer import TransactionalProducer
from protocol.wire.messages.m22_init_producer_id import INIT_PRODUCER_ID
from protocol.wire.messages.m26_end_txn import END_TXN
from spark_kafka_source.local_kafka import LocalKafka
from spark_kafka_source.local_kafka.config import version_numbers
from tests.conftest import KAFKA_VERSION, TopicFactory
from tests.protocol.producer.producing import numbered, send_numbered
from tests.protocol.transaction.producing import PREFIX, new_id, numbers_in, started
from tests.support.console_consumer import console_command
from tests.support.kafka_proxy import Fate, KafkaProxy
from tests.support.soak import SOAK, scaled
from tests.support.transaction_version import transactions_before_kip_890
from tests.support.wait_for_brokers import wait_until_decided
from tests.support.wait_until import wait_until
from tests.support.whole_rows import rows_of_librdkafka

pytestmark = pytest.mark.soak


@pytest.fixture(scope="module", params=[1, 2], ids=["before KIP-890", "since KIP-890"])
def one_broker(request: pytest.FixtureRequest, kafka1: LocalKafka) -> Iterator[LocalKafka]:
    before = version_numbers(KAFKA_VERSION) < (4, 0)
    if request.param == 2 and before:
        pytest.skip("KIP-890 begins with Kafka 4.0")
    with nullcontext() if request.param == 2 or before else transactions_before_kip_890(kafka1):
        yield kafka1


@pytest.fixture(autouse=True)
def _no_transaction_is_left_open(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if version_numbers(KAFKA_VERSION) < (3, 0):
        return  # no tool shows it
    choice = "one_broker" if "one_broker" in request.fixturenames else "kafka"
    kafka: LocalKafka = request.getfixturevalue(choice)
    with Client(parse_client({"bootstrap.servers": kafka.bootstrap_servers})) as client:

        def open_transactions() -> object:
            return list_transactions(client, prefix=PREFIX, states=OPEN_STATES)

        wait_until(lambda: not open_transactions(), lambda: str(open_transactions()), every_s=0.02)


@pytest.fixture
def client(one_broker: LocalKafka) -> Iterator[Client]:
    with Client(parse_client({"bootstrap.servers": one_broker.bootstrap_servers})) as client:
        yield client


@pytest.fixture
def proxy(one_broker: LocalKafka) -> Iterator[KafkaProxy]:
    with KafkaProxy.of(one_broker) as proxy:
        yield proxy


@pytest.fixture
def through_proxy(proxy: KafkaProxy) -> Iterator[Client]:
    with Client(parse_client({"bootstrap.servers": proxy.servers, "retry.backoff.ms": 20})) as client:
        yield client


def test_reader_of_committed_records_sees_committed_ones_only(
    one_broker: LocalKafka, client: Client, topic1: TopicFactory
) -> None:
    name, producer = topic1(3), started(client, new_id())
    for first in range(0, 3_000, 500):
        producer.begin_transaction()
        send_numbered(producer, name, first, 500, 3)
        if first % 1_000:
            producer.flush()
            producer.abort_transaction()
        else:
            producer.commit_transaction()
    committed = [number for number in range(3_000) if number % 1_000 < 500]
    expected = [[number for number in committed if number % 3 == partition] for partition in range(3)]
    assert decided_numbers(one_broker, client, name, 3) == expected
    rows = rows_of_librdkafka(one_broker, [(name, number) for number in range(3)], "read_committed")
    assert [[int(row[2][:9]) for row in rows[name, number]] for number in range(3)] == expected
    assert read_by_java(one_broker, name, len(committed)) == committed


def test_results_of_commits_and_messages_are_true_while_other_threads_send(
    one_broker: LocalKafka, client: Client, topic1: TopicFactory
) -> None:
    name, producer = topic1(3), started(client, new_id(), linger_ms=1)
    sent: list[tuple[int, Future[RecordMetadata]]] = []
    stopped = threading.Event()

    def send_all_the_while() -> None:
        for number in itertools.count(1_000):
            if stopped.wait(0.0005):
                return
            with suppress(UsageError):  # between transactions
                sent.append((number, producer.send(name, b"%09d" % number)))

    sender = threading.Thread(target=send_all_the_while)
    sender.start()
    try:
        for number in range(40):
            producer.begin_transaction()
            producer.send(name, b"%09d" % number)
            producer.commit_transaction()
    finally:
        stopped.set()
        sender.join()
    producer.close()
    observed = sorted(number for numbers in decided_numbers(one_broker, client, name, 3) for number in numbers)
    written = [number for number, future in sent if future.exception(10) is None]
    assert observed == [*range(40), *written]
    assert written


def decided_numbers(kafka: LocalKafka, client: Client, topic: str, partitions: int = 1) -> list[list[int]]:
    """Return the committed numbers by partition, after the end of all transactions."""
    wait_until_decided(kafka, [(topic, number) for number in range(partitions)])
    return numbers_in(client, topic, partitions)


def commit_ten(producer: TransactionalProducer, topic: str, first: int) -> None:
    """Write the numbers first..first+9 in a transaction."""
    producer.begin_transaction()
    producer.send_columns(topic, numbered(first, 10))
    producer.commit_transaction()


def read_by_java(kafka: LocalKafka, topic: str, count: int) -> list[int]:
    """Return the numbers that Kafka's console consumer prints, sorted."""
    command = console_command(kafka, topic, new_id(), isolation_level="read_committed")
    done = subprocess.run(
        [*command, "--max-messages", str(count), "--timeout-ms", "30000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        timeout=60,
        check=False,
    )
    result = sorted(int(line[:9]) for line in done.stdout.splitlines() if line[:1].isdigit())
    assert len(result) == count
    return result


@pytest.mark.skipif(not SOAK, reason="32,764 requests; the model of a cluster covers it at once")
def test_last_epoch_is_followed_by_another_producer_id(
    one_broker: LocalKafka, proxy: KafkaProxy, through_proxy: Client, client: Client, topic1: TopicFactory
) -> None:
    name, transactional_id = topic1(), new_id()
    started(client, transactional_id)
    broker = client.coordinator(transaction_coordinator(transactional_id), client.deadline())
    body, epoch = {"transactional_id": transactional_id, "transaction_timeout_ms": 60_000}, 0
    while epoch < 32_764:
        answer = client.ask(broker, INIT_PRODUCER_ID, body, client.deadline())
        epoch = epoch if answer["error_code"] else answer["producer_epoch"]
    producer = started(through_proxy, transactional_id)
    proxy.replies[END_TXN] = lambda exchange: Fate.CUT if exchange.number % 2 else Fate.PASS
    for first in range(0, 60, 10):
        commit_ten(producer, name, first)
    assert decided_numbers(one_broker, client, name) == [list(range(60))]


@pytest.mark.skipif(not SOAK, reason="takes minutes; one kill is tested above")
@pytest.mark.timeout(900)
def test_transactions_survive_brokers_killed_in_turn(kafka: LocalKafka, topic: TopicFactory) -> None:
    """A program that aborts and rewrites failed records, and checks commits with an unknown outcome."""
    name, kills, transactional_id = topic(6, 3), scaled("KILLS", 9, 20), new_id()
    stopped = threading.Event()

    def kill_some() -> None:
        for number in range(kills):
            broker_id = kafka.broker_ids[number % 3]
            time.sleep(random.Random(number).uniform(0.5, 4))
            kafka.kill(broker_id)
            time.sleep(2)
            kafka.start(broker_id)
        stopped.set()

    killer = threading.Thread(target=kill_some)
    killer.start()
    written = 0
    with Client(parse_client({"bootstrap.servers": kafka.bootstrap_servers})) as client:
        producer = started(client, transactional_id)
        while not stopped.is_set():
            try:
                producer.begin_transaction()
                send_numbered(producer, name, written, 300, 6)
                producer.commit_transaction()
            except ProducerFenced:
                producer.close()
                producer = started(client, transactional_id)
                continue
            except (OutcomeUnknown, OutcomeLost):
                # Committed or aborted by now: for a new producer the coordinator completes the transaction.
                producer.close()
                producer = started(client, transactional_id)
                result = sum(map(len, decided_numbers(kafka, client, name, 6)))
                assert result in (written, written + 300)
                written = result
                continue
            except KafkaError:
                producer.abort_transaction()
                continue
            written += 300
        killer.join()
        producer.close()
        assert decided_numbers(kafka, client, name, 6) == [list(range(number, written, 6)) for number in range(6)]
    print(f"{written} records in {written // 300} transactions, {kills} kills")

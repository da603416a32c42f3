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
from protocol.broker_errors import ErrorCode
from protocol.cluster.client import Client
from protocol.cluster.coordinators import transaction_coordinator
from protocol.config import parse_client
from protocol.errors import KafkaError, OutcomeLost, OutcomeUnknown, ProducerFenced, TransactionFailed, UsageError
from protocol.group.commits.committed_offsets import CommittedOffset
from protocol.group.member import ConsumerGroupMetadata
from protocol.producer.results import RecordMetadata
from protocol.producer.transactional_producer import TransactionalProducer
from protocol.transaction.end_transaction import TransactionOutcome, end_transaction
from protocol.wire.messages.m00_produce import PRODUCE
from protocol.wire.messages.m22_init_producer_id import INIT_PRODUCER_ID
from protocol.wire.messages.m26_end_txn import END_TXN
from spark_kafka_source.local_kafka import LocalKafka
from spark_kafka_source.local_kafka.config import version_numbers
from tests.conftest import KAFKA_VERSION, TopicFactory
from tests.protocol.producer.producing import numbered, send_numbered
from tests.protocol.transaction.producing import PREFIX, new_id, numbers_in, started
from tests.support.console_consumer import console_command
from tests.support.consumer_groups import describe, described_by_kafka
from tests.support.kafka_proxy import Exchange, Fate, KafkaProxy
from tests.support.soak import SOAK, scaled
from tests.support.transaction_version import transactions_before_kip_890
from tests.support.wait_for_brokers import wait_until_decided
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
        deadline_s = time.monotonic() + 20
        while transactions := list_transactions(client, prefix=PREFIX, states=OPEN_STATES):
            assert time.monotonic() < deadline_s, transactions
            time.sleep(0.02)


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


def drop_every_third(exchange: Exchange) -> Fate:
    return Fate.CUT if exchange.number % 3 == 0 else Fate.PASS


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
    wait_until_decided(one_broker, [(name, number) for number in range(3)])
    committed = [number for number in range(3_000) if number % 1_000 < 500]
    expected = [[number for number in committed if number % 3 == partition] for partition in range(3)]
    assert numbers_in(client, name, 3) == expected
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
    wait_until_decided(one_broker, [(name, number) for number in range(3)])
    observed = sorted(number for numbers in numbers_in(client, name, 3) for number in numbers)
    written = [number for number, future in sent if future.exception(10) is None]
    assert observed == [*range(40), *written]
    assert written


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


def test_offsets_are_visible_when_the_transaction_commits(
    one_broker: LocalKafka, client: Client, topic1: TopicFactory
) -> None:
    name, group, producer = topic1(2), new_id(), started(client, new_id())
    for offset, end in ((1, producer.commit_transaction), (2, producer.abort_transaction)):
        producer.begin_transaction()
        send_numbered(producer, name, 0, 10, 2)
        offsets = {(name, number): CommittedOffset(offset) for number in range(2)}
        producer.send_offsets_to_transaction(offsets, ConsumerGroupMetadata(group))
        end()
    wait_until_decided(one_broker, [(name, 0), (name, 1)])
    for judge in (describe, described_by_kafka):
        assert [(row.partition, row.current_offset) for row in judge(one_broker, group)] == [(0, 1), (1, 1)]


def test_transactions_without_records_end_successfully(client: Client, topic1: TopicFactory) -> None:
    name, producer = topic1(), started(client, new_id())
    for end in (producer.commit_transaction, producer.abort_transaction, producer.commit_transaction):
        producer.begin_transaction()
        end()
    producer.begin_transaction()
    producer.send_columns(name, numbered(0, 1))
    producer.commit_transaction()


def old_sends(name: str, old: TransactionalProducer) -> None:
    old.send_columns(name, numbered(10, 10))
    old.flush()


def test_older_producer_is_fenced(one_broker: LocalKafka, client: Client, topic1: TopicFactory) -> None:
    name, transactional_id = topic1(), new_id()
    old = started(client, transactional_id)
    old.begin_transaction()
    old.send_columns(name, numbered(0, 10))
    old.flush()
    new = started(client, transactional_id)
    with pytest.raises(KafkaError):
        old_sends(name, old)
    with pytest.raises((ProducerFenced, TransactionFailed)):
        old.commit_transaction()
    with pytest.raises(ProducerFenced):
        old.abort_transaction()
    new.begin_transaction()
    new.send_columns(name, numbered(20, 10))
    new.commit_transaction()
    wait_until_decided(one_broker, [(name, 0)])
    assert numbers_in(client, name, 1) == [list(range(20, 30))]


def test_lost_replies_lose_no_records(
    one_broker: LocalKafka, proxy: KafkaProxy, through_proxy: Client, client: Client, topic1: TopicFactory
) -> None:
    name, producer = topic1(3), started(through_proxy, new_id())
    proxy.replies[END_TXN] = drop_every_third
    proxy.replies[PRODUCE] = lambda exchange: Fate.CUT if exchange.number % 7 == 0 else Fate.PASS
    for first in range(0, 3_000, 300):
        producer.begin_transaction()
        send_numbered(producer, name, first, 300, 3)
        producer.commit_transaction()
    wait_until_decided(one_broker, [(name, number) for number in range(3)])
    assert numbers_in(client, name, 3) == [list(range(number, 3_000, 3)) for number in range(3)]


def test_commit_without_a_reply_is_unknown_until_a_reply(
    one_broker: LocalKafka, proxy: KafkaProxy, through_proxy: Client, client: Client, topic1: TopicFactory
) -> None:
    name, producer = topic1(), started(through_proxy, new_id())
    producer.begin_transaction()
    producer.send_columns(name, numbered(0, 10))
    producer.flush()
    proxy.replies[END_TXN] = lambda exchange: Fate.CUT
    with pytest.raises(OutcomeUnknown):
        producer.commit_transaction(300)
    proxy.replies.clear()
    producer.commit_transaction()
    wait_until_decided(one_broker, [(name, 0)])
    assert numbers_in(client, name, 1) == [list(range(10))]


def test_late_end_request_does_not_end_the_next_transaction(
    one_broker: LocalKafka, proxy: KafkaProxy, through_proxy: Client, client: Client, topic1: TopicFactory
) -> None:
    """As found by Jepsen: the EndTxn whose reply was lost reaches the coordinator again, later."""
    name, transactional_id = topic1(), new_id()
    producer, late = started(through_proxy, transactional_id), []

    def lose_the_first(exchange: Exchange) -> Fate:
        return Fate.CUT if exchange.number == 1 else Fate.PASS

    def keep(exchange: Exchange) -> Fate:
        late.append((exchange.version, exchange.request()))
        return Fate.PASS

    proxy.requests[END_TXN], proxy.replies[END_TXN] = keep, lose_the_first
    producer.begin_transaction()
    producer.send_columns(name, numbered(0, 10))
    producer.commit_transaction()
    producer.begin_transaction()
    producer.send_columns(name, numbered(10, 10))
    producer.flush()
    version, body = late[0]
    broker = client.coordinator(transaction_coordinator(transactional_id), client.deadline())
    answer = client.ask(broker, END_TXN, body, client.deadline(), at_least=version, at_most=version)
    assert answer["error_code"] in (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH)
    producer.abort_transaction()
    wait_until_decided(one_broker, [(name, 0)])
    assert numbers_in(client, name, 1) == [list(range(10))]


def test_transaction_over_its_timeout_is_aborted(one_broker: LocalKafka, client: Client, topic1: TopicFactory) -> None:
    name, transactional_id = topic1(), new_id()
    producer = started(client, transactional_id, transaction_timeout_ms=2_000)
    producer.begin_transaction()
    producer.send_columns(name, numbered(0, 10))
    producer.flush()
    wait_until_decided(one_broker, [(name, 0)])
    with pytest.raises(ProducerFenced):
        producer.commit_transaction()
    assert numbers_in(client, name, 1) == [[]]
    newer = started(client, transactional_id)
    newer.begin_transaction()
    newer.send_columns(name, numbered(10, 10))
    newer.commit_transaction()
    wait_until_decided(one_broker, [(name, 0)])
    assert numbers_in(client, name, 1) == [list(range(10, 20))]


def test_oversized_records_fail_one_transaction(one_broker: LocalKafka, client: Client, topic1: TopicFactory) -> None:
    name, producer = topic1(config={"max.message.bytes": "2000"}), started(client, new_id())
    producer.begin_transaction()
    producer.send_columns(name, numbered(0, 10))
    producer.send_columns(name, numbered(10, 1, 3_000))
    with pytest.raises(KafkaError, match="MESSAGE_TOO_LARGE"):
        producer.commit_transaction()
    producer.abort_transaction()
    producer.begin_transaction()
    producer.send_columns(name, numbered(20, 10))
    producer.commit_transaction()
    wait_until_decided(one_broker, [(name, 0)])
    assert numbers_in(client, name, 1) == [list(range(20, 30))]


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
        producer.begin_transaction()
        producer.send_columns(name, numbered(first, 10))
        producer.commit_transaction()
    wait_until_decided(one_broker, [(name, 0)])
    assert numbers_in(client, name, 1) == [list(range(60))]


def test_transaction_is_ended_by_another_process(one_broker: LocalKafka, client: Client, topic1: TopicFactory) -> None:
    name, producer = topic1(), started(client, new_id())
    producer.begin_transaction()
    producer.send_columns(name, numbered(0, 10))
    identity = producer.prepare_transaction()
    producer.close()
    with Client(parse_client({"bootstrap.servers": one_broker.bootstrap_servers})) as second:
        for maybe_ended in (False, True):
            ended = end_transaction(second, identity, commit=True, deadline=second.deadline(), maybe_ended=maybe_ended)
            assert ended.outcome is TransactionOutcome.COMMITTED
    wait_until_decided(one_broker, [(name, 0)])
    assert numbers_in(client, name, 1) == [list(range(10))]


def test_transaction_survives_a_killed_coordinator(kafka: LocalKafka, topic: TopicFactory) -> None:
    """Between the records and the commit: the next coordinator knows the transaction.

    Slow: three brokers elect a new coordinator, which loads its log.
    """
    name, transactional_id = topic(3, 3), new_id()
    with Client(parse_client({"bootstrap.servers": kafka.bootstrap_servers})) as client:
        producer: TransactionalProducer = started(client, transactional_id)
        producer.begin_transaction()
        send_numbered(producer, name, 0, 300, 3)
        producer.flush()
        coordinator = client.coordinator(transaction_coordinator(transactional_id), client.deadline()).node_id
        kafka.kill(coordinator)
        try:
            producer.commit_transaction()
            producer.begin_transaction()
            send_numbered(producer, name, 300, 300, 3)
            producer.commit_transaction()
        finally:
            kafka.start(coordinator)
        wait_until_decided(kafka, [(name, number) for number in range(3)])
        assert numbers_in(client, name, 3) == [list(range(number, 600, 3)) for number in range(3)]


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
                wait_until_decided(kafka, [(name, number) for number in range(6)])
                result = sum(map(len, numbers_in(client, name, 6)))
                assert result in (written, written + 300)
                written = result
                continue
            except KafkaError:
                producer.abort_transaction()
                continue
            written += 300
        killer.join()
        producer.close()
        wait_until_decided(kafka, [(name, number) for number in range(6)])
        assert numbers_in(client, name, 6) == [list(range(number, written, 6)) for number in range(6)]
    print(f"{written} records in {written // 300} transactions, {kills} kills")

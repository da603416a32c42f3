"""Each group of commands once on a broker of any version: it works, or one line names what the broker lacks."""

from __future__ import annotations

import re
import shlex

import pytest
from click.testing import CliRunner

from protocol import Producer, TransactionalProducer
from spark_kafka_source.cli.pykafka import pykafka
from spark_kafka_source.local_kafka import LocalKafka
from spark_kafka_source.local_kafka.config import version_numbers
from tests.cli.runs import invoke_at, rows
from tests.conftest import KAFKA_VERSION, TopicFactory

pytestmark = pytest.mark.kafka

VERSION = version_numbers(KAFKA_VERSION)
LACKS = r"Error: .*(does not support \w+ \(API key|no common version of \w+:|Kafka has settings of this type)"

# Commands with the first version of the brokers that support them. "orders" is a topic with ten records.
COMMANDS = {
    "topics describe orders --all-configs": (0, 0),
    "topics list --internal": (0, 0),
    "topics analyze orders": (0, 0),
    "topics alter orders --partitions 3 --config retention.ms=100000": (0, 0),
    "topics trim orders --before-offset 1 --execute": (0, 0),
    "consume orders -e -J": (0, 0),
    "consume orders -e -g orders-etl": (0, 0),
    "copy orders orders-copy": (0, 0),
    "replay orders": (0, 0),
    "groups list": (0, 0),
    "groups lag orders-etl": (0, 0),
    "groups reset orders-etl --all-topics --to-earliest --execute": (0, 0),
    "groups clone orders-etl orders-test --execute": (0, 0),
    "groups delete orders-test --yes": (0, 0),
    "configs describe broker 1 default": (0, 0),
    "configs set topic orders retention.ms=200000": (0, 0),
    "configs describe client-metrics m": (3, 7),
    "configs describe group g": (4, 0),
    "configs list": (4, 1),
    "quotas set --client-id cli-versions producer_byte_rate=1000000": (0, 0),
    "quotas list --client-id cli-versions": (0, 0),
    "cluster describe": (0, 0),
    "cluster describe --fenced": (4, 0),
    "cluster features": (0, 0),
    "cluster log-dirs --replicas": (0, 0),
    "cluster quorum": (3, 3),
    "txn list": (3, 0),
    "txn hanging orders": (0, 0),
    "doctor": (0, 0),
    "perf consume orders -n 5": (0, 0),
}


def test_commands_work_or_name_what_the_broker_lacks(kafka1: LocalKafka, topic1: TopicFactory) -> None:
    names = {"orders": topic1(2), "orders-copy": topic1(1)}
    group = f"group-{names['orders']}"
    names |= {"orders-etl": group, "orders-test": f"{group}-2"}
    with Producer({"bootstrap.servers": kafka1.bootstrap_servers}) as producer:
        for number in range(10):
            producer.send(names["orders"], b"%d" % number)
    for line, first in COMMANDS.items():
        words = [names.get(word, word) for word in shlex.split(line)]
        result = CliRunner().invoke(pykafka, words, env={"KAFKA_BOOTSTRAP_SERVERS": kafka1.bootstrap_servers})
        assert result.exception is None or isinstance(result.exception, SystemExit), (line, result.exception)
        if first <= VERSION:
            assert result.exit_code == 0, (line, result.output)
        else:
            assert (result.exit_code, result.stderr.count("\n")) == (1, 1), (line, result.output)
            assert re.match(LACKS, result.stderr), (line, result.stderr)


def test_open_transaction_is_listed_with_its_id_or_why_that_is_unknown(
    kafka1: LocalKafka, topic1: TopicFactory
) -> None:
    name, servers = topic1(1), {"bootstrap.servers": kafka1.bootstrap_servers}
    with TransactionalProducer({**servers, "transactional.id": f"of-{name}"}) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(name, b"open")
        producer.flush()
        result = invoke_at(kafka1, "txn", "hanging", name, "-o", "json")
        producer.abort_transaction()
    (row,) = rows(result)
    remembered = VERSION >= (3, 0)
    assert (row["start_offset"], row["transactional_id"]) == (0, f"of-{name}" if remembered else None)
    assert result.stderr.startswith("Transactional ids are unknown: ") != remembered

"""Run `pykafka` in this process or in another one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest
from click.testing import CliRunner, Result

from protocol.cluster.client import Client
from protocol.config import parse_client
from protocol.group.commits.committed_offsets import CommittedOffset, commit_offsets
from protocol.kafka_terms import TopicPartition
from protocol.testing import FakeKafka
from spark_kafka_source.cli.pykafka import pykafka
from spark_kafka_source.local_kafka import LocalKafka

NOWHERE = "127.0.0.1:1"
COMMAND = (sys.executable, "-m", "spark_kafka_source.cli")
_UNSET = dict.fromkeys(("KAFKA_BOOTSTRAP_SERVERS", "SCHEMA_REGISTRY_URL", "PYKAFKA_PROFILE", "PYSPARK_PYTHON"))


Kafka = FakeKafka | LocalKafka


def invoke(*arguments: str, code: int | None = 0, typed: str | bytes | None = None, **env: str | None) -> Result:
    """Run a command without profiles, brokers and registries of the environment; check its exit code, if given."""
    variables = {**_UNSET, "PYKAFKA_CONFIG": "none", **env}
    result = CliRunner().invoke(pykafka, arguments, env=variables, input=typed)
    assert code in (None, result.exit_code), result.output
    return result


def invoke_at(kafka: Kafka, *arguments: str, **options: Any) -> Result:
    """Call `invoke` with a cluster in the environment."""
    options.setdefault("KAFKA_BOOTSTRAP_SERVERS", kafka.bootstrap_servers)
    return invoke(*arguments, **options)


def run_at_kafka1(*command: str) -> Any:
    """Return a fixture: the function that runs `command` with further arguments on the broker `kafka1`."""

    @pytest.fixture
    def run(kafka1: Kafka) -> Any:
        return partial(invoke_at, kafka1, *command)

    return run


def refusal(*arguments: str, **options: Any) -> str:
    """Return the error, on one line, of a wrong usage that prints nothing else."""
    options.setdefault("KAFKA_BOOTSTRAP_SERVERS", NOWHERE)
    result = invoke(*arguments, code=2, **options)
    assert result.stdout == ""
    return " ".join(result.stderr.split())


def rows(result: Result) -> list[dict[str, Any]]:
    """Return the rows that a command has printed as JSON."""
    return list(json.loads(result.stdout))


def process_at(kafka: Kafka, *arguments: str, **options: Any) -> subprocess.Popen[str]:
    """Start a command in another process, whose output is a pipe."""
    environment = {**os.environ, "KAFKA_BOOTSTRAP_SERVERS": kafka.bootstrap_servers}
    options = {"stdout": subprocess.PIPE, "text": True, "env": environment, **options}
    return subprocess.Popen([*COMMAND, *arguments], **options)


def commit(kafka: Kafka, group: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Commit offsets for a group without members."""
    with Client(parse_client({"bootstrap.servers": kafka.bootstrap_servers})) as client:
        committed = {key: CommittedOffset(offset) for key, offset in offsets.items()}
        commit_offsets(client, group, committed, client.deadline())

"""`kafka.client.rack`: a literal value, or an environment variable of the executor."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from protocol.base import once
from protocol.config import ConsumerConfig
from spark_kafka_source.task.range_reader import resolve_client_rack


@pytest.fixture(autouse=True)
def _reset_warnings() -> Iterator[None]:
    once.reset()
    yield
    once.reset()


def test_rack_without_env_prefix_is_literal() -> None:
    for rack in ("", "eu-1a", "environment"):
        assert resolve_client_rack(ConsumerConfig(client_rack=rack)).client_rack == rack


def test_rack_variable_is_read_on_the_executor(monkeypatch: pytest.MonkeyPatch) -> None:
    config = ConsumerConfig(client_rack="env:MY_RACK", fetch_min_bytes=7)
    for rack in ("eu-1a", "eu-1b"):
        monkeypatch.setenv("MY_RACK", rack)
        assert resolve_client_rack(config) == ConsumerConfig(client_rack=rack, fetch_min_bytes=7)


def test_rack_with_unset_variable_is_empty_and_warns(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("MY_RACK", raising=False)
    with caplog.at_level(logging.WARNING):
        assert resolve_client_rack(ConsumerConfig(client_rack="env:MY_RACK")).client_rack == ""
    assert "kafka.client.rack is env:MY_RACK, which is not set here" in caplog.text

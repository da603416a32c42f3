"""Reuse of producers by the tasks of a worker process."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest

from protocol.config import ClientConfig, ProducerConfig
from spark_kafka_source.sink.producers import MAX_IDLE, borrowed_producer

CLIENT = ClientConfig((("127.0.0.1", 1),))
CONFIG = ProducerConfig()


class FakeProducer:
    def __init__(self, client: Any, config: ProducerConfig) -> None:
        self.config = config
        self.aborted = False

    def __enter__(self) -> FakeProducer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        assert kind is not None, "a pooled producer is not closed"
        self.abort()

    def abort(self) -> None:
        self.aborted = True


class FakeTransactionalProducer(FakeProducer):
    pass


FAKE: Any = FakeProducer


def borrow_and_give_back(config: ProducerConfig = CONFIG, make: Any = FAKE) -> Any:
    with borrowed_producer(CLIENT, config, make) as producer:
        return producer


def test_other_configuration_gets_separate_producer() -> None:
    producer_config = ProducerConfig(acks=1, enable_idempotence=False)
    assert borrow_and_give_back() is not borrow_and_give_back(producer_config)
    assert borrow_and_give_back(producer_config).config is producer_config


def test_transactional_producer_is_reused_for_next_transactional_id() -> None:
    of_task_0, of_task_1 = (replace(CONFIG, transactional_id=f"etl-{task}") for task in range(2))
    first = borrow_and_give_back(of_task_0, FakeTransactionalProducer)
    assert borrow_and_give_back(of_task_1, FakeTransactionalProducer) is first
    assert borrow_and_give_back() is not first


def test_producer_is_aborted_and_discarded_after_error() -> None:
    with pytest.raises(ValueError, match="rows"), borrowed_producer(CLIENT, CONFIG, FAKE) as failed:
        raise ValueError("rows")
    assert failed.aborted
    assert borrow_and_give_back() is not failed


def test_concurrent_borrowers_get_two_producers_and_one_is_pooled() -> None:
    with borrowed_producer(CLIENT, CONFIG, FAKE) as outer:
        inner = borrow_and_give_back()
        assert inner is not outer
    assert inner.aborted
    assert borrow_and_give_back() is outer


def test_forked_child_does_not_use_producer_of_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    parents = borrow_and_give_back()
    child = os.getpid() + 1
    monkeypatch.setattr(os, "getpid", lambda: child)
    assert borrow_and_give_back() is not parents
    assert not parents.aborted


def test_pool_of_idle_producers_is_bounded_and_evicts_oldest() -> None:
    made = [borrow_and_give_back(ProducerConfig(delivery_timeout_ms=100_000 + i)) for i in range(MAX_IDLE + 1)]
    assert [producer.aborted for producer in made] == [True] + [False] * MAX_IDLE

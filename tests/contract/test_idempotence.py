"""Checks of a leader for records of an idempotent producer."""

from __future__ import annotations

from typing import Any

from protocol.broker_errors import ErrorCode
from protocol.cluster.client import Client
from protocol.producer.idempotence import IdempotentSession
from tests.contract.raw_requests import batch, fetch, produce, values_in


def new_producer(client: Client) -> int:
    identity = IdempotentSession(client).identity(client.deadline())
    assert identity.producer_epoch == 0
    return identity.producer_id


def answer(client: Client, name: str, sequence: int, *values: bytes, producer: tuple[int, int]) -> tuple[int, int]:
    row = produce(client, name, batch(*values, producer=producer, sequence=sequence))
    return row["error_code"], row["base_offset"]


def test_producers_have_distinct_ids(client: Client) -> None:
    assert new_producer(client) != new_producer(client)


def test_duplicate_batch_is_acknowledged_but_not_written(client: Client, name: str) -> None:
    me = (new_producer(client), 0)
    assert answer(client, name, 0, b"a", b"b", producer=me) == (0, 0)
    assert answer(client, name, 2, b"c", producer=me) == (0, 2)
    assert answer(client, name, 0, b"a", b"b", producer=me) == (0, 0)
    assert answer(client, name, 2, b"c", producer=me) == (0, 2)
    assert values_in(fetch(client, name)) == [b"a", b"b", b"c"]


def test_broker_remembers_five_batches(client: Client, name: str) -> None:
    me = (new_producer(client), 0)
    for sequence in range(6):
        assert answer(client, name, sequence, b"%d" % sequence, producer=me) == (0, sequence)
    assert answer(client, name, 1, b"1", producer=me) == (0, 1)
    assert answer(client, name, 0, b"0", producer=me) == (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
    assert len(values_in(fetch(client, name))) == 6


def test_sequence_gap_is_refused(client: Client, name: str) -> None:
    me = (new_producer(client), 0)
    assert answer(client, name, 0, b"a", producer=me) == (0, 0)
    assert answer(client, name, 2, b"c", producer=me) == (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
    assert answer(client, name, 0, b"a", b"b", producer=me) == (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1), (
        "the batch overlaps an earlier one"
    )
    assert answer(client, name, 1, b"b", producer=me) == (0, 1)


def test_unknown_producer_may_start_at_any_sequence(client: Client, name: str) -> None:
    me = (new_producer(client), 0)
    assert answer(client, name, 7, b"a", producer=me) == (0, 0)
    assert answer(client, name, 0, b"b", producer=me) == (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)


def test_new_epoch_starts_at_sequence_0_and_fences_the_old_one(client: Client, name: str) -> None:
    me = new_producer(client)
    assert answer(client, name, 0, b"a", producer=(me, 0)) == (0, 0)
    assert answer(client, name, 1, b"b", producer=(me, 1)) == (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
    assert answer(client, name, 0, b"b", producer=(me, 1)) == (0, 1)
    assert answer(client, name, 1, b"c", producer=(me, 0)) == (ErrorCode.INVALID_PRODUCER_EPOCH, -1)
    assert answer(client, name, 1, b"c", producer=(me, 1)) == (0, 2)


def test_sequence_numbers_wrap_to_0_after_int32_max(client: Client, new_topic: Any) -> None:
    name, me, largest = new_topic(), (new_producer(client), 0), 2**31 - 1
    assert answer(client, name, largest - 1, b"a", producer=me) == (0, 0)
    assert answer(client, name, largest, b"b", b"c", producer=me) == (0, 1)
    assert answer(client, name, 1, b"d", producer=me) == (0, 3)
    assert answer(client, name, largest, b"b", b"c", producer=me) == (0, 1)

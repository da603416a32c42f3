"""Ctrl-C anywhere in an iteration over messages: the next read continues, and repeats at most one record."""

from __future__ import annotations

from contextlib import suppress
from itertools import islice

from protocol.kafka_terms import EARLIEST
from protocol.testing.fake_kafka.server import FakeKafka
from tests.protocol.fetch.consuming import client_of, consumer_of
from tests.support.interrupts import interrupted_at

RECORDS = 30
_CODE = ("protocol.fetch.partition_consumer", "protocol.fetch.fetch_buffer")


def test_next_read_continues_after_an_interrupt_anywhere_in_messages() -> None:
    with FakeKafka() as fake:
        fake.create_topic("orders")
        for _ in range(3):
            fake.produce("orders", *[b"value"] * (RECORDS // 3))
        with client_of(fake.bootstrap_servers) as client, consumer_of(client, {"fetch.max.wait.ms": 10}) as consumer:
            stream = consumer.consume_partition("orders", 0, EARLIEST)
            place, reached = 1, True
            while reached:
                stream.seek(0)
                offsets: list[int] = []
                messages = stream.messages(10_000)
                with suppress(KeyboardInterrupt), interrupted_at(place, _CODE) as was_reached:
                    while len(offsets) < RECORDS:
                        offsets.append(next(messages).offset)
                reached = was_reached()
                missing = RECORDS - stream.position
                assert missing - (RECORDS - len(offsets)) in (0, 1), place
                offsets += [message.offset for message in islice(stream.messages(10_000), missing)]
                assert sorted(set(offsets)) == list(range(RECORDS)), place
                assert len(offsets) <= RECORDS + 1, place
                place += 1
            assert place > 30, "messages was interrupted"

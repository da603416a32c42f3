"""The offsets behind the records of a poll, as a program commits them."""

from __future__ import annotations

import pyarrow as pa

from protocol import CommittedOffset, KafkaConsumer, TransactionalProducer
from protocol.consumer.consumer_records import ConsumerRecords
from protocol.testing import FakeKafka

ORDERS = ("orders", 0)


def test_offsets_behind_records_have_epoch_and_topic_id_as_the_consumers_own_commit() -> None:
    with FakeKafka() as kafka:
        kafka.create_topic("orders")
        kafka.set_leader_epoch("orders", 0, 3)
        servers = {"bootstrap.servers": kafka.bootstrap_servers}
        with TransactionalProducer({**servers, "transactional.id": "etl"}) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            for value in ("a", "b"):
                producer.send("orders", value)
            producer.commit_transaction()
        reading = {"group.id": "g", "auto.offset.reset": "earliest", "isolation.level": "read_committed"}
        with KafkaConsumer({**servers, **reading, "enable.auto.commit": False}) as consumer:
            consumer.assign([ORDERS])
            records = consumer.poll(20_000)
            offsets = records.next_offsets
            consumer.commit_sync()
            assert offsets == consumer.committed([ORDERS])
            assert offsets[ORDERS].offset == 3, "behind the marker of the transaction"
            assert offsets[ORDERS].leader_epoch == 3
            kafka.produce("orders", "c", partition=0)
            consumer.poll(20_000)
            assert records.next_offsets == offsets, "the offsets of the same poll"


def test_offsets_follow_from_batches_alone() -> None:
    batch = pa.record_batch({"offset": pa.array([7, 9], pa.int64())})
    assert ConsumerRecords({ORDERS: [batch]}).next_offsets == {ORDERS: CommittedOffset(10)}

"""The judge of the exactly-once sink finds late rows wherever they are."""

from __future__ import annotations

import pytest

from protocol.testing import FakeKafka
from tests.simulation.sink_judge import PARTITIONS, TOPIC, Checkpoint, RequestJudge


@pytest.mark.parametrize("values", [["1:0:1:0"], ["0:0:0:0", "1:0:1:0"]])
@pytest.mark.parametrize("partition", [0, PARTITIONS])
def test_late_row_is_found_in_each_partition_and_record(values: list[str], partition: int) -> None:
    with FakeKafka() as kafka:
        kafka.create_topic(TOPIC, PARTITIONS + 1)
        checkpoint = Checkpoint(is_stream=True, transactions=kafka.transactions.transactions)
        judge = RequestJudge(kafka, checkpoint)
        kafka.produce(TOPIC, *values, partition=partition)
        batch = kafka.log(TOPIC, partition).batches[0]
        checkpoint.decided.append((1, 0))
        judge.judge_late_attempts()
        judge._decided_at_init[batch.producer_id, batch.producer_epoch - 1] = 1  # after the decision
        with pytest.raises(AssertionError, match="written after its batch: 1:0:1:0"):
            judge.judge_late_attempts()

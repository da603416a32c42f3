"""What a reused Python worker pays between two tasks."""

from __future__ import annotations

import subprocess
import sys

_COLLECTION = """
import gc, pyspark.worker, pandas
from spark_kafka_source.task.worker_tuning import tune_worker
gc.collect()
before = len(gc.get_objects())
tune_worker()
frozen = gc.get_freeze_count()
tune_worker()
print(before, len(gc.get_objects()), frozen, gc.get_freeze_count())
"""


def _run(program: str) -> list[int]:
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return [int(word) for word in ended.stdout.split()]


def test_the_collection_after_a_task_looks_at_nothing_that_was_there_before() -> None:
    before, after, frozen, frozen_later = _run(_COLLECTION)
    assert before > 50_000
    assert after < before / 100
    assert frozen > before * 0.9
    assert frozen_later <= frozen

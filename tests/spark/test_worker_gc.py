"""What a reused Python worker pays for the full garbage collection that Spark runs after every task."""

from __future__ import annotations

import subprocess
import sys

_PROGRAM = """
import gc, pandas, pyarrow, pyspark.worker
from spark_kafka_source.worker_gc import freeze_once
gc.collect()
before = len(gc.get_objects())
freeze_once()
kept = [object() for _ in range(3)]
kept.append(kept)
frozen = gc.get_freeze_count()
freeze_once()
print(before, len(gc.get_objects()), frozen, gc.get_freeze_count())
"""


def test_what_is_loaded_is_looked_at_no_more_and_only_the_first_call_freezes() -> None:
    printed = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True).stdout
    before, after, frozen, frozen_later = map(int, printed.split())
    assert before > 50_000
    assert after < before / 100
    assert frozen > before * 0.9
    assert frozen_later <= frozen

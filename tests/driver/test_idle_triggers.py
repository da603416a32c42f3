"""The log hint for queries that poll many partitions without a pause between triggers."""

from __future__ import annotations

import pytest

from spark_kafka_source.driver.query_state import IdleTriggers
from tests.driver.changing_logs import Cluster, next_end, read_to

PARTITIONS = 3_000


@pytest.mark.parametrize(
    ("pause_s", "cpu_s", "idle", "triggers", "hinted"),
    [
        (0.2, 0.13, True, 200, 1),
        (0.01, 0.13, True, 20, 0),
        (0.9, 0.13, True, 200, 0),
        (0.01, 0.002, True, 200, 0),
        (0.01, 0.13, False, 200, 0),
    ],
    ids=["without a pause", "a few", "with an interval", "few partitions", "with new records"],
)
def test_costly_idle_triggers_without_pause_log_one_hint(
    caplog: pytest.LogCaptureFixture, pause_s: float, cpu_s: float, idle: bool, triggers: int, hinted: int
) -> None:
    observed, now_s = IdleTriggers(), 0.0
    for _ in range(triggers):
        now_s += pause_s + cpu_s
        observed.ended(idle=idle, ended_s=now_s, cpu_s=cpu_s, partitions=PARTITIONS)
    hints = [entry.getMessage() for entry in caplog.records]
    assert len(hints) == hinted
    assert all("3000 partitions" in hint and "processingTime" in hint for hint in hints)


def test_trigger_that_plans_batch_is_not_idle(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    idle_triggers: list[bool] = []
    monkeypatch.setattr(IdleTriggers, "ended", lambda self, *, idle, **_: idle_triggers.append(idle))
    reader = cluster.reader()
    for _ in range(2):
        next_end(reader, read_to(20))
    cluster.set_log("a", 0, 0, 25)
    next_end(reader, read_to(20))
    assert idle_triggers == [True, True, False]

"""The examples of docs/consuming.md run as the page describes."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import pytest

from protocol.group.commits.committed_offsets import fetch_offsets
from protocol.records.decode import ALL_COLUMNS
from spark_kafka_source.local_kafka import LocalKafka
from tests.conftest import ROOT, TopicFactory
from tests.protocol.fetch.consuming import client_of, produce
from tests.support.consumer_groups import describe
from tests.support.wait_until import wait_until

PAGE = Path(ROOT / "docs" / "consuming.md").read_text()
TABLE, FIRST, HANDLER, POLLING, ASSIGNOR, DECOUPLED = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_topic_is_read_as_a_table(kafka: LocalKafka, topic: TopicFactory, capsys: pytest.CaptureFixture[str]) -> None:
    name = topic(3)
    produce(kafka, name, range(10), 3)
    exec(TABLE, {"bootstrap_servers": kafka.bootstrap_servers, "topic": name})
    columns, counts = capsys.readouterr().out.splitlines()
    assert columns == str(["topic", "partition", *ALL_COLUMNS])
    assert counts == str([{"partition": number, "offset_count": count} for number, count in enumerate((4, 3, 3))])


def test_first_example_runs(kafka: LocalKafka, topic: TopicFactory, capsys: pytest.CaptureFixture[str]) -> None:
    name = topic(1)
    produce(kafka, name, range(10))
    example = FIRST.replace("timeout_ms=1_000", "timeout_ms=5_000")
    assert example != FIRST
    exec(example, {"bootstrap_servers": kafka.bootstrap_servers, "topic": name})
    assert capsys.readouterr().out == "10 10 0\n"


@pytest.mark.parametrize("example", [HANDLER, POLLING], ids=["a handler", "polling"])
def test_group_reads_and_commits(
    kafka: LocalKafka, topic: TopicFactory, capsys: pytest.CaptureFixture[str], example: str
) -> None:
    name = topic(1)
    produce(kafka, name, range(10))
    stop = threading.Event()

    def has_committed() -> bool:
        with client_of(kafka) as client:
            return bool(fetch_offsets(client, name, None, client.deadline()))

    def stop_when_committed() -> None:
        wait_until(has_committed, every_s=0.05)
        stop.set()

    watch = threading.Thread(target=stop_when_committed)
    watch.start()
    names = {"bootstrap_servers": kafka.bootstrap_servers, "topic": name, "group": name}
    exec(example, {**names, "stopped": stop.is_set, "stop": stop})
    watch.join(20)
    output = capsys.readouterr().out
    if "claims" in output:
        assert output.splitlines() == [f"claims {{'{name}': [0]}}", "10", "ended: the stop event of consume was set"]
    else:
        assert output == f"{name} 0 10\n"
    assert [(row.current_offset, row.lag) for row in describe(kafka, name)] == [(10, 0)]


def test_assignor_of_the_page_assigns(
    kafka: LocalKafka, topic: TopicFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    name = topic(3)
    exec(ASSIGNOR, {"bootstrap_servers": kafka.bootstrap_servers, "topic": name, "group": name})
    assert capsys.readouterr().out == "b'hot' 3\n"


def test_handled_records_are_committed_and_others_are_redelivered(kafka: LocalKafka, topic: TopicFactory) -> None:
    """A failing handler ends the first run; the second run resumes at the commits, and misses no record."""
    name = topic(3)
    produce(kafka, name, range(3_000), 3, settings={"batch.size": 2_000})
    namespace: dict[str, Any] = {}
    exec(DECOUPLED, namespace)
    handled: list[bytes] = []
    fails, threads = True, set[int]()

    def handle(batch: Any) -> None:
        values = batch.column("value").to_pylist()
        threads.add(threading.get_ident())
        if fails and b"000001501." in values:
            wait_until(lambda: handled)  # by another thread
            raise RuntimeError("this batch cannot be handled")
        handled.extend(values)

    def consume() -> None:
        with client_of(kafka) as client:

            def all_is_committed() -> bool:
                offsets = fetch_offsets(client, name, None, client.deadline())
                return [entry.offset for entry in offsets.values()] == [1_000] * 3

            namespace["consume"](kafka.bootstrap_servers, name, 3, name, handle, all_is_committed)

    with pytest.raises(RuntimeError, match="cannot be handled"):
        consume()
    assert 0 < len(handled) < 3_000
    fails = False
    consume()
    assert sorted(set(handled)) == [b"%09d." % number for number in range(3_000)]
    assert len(threads) > 1
    assert [(row.current_offset, row.lag) for row in describe(kafka, name)] == [(1_000, 0)] * 3

"""The examples of docs/producing.md run as the page describes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from spark_kafka_source.local_kafka import LocalKafka
from tests.conftest import ROOT, TopicFactory
from tests.support.read_back import read_back

PAGE = Path(ROOT / "docs" / "producing.md").read_text()
TABLE, COLUMNS, MESSAGES, SYNC, OWN_PARTITIONER = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize(
    ("example", "output", "values"),
    [
        (TABLE, "2\n", {b"1", b"2"}),
        (COLUMNS, "['partition', 'offset', 'timestamp_ms'] 3\n", {b"1", b"2", b"3"}),
        (MESSAGES, "callback: None\n0 0\n", {b"value"}),
        (SYNC, "True\n", {b"value"}),
        (OWN_PARTITIONER, "1\n4\n", {b"value"}),
    ],
    ids=["table", "columns", "messages", "one after the other", "custom partitioner"],
)
def test_example_of_the_page_runs(
    kafka: LocalKafka,
    topic: TopicFactory,
    capsys: pytest.CaptureFixture[str],
    example: str,
    output: str,
    values: set[bytes],
) -> None:
    name = topic(5)
    exec(example, {"bootstrap_servers": kafka.bootstrap_servers, "topic": name})
    # A callback and a waiting thread are notified in any order.
    assert sorted(capsys.readouterr().out.splitlines()) == sorted(output.splitlines())
    assert {each.value for each in read_back(kafka, name)} == values

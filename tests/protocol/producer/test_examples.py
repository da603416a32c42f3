"""The examples of docs/producing.md run as the page describes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from protocol.producer.producer import Producer
from spark_kafka_source.local_kafka import LocalKafka
from tests.conftest import ROOT, TopicFactory
from tests.support.read_back import read_back

PAGE = Path(ROOT / "docs" / "producing.md").read_text()
TABLE, COLUMNS, MESSAGES, SYNC, MANY, TRACING, OWN_PARTITIONER = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize(
    ("example", "output", "values"),
    [
        (TABLE, "2\n", {b"1", b"2"}),
        (COLUMNS, "['partition', 'offset', 'timestamp_ms'] 3\n", {b"1", b"2", b"3"}),
        (MESSAGES, "callback: None\n0 0\n", {b"value"}),
        (SYNC, "True\n", {b"value"}),
        (
            MANY,
            "1 partition 99 was requested, but topic NAME has 5 (0 to 4). Nothing of this call was sent. Leave "
            "out partition, and the key decides, or add partitions to the topic\n[0]\n",
            {b"1"},
        ),
        (OWN_PARTITIONER, "1\n4\n", {b"value"}),
    ],
    ids=["table", "columns", "messages", "one after the other", "several", "custom partitioner"],
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
    assert sorted(capsys.readouterr().out.splitlines()) == sorted(output.replace("NAME", name).splitlines())
    assert {record.value for record in read_back(kafka, name)} == values


def test_interceptor_of_the_page_adds_the_trace_and_keeps_headers(
    kafka: LocalKafka, topic: TopicFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    name = topic(1)
    inputs = [("traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"), ("other", None)]
    with Producer(bootstrap_servers=kafka.bootstrap_servers) as producer:
        producer.send(name, b"passed through", headers=inputs)
    exec(TRACING, {"bootstrap_servers": kafka.bootstrap_servers, "topic": name})
    written, printed = capsys.readouterr().out.splitlines()
    passed, traced = read_back(kafka, name)
    assert written == "written to 0 error: None"
    assert passed.headers == tuple(inputs)
    ((header, context),) = traced.headers or ()
    assert header == "traceparent"
    assert context is not None
    assert context.decode().split("-")[1] == printed.removeprefix("trace ")

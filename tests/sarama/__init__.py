"""The Go client sarama as a peer; `main.go` is built if Go is installed."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from spark_kafka_source.local_kafka import LocalKafka
from tests.support.whole_rows import Partition, Rows

FOLDER = Path(__file__).parent


@cache
def build() -> Path:
    """Return the path of the program; skip the test if Go is missing or sarama cannot be downloaded."""
    folder = FOLDER.parent.parent / "build"
    if shutil.which("go") is None:
        pytest.skip("no Go on the PATH to build sarama with")
    if fetched := _go("mod", "download"):
        pytest.skip(f"Go cannot fetch sarama: {fetched}")
    built = folder / f"sarama-{os.getpid()}"
    assert not _go("build", "-buildvcs=false", "-o", str(built), ".")
    return built.replace(folder / "sarama")  # other processes may run an older one meanwhile


def produce(program: Path, kafka: LocalKafka, written: Rows) -> None:
    """Write record batches of codec n to partition n of the only topic of `written`."""
    ((topic, lines),) = _lines_of(written).items()
    _run(program, "produce", kafka, topic, typed="\n".join(lines))


def rows_of_sarama(program: Path, kafka: LocalKafka, partitions: Sequence[Partition], count: int) -> Rows:
    """Read all `count` rows of the partitions of one topic. Timestamp types are 0: sarama does not expose them."""
    (topic,) = {topic for topic, _ in partitions}
    rows: Rows = {}
    for line in _run(program, "consume", kafka, topic, str(count)).splitlines():
        found = json.loads(line)
        headers = found["headers"]
        pairs = headers and tuple((_bytes(header["key"] or "").decode(), _bytes(header["value"])) for header in headers)
        row = (found["offset"], _bytes(found["key"]), _bytes(found["value"]), pairs, found["timestamp_ms"], 0)
        rows.setdefault((topic, found["partition"]), []).append(row)
    return rows


class GroupMember:
    """A group member, from its creation until `close`, which returns the values that it received."""

    def __init__(self, program: Path, kafka: LocalKafka, topic: str, group: str) -> None:
        command = [str(program), "group", kafka.bootstrap_servers, topic, group, "10000"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def close(self) -> list[bytes]:
        output, _ = self._process.communicate(timeout=60)
        assert self._process.returncode == 0
        return [_bytes(json.loads(line)["value"]) or b"" for line in output.splitlines()]


def _lines_of(written: Rows) -> dict[str, list[str]]:
    lines: dict[str, list[str]] = {}
    for (topic, partition), rows in written.items():
        for _, key, value, headers, timestamp_ms, _ in rows:
            row: dict[str, Any] = {
                "partition": partition,
                "key": _text(key),
                "value": _text(value),
                "headers": [{"key": _text(name.encode()), "value": _text(bytes_)} for name, bytes_ in headers or ()],
                "timestamp_ms": timestamp_ms,
            }
            lines.setdefault(topic, []).append(json.dumps(row))
    return lines


def _go(*arguments: str) -> str:
    """Return the error output; empty if the command succeeded."""
    ended = subprocess.run(["go", *arguments], cwd=FOLDER, capture_output=True, text=True, timeout=300)
    return ended.stderr.strip() if ended.returncode else ""


def _run(program: Path, command: str, kafka: LocalKafka, *arguments: str, typed: str = "") -> str:
    ended = subprocess.run(
        [str(program), command, kafka.bootstrap_servers, *arguments],
        input=typed,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def _text(content: bytes | None) -> str | None:
    return None if content is None else base64.b64encode(content).decode()


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)

"""Parsers of option values: times, durations, partitions of a topic."""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum
from typing import Any

import click

from protocol.settings.property_kinds import iso_duration_us
from spark_kafka_source.options.scalars import MAX_TIME_MS, duration_ms, timestamp_ms


class Parsed(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.5 only
    """A click type that uses `parse`; its `ValueError` is reported as wrong usage."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Convert the text, as click requires."""
        try:
            return self._parse(value)
        except ValueError as error:
            self.fail(f"{value!r}: {error}", param, ctx)


def choice_of(member: Enum) -> str:
    """Return a member of an enumeration as a word on the command line: `describe-configs` for DESCRIBE_CONFIGS."""
    return member.name.lower().replace("_", "-")


def parse_replica_assignment(text: str) -> list[list[int]]:
    """Parse the brokers of each partition as kafka-topics.sh does: `1:2,2:3` are two partitions with two replicas."""
    partitions = [[int(broker) for broker in partition.split(":")] for partition in text.split(",")]
    if any(len(set(brokers)) < len(brokers) for brokers in partitions):
        raise ValueError("a partition names a broker twice")
    return partitions


REPLICA_ASSIGNMENT = Parsed("replica assignment", parse_replica_assignment)


def parse_duration(text: str) -> int:
    """Parse `7d`, `90s`, bare milliseconds, or ISO 8601 as in Kafka's tools: `P7DT1H`."""
    if not text.upper().startswith("P"):
        return duration_ms(text)
    milliseconds = iso_duration_us(text) // 1_000
    if milliseconds > MAX_TIME_MS:
        raise ValueError("out of range")
    return milliseconds


def _topic_partitions(text: str) -> tuple[str, tuple[int, ...] | None]:
    """Parse `orders` into the topic and None (all partitions), `orders:0,1` into the topic and these partitions."""
    name, colon, numbers = text.partition(":")
    if not re.fullmatch(r"[0-9]+(,[0-9]+)*" if colon else "", numbers):
        raise ValueError("a topic, or a topic and some of its partitions, such as orders:0,1")
    return name, tuple(sorted({int(number) for number in numbers.split(",")})) if colon else None


def _numbers(text: str) -> tuple[int, ...]:
    """Parse `0,3` into numbers."""
    if not re.fullmatch(r"[0-9]{1,9}(,[0-9]{1,9})*", text):
        raise ValueError("numbers such as 0 or 0,3")
    return tuple(sorted({int(number) for number in text.split(",")}))


DURATION = Parsed("duration", parse_duration)
NUMBERS = Parsed("numbers", _numbers)
TIME = Parsed("time", timestamp_ms)
TOPIC_PARTITIONS = Parsed("partitions", _topic_partitions)

"""Misspelt names are matched to known ones; other words are not."""

from __future__ import annotations

import pytest

from protocol.base.spelling import closest_match, same

KNOWN = ["subscribe", "topic", "minPartitions", "maxBytesPerTrigger", "maxOffsetsPerTrigger", "kafka.group.id", "acks"]


@pytest.mark.parametrize(
    ("name", "remembered"),
    [
        ("subsrcibe", "subscribe"),
        ("SUBSCRIBE", "subscribe"),
        ("subcribes", "subscribe"),
        ("topics", "topic"),
        ("min_partitions", "minPartitions"),
        ("kafka-group-id", "kafka.group.id"),
        ("maxOfsetsPerTriger", "maxOffsetsPerTrigger"),
        ("mxaOffsetsPerTrigger", "maxOffsetsPerTrigger"),
        ("ack", "acks"),
    ],
)
def test_one_or_two_typos_are_recognised(name: str, remembered: str) -> None:
    assert closest_match(name, KNOWN) == remembered


@pytest.mark.parametrize(
    "name", ["maxPartitions", "maxFilesPerTrigger", "toppings", "tonics", "subscription", "a", "", "ask", "topicName"]
)
def test_other_words_are_not_matched(name: str) -> None:
    assert closest_match(name, KNOWN) is None


def test_names_of_one_or_two_letters_have_no_suggestion() -> None:
    assert closest_match("2", ["1", "0", "all"]) is None
    assert closest_match("xy", ["xz"]) is None


def test_closest_name_is_suggested() -> None:
    assert closest_match("abcdefghi", ["abcdefgxx", "abcdefghx", "abcdefxhx"]) == "abcdefghx"


def test_separators_between_words_are_ignored() -> None:
    assert same("group.id", "groupId")
    assert same("bootstrap_servers", "bootstrap.servers")
    assert not same("group.id", "groups.id")

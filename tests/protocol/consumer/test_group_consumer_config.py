"""The properties of a consumer in a group: Java's defaults, and durations as Java reads them."""

from __future__ import annotations

from datetime import timedelta

import pytest

from protocol import Consumer
from protocol.config import parse_consumer
from protocol.consumer.group_consumer_config import parse_group_consumer
from protocol.errors import ConfigurationError


def test_group_id_alone_implies_membership_as_in_java() -> None:
    config = parse_group_consumer({"group.id": "etl"})
    assert (config.consumer.group_protocol, config.auto_offset_reset) == ("classic", "latest")
    assert (config.enable_auto_commit, config.auto_commit_interval_ms) == (True, 5_000)
    assert parse_group_consumer({"group.id": "etl", "group.protocol": "consumer"}).consumer.group_protocol == "consumer"
    assert parse_group_consumer({}).consumer.group_protocol == "none"


def test_max_poll_records_is_a_property_of_polls_only(caplog: pytest.LogCaptureFixture) -> None:
    assert parse_group_consumer({}).max_poll_records is None
    assert parse_group_consumer({"max.poll.records": "500"}).max_poll_records == 500
    with pytest.raises(ConfigurationError, match=r"max\.poll\.records is '0'"):
        parse_group_consumer({"max.poll.records": 0})
    assert "max.poll.records" not in caplog.text


def test_auto_commit_is_forbidden_for_a_plain_consumer() -> None:
    assert parse_group_consumer({"enable.auto.commit": "false"}).enable_auto_commit is False
    with pytest.raises(ConfigurationError, match=r"enable\.auto\.commit is forbidden"):
        parse_consumer({"enable.auto.commit": "false"})


@pytest.mark.parametrize(
    ("text", "length"),
    [
        ("P1D", timedelta(days=1)),
        ("PT1H30M", timedelta(minutes=90)),
        ("P2DT3H4M5.5S", timedelta(days=2, hours=3, minutes=4, seconds=5.5)),
        ("pt0,25s", timedelta(milliseconds=250)),
    ],
)
def test_duration_has_javas_syntax(text: str, length: timedelta) -> None:
    assert parse_group_consumer({"auto.offset.reset": f"by_duration:{text}"}).auto_offset_reset == length


NOT_ALLOWED = ["first", "by_duration", "P1D", *(f"by_duration:{text}" for text in ("", "P", "PT", "P9999999999D"))]
NOT_IN_KAFKA = [f"by_duration:{text}" for text in ("-P1D", "P1Y", "P1DT")]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        *((text, "allowed: earliest, latest, none, by_duration") for text in NOT_ALLOWED),
        pytest.param(f"by_duration:PT{'9' * 400}S", "allowed: earliest", id="infinite"),
        *((text, "not a duration") for text in NOT_IN_KAFKA),
    ],
)
def test_invalid_offset_reset_is_refused(text: str, error: str) -> None:
    with pytest.raises(ConfigurationError, match=error):
        parse_group_consumer({"auto.offset.reset": text})


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("enable.auto.comit", "enable.auto.commit"),
        ("max.pol.records", "max.poll.records"),
        ("group.join.retrys", "group.join.retries"),
        ("grop.id", "group.id"),
    ],
)
def test_misspelled_property_is_refused_with_the_right_name(name: str, meant: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^{name} is not a Kafka property; did you mean {meant}?"):
        parse_group_consumer({"group.id": "etl", name: "false"})


@pytest.mark.parametrize("name", ["auto.offset.reset", "group.id", "group.protocol"])
def test_property_of_a_group_is_a_warning_for_a_consumer_of_chosen_partitions(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    values = {"auto.offset.reset": "earliest", "group.id": "etl", "group.protocol": "none"}
    Consumer({"bootstrap.servers": "localhost:1", name: values[name]}).close()
    assert f"{name} has no effect" in caplog.text

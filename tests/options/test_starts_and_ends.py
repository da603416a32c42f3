"""Start and end of a query: options are parsed into positions, or the error names the user's option."""

from __future__ import annotations

import json
import logging
import time

import pytest

from spark_kafka_source.options.parsing import parse_source_options
from spark_kafka_source.options.start_positions import AtTime
from tests.options.parsed import BROKERS, batch, refusal, stream
from tests.support.offsets import batch_end

# -- start and end of a query ---------------------------------------------------------------------


def test_stream_without_a_group_begins_at_latest_and_commits_nothing() -> None:
    assert stream().start == "latest"
    assert stream().commits is False


def test_stream_with_a_group_begins_at_its_offsets_and_commits() -> None:
    options = stream(kafka_group_id="etl")
    assert options.start == "group"
    assert options.consumer.auto_offset_reset == "latest"
    assert options.commits is True


def test_batch_reads_earliest_to_latest_with_a_group_too(caplog: pytest.LogCaptureFixture) -> None:
    assert (batch().start, batch().end) == ("earliest", "latest")
    with caplog.at_level(logging.WARNING):
        options = batch(kafka_group_id="etl")
    assert options.start == "earliest"
    assert options.commits is False
    assert "kafka.group.id has no effect" in caplog.text


def test_batch_can_begin_at_group_offsets_or_else_earliest() -> None:
    options = batch(kafka_group_id="etl", startingOffsets="group")
    assert options.start == "group"
    assert options.consumer.auto_offset_reset == "earliest"
    none = batch(kafka_group_id="etl", startingOffsets="group", kafka_auto_offset_reset="none")
    assert none.consumer.auto_offset_reset == "none"


CHECKPOINT = batch_end(
    ends={("orders", 0): 23, ("orders", 1): 9},
    ids={"orders": bytes(16)},
    epochs={("orders", 0): 4},
    joined={("orders", 0): 20, ("orders", 1): 9},
    leaders={("orders", 1): 2},
    skipped={("orders", 0): 3, ("bills", 0): 7},
)


@pytest.mark.parametrize("option", ["startingOffsets", "endingOffsets"])
def test_offsets_from_a_checkpoint_are_accepted_with_their_at_keys(option: str) -> None:
    text = json.dumps(CHECKPOINT.to_json_dict())
    assert text.count("@") == 6
    options = batch(**{option: text})
    assert {"startingOffsets": options.start, "endingOffsets": options.end}[option] == {"orders": {0: 23, 1: 9}}


@pytest.mark.parametrize("word", ["earliest", "Latest", " GROUP "])
def test_keywords_are_case_insensitive(word: str) -> None:
    assert stream(kafka_group_id="etl", startingOffsets=word).start == word.strip().lower()


def test_json_has_an_offset_per_partition() -> None:
    options = stream(startingOffsets='{"orders": {"10": -1, "9": -2, "0": 23}}')
    assert options.start == {"orders": {0: 23, 9: -2, 10: -1}}
    assert batch(endingOffsets='{"orders": {"0": -1}}').end == {"orders": {0: -1}}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("oldest", "is 'oldest'; allowed: "),
        ("latset", "(did you mean latest?)"),
        ('{"orders"', "(not JSON: Expecting ':' delimiter at character 10)"),
        ("{'orders': {'0': 1}}", "at character 2; write names in double quotes, as json.dumps does)"),
        ('{"@ids": {}}', "names no topic"),
        ("{}", "names no topic"),
        ('{"orders": {}}', "orders names no partition"),
        ('{"orders": 5}', "orders has no JSON object of partitions"),
        ('{"orders": [0]}', "orders has no JSON object of partitions"),
        ('{"orders": {"0": -3}}', "orders-0 is -3, not a whole number from -2"),
        ('{"orders": {"0": "1"}}', "orders-0 is '1'"),
        ('{"orders": {"0": 1.5}}', "orders-0 is 1.5"),
        ('{"orders": {"0": null}}', "orders-0 is None"),
        ('{"orders": {"a": 1}}', "orders has the partition 'a'"),
        ('{"orders": {"0": 1, "0": 2}}', "'0' is there twice"),
        ('{"orders": {"0": 1}, "other": {"0": 1}}', "other is not in subscribe"),
        ('{"other": {"0": 1}}', "orders is missing, although subscribe names it"),
    ],
)
@pytest.mark.parametrize("option", ["startingOffsets", "endingOffsets"])
def test_invalid_json_is_refused_with_the_option_name(option: str, value: str, message: str) -> None:
    shown = refusal({"subscribe": "orders", option: value}, streaming=False)
    assert shown.removeprefix("[KAFKA_START_OFFSET_DOES_NOT_MATCH_ASSIGNED] ").startswith(f"{option} is ")
    assert message in shown


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingOffsets": "latest"}, "startingOffsets is 'latest', which does not fit: a batch cannot start at the"),
        ({"startingOffsets": '{"orders": {"0": -1}}'}, "orders-0 is -1: a batch cannot start at the latest offset"),
        ({"endingOffsets": "earliest"}, "endingOffsets is 'earliest' (nothing can end at the earliest offset)"),
        ({"endingOffsets": '{"orders": {"0": -2}}'}, "orders-0 is -2: nothing can end at the earliest offset"),
        (
            {"startingOffsets": '{"orders": {"0": 5}}', "endingOffsets": '{"orders": {"0": 4}}'},
            "orders-0 ends at 4, before its start 5",
        ),
        (
            {"startingOffsets": '{"orders": {"0": 5}}', "endingOffsets": '{"orders": {"0": 9, "1": 9}}'},
            "orders-1 is not in startingOffsets",
        ),
        (
            {"startingOffsets": '{"orders": {"0": 5, "1": 5}}', "endingOffsets": '{"orders": {"0": 9}}'},
            "orders-1 is missing, although startingOffsets names it",
        ),
    ],
)
def test_invalid_ends_of_a_batch_are_refused(options: dict[str, str], message: str) -> None:
    assert message in refusal({"subscribe": "orders", **options}, streaming=False)


def test_unresolved_ends_are_not_compared() -> None:
    options = batch(startingOffsets='{"orders": {"0": 5}}', endingOffsets='{"orders": {"0": -1}}')
    assert options.end == {"orders": {0: -1}}


def test_offsets_must_match_the_assigned_partitions() -> None:
    assigned = {"assign": '{"orders": [0, 1]}'}
    missing = refusal({**assigned, "startingOffsets": '{"orders": {"0": 1}}'})
    assert "orders-1 is missing, although assign names it; -1 means latest, -2 earliest" in missing
    strange = refusal({**assigned, "startingOffsets": '{"orders": {"0": 1, "1": 1, "2": 1}}'})
    assert "orders-2 is not in assign" in strange


def test_many_assigned_partitions_are_compared_in_linear_time() -> None:
    partitions = range(10_000)
    texts = {f"{side}Offsets": json.dumps({"orders": dict.fromkeys(partitions, 1)}) for side in ("starting", "ending")}
    began_s = time.process_time()
    parse_source_options({**BROKERS, "assign": json.dumps({"orders": [*partitions]}), **texts}, streaming=False)
    assert time.process_time() - began_s < 2, "it took 7.5 s"


def test_offsets_must_match_the_pattern() -> None:
    message = refusal({"subscribePattern": "^o", "startingOffsets": '{"orders": {"0": 1}, "bills": {"0": 1}}'})
    assert "bills does not match subscribePattern" in message


@pytest.mark.parametrize(
    ("options", "streaming", "message"),
    [
        ({"startingOffsets": "group"}, True, "startingOffsets is group, but there is no group; set kafka.group.id."),
        ({"commitOffsets": "true"}, True, "commitOffsets is true, but there is no group"),
        ({"commitOffsets": "true", "kafka.group.id": "g"}, False, "a batch read cannot commit"),
        ({"kafka.group.id": ""}, True, "kafka.group.id is '' (empty)"),
        ({"kafka.auto.offset.reset": "earliest"}, True, "this query does not start from a group"),
        (
            {"kafka.auto.offset.reset": "earliest", "kafka.group.id": "g", "startingOffsets": "latest"},
            True,
            "this query does not start from a group",
        ),
        (
            {"kafka.auto.offset.reset": "latest", "kafka.group.id": "g", "startingOffsets": "group"},
            False,
            "a batch cannot start at the latest offset",
        ),
        ({"kafka.auto.offset.reset": "first", "kafka.group.id": "g"}, True, "allowed: earliest, latest, none"),
    ],
)
def test_invalid_group_options_are_refused(options: dict[str, str], streaming: bool, message: str) -> None:
    assert message in refusal({"subscribe": "orders", **options}, streaming=streaming)


def test_commits_can_be_switched_off() -> None:
    assert stream(kafka_group_id="etl", commitOffsets="false").commits is False
    assert batch(commitOffsets="false").commits is False


# -- positions by timestamp -----------------------------------------------------------------------


def test_timestamps_are_milliseconds_or_iso_text_for_all_or_each_partition() -> None:
    assert stream(startingTimestamp="5").start == AtTime(5, "startingTimestamp")
    both = batch(
        startingOffsetsByTimestamp='{"orders": {"1": "1970-01-01T00:00:01Z", "0": 7}}',
        endingTimestamp="1970-01-01T01:00:01+01:00",
    )
    assert both.start == AtTime({"orders": {0: 7, 1: 1_000}}, "startingOffsetsByTimestamp")
    assert both.end == AtTime(1_000, "endingTimestamp")
    ends = batch(endingOffsetsByTimestamp='{"orders": {"0": 7}}').end
    assert ends == AtTime({"orders": {0: 7}}, "endingOffsetsByTimestamp")


def test_global_timestamp_precedes_partition_timestamps_and_offsets(caplog: pytest.LogCaptureFixture) -> None:
    offsets_json = '{"orders": {"0": 7}}'
    with caplog.at_level(logging.WARNING):
        options = stream(startingOffsets="earliest", startingOffsetsByTimestamp=offsets_json, startingTimestamp="5")
    assert options.start == AtTime(5, "startingTimestamp")
    assert "startingOffsets has no effect: startingTimestamp is given, which comes before it" in caplog.text
    assert "startingOffsetsByTimestamp has no effect: startingTimestamp" in caplog.text
    options = batch(
        startingOffsets=offsets_json,
        startingOffsetsByTimestamp=offsets_json,
        endingOffsets=offsets_json,
        endingTimestamp="9",
    )
    assert options.start == AtTime({"orders": {0: 7}}, "startingOffsetsByTimestamp")
    assert options.end == AtTime(9, "endingTimestamp")


def test_timestamp_precedes_group_offsets() -> None:
    options = stream(kafka_group_id="etl", startingTimestamp="5")
    assert options.start == AtTime(5, "startingTimestamp")
    assert options.commits is True
    message = refusal(
        {"subscribe": "o", "startingTimestamp": "5", "kafka.group.id": "g", "kafka.auto.offset.reset": "none"}
    )
    assert "does not start from a group" in message


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingTimestamp": "2026-01-01T00:00:00"}, "startingTimestamp is '2026-01-01T00:00:00' (a time without a"),
        (
            {"startingTimestamp": "yesterday"},
            "allowed: milliseconds since 1970, or a time such as 2026-01-31T12:00:00Z",
        ),
        ({"startingTimestamp": "1767225600"}, "(as milliseconds this is 1970-01-21; append 000 to a"),
        ({"endingTimestamp": "978307199999"}, "(as milliseconds this is 2000-12-31"),
        ({"startingOffsetsByTimestamp": '{"orders": {"0": 1767225600}}'}, "(orders-0 is 1767225600: as milliseconds"),
        ({"startingTimestamp": "-1"}, "startingTimestamp is '-1' (Kafka's timestamps begin with 1970)"),
        ({"startingOffsetsByTimestamp": '{"orders": {"0": -2}}'}, "orders-0 is -2, not a whole number from 0"),
        ({"startingOffsetsByTimestamp": '{"orders": {"0": "noon"}}'}, "orders-0 is 'noon': Invalid isoformat"),
        ({"startingOffsetsByTimestamp": "5"}, "not a JSON object of topics"),
        ({"startingOffsetsByTimestampStrategy": "earliest"}, "allowed: error, latest"),
        (
            {"startingOffsetsByTimestamp": '{"bills": {"0": 1}}'},
            "[KAFKA_TIMESTAMP_OFFSET_DOES_NOT_MATCH_ASSIGNED] startingOffsetsByTimestamp is "
            '\'{"bills": {"0": 1}}\', which does not fit: orders is missing, although subscribe names it.',
        ),
        (
            {"endingOffsetsByTimestamp": '{"bills": {"0": 1}}'},
            "[KAFKA_TIMESTAMP_OFFSET_DOES_NOT_MATCH_ASSIGNED] endingOffsetsByTimestamp is ",
        ),
        (
            {"startingTimestamp": "5", "endingTimestamp": "4"},
            "[UNRESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET] endingTimestamp is '4', which does not fit: the end 4 "
            "is before the start 5.",
        ),
        (
            {"startingOffsetsByTimestamp": '{"orders": {"0": 5}}', "endingOffsetsByTimestamp": '{"orders": {"0": 4}}'},
            "[UNRESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET] endingOffsetsByTimestamp is ",
        ),
        (
            {
                "startingOffsetsByTimestamp": '{"orders": {"0": 5}}',
                "endingOffsetsByTimestamp": '{"orders": {"0": 5, "1": 5}}',
            },
            "[MISMATCHED_TOPIC_PARTITIONS_BETWEEN_START_OFFSET_AND_END_OFFSET] endingOffsetsByTimestamp is ",
        ),
        (
            {"startingOffsets": '{"orders": {"0": 5}}', "endingOffsets": '{"orders": {"0": 4}}'},
            "[UNRESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET] endingOffsets is ",
        ),
    ],
)
def test_invalid_timestamps_are_refused(options: dict[str, str], message: str) -> None:
    assert message in refusal({"subscribe": "orders", **options}, streaming=False)


def test_timestamp_and_offsets_are_not_compared() -> None:
    options = batch(startingTimestamp="5", endingOffsets='{"orders": {"0": 3}}')
    assert options.end == {"orders": {0: 3}}

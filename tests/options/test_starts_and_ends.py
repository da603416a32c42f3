"""Start and end of a query: options are parsed into positions, or the error names the user's option."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest

from spark_kafka_source.options.parsing import parse_source_options
from spark_kafka_source.options.start_positions import AtTime
from spark_kafka_source.options.table import SourceOptions
from tests.options.parsed import BROKERS, batch, refusal, stream
from tests.support.offsets import batch_end

FROM_GROUP = {"kafka_group_id": "etl", "startingOffsets": "group"}


@pytest.mark.parametrize(
    ("read", "options", "start", "reset", "commits"),
    [
        (stream, {}, "latest", "latest", False),
        (stream, {"kafka_group_id": "etl"}, "group", "latest", True),
        (stream, {"kafka_group_id": "etl", "commitOffsets": "false"}, "group", "latest", False),
        (stream, {"kafka_group_id": "etl", "startingOffsets": " GROUP "}, "group", "latest", True),
        (stream, {"kafka_group_id": "etl", "startingOffsets": "Latest"}, "latest", "latest", True),
        (stream, {"kafka_group_id": "etl", "startingTimestamp": "5"}, AtTime(5, "startingTimestamp"), "latest", True),
        (batch, {"commitOffsets": "false"}, "earliest", "earliest", False),
        (batch, FROM_GROUP, "group", "earliest", False),
        (batch, {**FROM_GROUP, "kafka_auto_offset_reset": "none"}, "group", "none", False),
    ],
)
def test_start_and_commits_follow_the_group(
    read: Callable[..., SourceOptions], options: dict[str, str], start: object, reset: str, commits: bool
) -> None:
    parsed = read(**options)
    assert (parsed.start, parsed.end, parsed.commits) == (start, "latest", commits)
    assert parsed.consumer.auto_offset_reset == reset


def test_group_of_a_batch_from_earliest_has_no_effect(caplog: pytest.LogCaptureFixture) -> None:
    options = batch(kafka_group_id="etl")
    assert (options.start, options.end, options.commits) == ("earliest", "latest", False)
    assert "kafka.group.id has no effect" in caplog.text


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


def test_json_has_an_offset_per_partition() -> None:
    options = stream(startingOffsets='{"orders": {"10": -1, "9": -2, "0": 23}}')
    assert options.start == {"orders": {0: 23, 9: -2, 10: -1}}
    by_pattern = {**BROKERS, "subscribePattern": "^o", "startingOffsets": '{"orders": {"0": 1}}'}
    assert parse_source_options(by_pattern, streaming=True).start == {"orders": {0: 1}}


@pytest.mark.parametrize("start", [{"startingOffsets": '{"orders": {"0": 5}}'}, {"startingTimestamp": "5"}])
@pytest.mark.parametrize("end", [-1, 9])
def test_end_that_cannot_be_compared_with_the_start_is_accepted(start: dict[str, str], end: int) -> None:
    options = batch(**start, endingOffsets=json.dumps({"orders": {"0": end}}))
    assert options.end == {"orders": {0: end}}


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


def offsets(start: str, end: str, by: str = "") -> dict[str, str]:
    """Return the options of a batch between these offsets, or times, of the partitions of `orders`."""
    return {f"startingOffsets{by}": f'{{"orders": {{{start}}}}}', f"endingOffsets{by}": f'{{"orders": {{{end}}}}}'}


START_AFTER_END = "[UNRESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET]"
NOT_ASSIGNED = "[KAFKA_TIMESTAMP_OFFSET_DOES_NOT_MATCH_ASSIGNED]"
NOT_BOTH = "[MISMATCHED_TOPIC_PARTITIONS_BETWEEN_START_OFFSET_AND_END_OFFSET]"
BILLS = '{"bills": {"0": 1}}'


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingOffsets": "latest"}, "startingOffsets is 'latest', which does not fit: a batch cannot start at the"),
        ({"startingOffsets": '{"orders": {"0": -1}}'}, "orders-0 is -1: a batch cannot start at the latest offset"),
        ({"endingOffsets": "earliest"}, "endingOffsets is 'earliest' (nothing can end at the earliest offset)"),
        ({"endingOffsets": '{"orders": {"0": -2}}'}, "orders-0 is -2: nothing can end at the earliest offset"),
        (offsets('"0": 5', '"0": 4'), f"{START_AFTER_END} endingOffsets is "),
        (offsets('"0": 5', '"0": 4'), "orders-0 ends at 4, before its start 5"),
        (offsets('"0": 5', '"0": 9, "1": 9'), "orders-1 is not in startingOffsets"),
        (offsets('"0": 5, "1": 5', '"0": 9'), "orders-1 is missing, although startingOffsets names it"),
        ({"startingTimestamp": "2026-01-01T00:00:00"}, "startingTimestamp is '2026-01-01T00:00:00' (a time without a"),
        ({"startingTimestamp": "x"}, "allowed: milliseconds since 1970, or a time such as 2026-01-31T12:00:00Z"),
        ({"startingTimestamp": "1767225600"}, "(as milliseconds this is 1970-01-21; append 000 to a"),
        ({"endingTimestamp": "978307199999"}, "(as milliseconds this is 2000-12-31"),
        ({"startingTimestamp": "-1"}, "startingTimestamp is '-1' (Kafka's timestamps begin with 1970)"),
        ({"startingOffsetsByTimestamp": '{"orders": {"0": 1767225600}}'}, "(orders-0 is 1767225600: as milliseconds"),
        ({"startingOffsetsByTimestamp": '{"orders": {"0": -2}}'}, "orders-0 is -2, not a whole number from 0"),
        ({"startingOffsetsByTimestamp": '{"orders": {"0": "noon"}}'}, "orders-0 is 'noon': Invalid isoformat"),
        ({"startingOffsetsByTimestamp": "5"}, "not a JSON object of topics"),
        ({"startingOffsetsByTimestampStrategy": "earliest"}, "allowed: error, latest"),
        (
            {"startingOffsetsByTimestamp": BILLS},
            f"{NOT_ASSIGNED} startingOffsetsByTimestamp is {BILLS!r}, which does n",
        ),
        ({"startingOffsetsByTimestamp": BILLS}, "which does not fit: orders is missing, although subscribe names it."),
        ({"endingOffsetsByTimestamp": BILLS}, f"{NOT_ASSIGNED} endingOffsetsByTimestamp is "),
        ({"startingTimestamp": "5", "endingTimestamp": "4"}, f"{START_AFTER_END} endingTimestamp is '4', which"),
        ({"startingTimestamp": "5", "endingTimestamp": "4"}, "which does not fit: the end 4 is before the start 5."),
        (offsets('"0": 5', '"0": 4', "ByTimestamp"), f"{START_AFTER_END} endingOffsetsByTimestamp is "),
        (offsets('"0": 5', '"0": 5, "1": 5', "ByTimestamp"), f"{NOT_BOTH} endingOffsetsByTimestamp is "),
        ({"commitOffsets": "true", "kafka.group.id": "g"}, "a batch read cannot commit"),
        (
            {"kafka.auto.offset.reset": "latest", "kafka.group.id": "g", "startingOffsets": "group"},
            "a batch cannot start at the latest offset",
        ),
    ],
)
def test_invalid_start_or_end_of_a_batch_is_refused(options: dict[str, str], message: str) -> None:
    assert message in refusal({"subscribe": "orders", **options}, streaming=False)


RESET = {"kafka.auto.offset.reset": "earliest"}
ASSIGNED = {"assign": '{"orders": [0, 1]}'}
BOTH_TOPICS = '{"orders": {"0": 1}, "bills": {"0": 1}}'


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingOffsets": "group"}, "startingOffsets is group, but there is no group; set kafka.group.id."),
        ({"commitOffsets": "true"}, "commitOffsets is true, but there is no group"),
        ({"kafka.group.id": ""}, "kafka.group.id is '' (empty)"),
        (RESET, "this query does not start from a group"),
        ({**RESET, "kafka.group.id": "g", "startingOffsets": "latest"}, "this query does not start from a group"),
        ({**RESET, "kafka.group.id": "g", "startingTimestamp": "5"}, "does not start from a group"),
        ({"kafka.auto.offset.reset": "first", "kafka.group.id": "g"}, "allowed: earliest, latest, none"),
        (
            {**ASSIGNED, "startingOffsets": '{"orders": {"0": 1}}'},
            "orders-1 is missing, although assign names it; -1 means latest, -2 earliest",
        ),
        ({**ASSIGNED, "startingOffsets": '{"orders": {"0": 1, "1": 1, "2": 1}}'}, "orders-2 is not in assign"),
        ({"subscribePattern": "^o", "startingOffsets": BOTH_TOPICS}, "bills does not match subscribePattern"),
    ],
)
def test_invalid_start_of_a_stream_is_refused(options: dict[str, str], message: str) -> None:
    topics = {} if {"assign", "subscribePattern"} & set(options) else {"subscribe": "orders"}
    assert message in refusal({**topics, **options})


def test_many_assigned_partitions_are_compared_in_linear_time() -> None:
    partitions = range(10_000)
    texts = {f"{side}Offsets": json.dumps({"orders": dict.fromkeys(partitions, 1)}) for side in ("starting", "ending")}
    began_s = time.process_time()
    parse_source_options({**BROKERS, "assign": json.dumps({"orders": [*partitions]}), **texts}, streaming=False)
    assert time.process_time() - began_s < 2, "it took 7.5 s"


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
    by_partition = {"startingOffsets": offsets_json, "startingOffsetsByTimestamp": offsets_json}
    options = stream(**by_partition, startingTimestamp="5")
    assert options.start == AtTime(5, "startingTimestamp")
    assert "startingOffsets has no effect: startingTimestamp is given, which comes before it" in caplog.text
    assert "startingOffsetsByTimestamp has no effect: startingTimestamp" in caplog.text
    options = batch(**by_partition, endingOffsets=offsets_json, endingTimestamp="9")
    assert options.start == AtTime({"orders": {0: 7}}, "startingOffsetsByTimestamp")
    assert options.end == AtTime(9, "endingTimestamp")

"""The checkpoint's JSON: the written form, and the texts accepted as offsets of this source."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.cluster.metadata import topic_id_text
from protocol.errors import ConfigurationError
from spark_kafka_source.options.partitions import checked_topic
from spark_kafka_source.plan.offsets import Offsets, OffsetsParser
from tests.support.offsets import batch_end

pytestmark = pytest.mark.soak

TOPIC_ID = bytes(range(16))
TOPIC_ID_TEXT = "AAECAwQFBgcICQoLDA0ODw"

PARTITIONS = st.tuples(st.sampled_from(["orders", "a", "b.c-d_e"]), st.integers(0, 12))
OFFSETS = st.dictionaries(PARTITIONS, st.integers(0, 2**63 - 1), min_size=1)


def offsets_with_all_fields() -> Offsets:
    return batch_end(
        ends={("orders", 10): 7, ("orders", 9): 1200, ("a", 0): 3},
        ids={"orders": TOPIC_ID},
        epochs={("orders", 9): 4},
        joined={("orders", 10): 5},
        leaders={("orders", 9): 3},
        skipped={("orders", 9): 17},
        cluster_id="prod",
    )


def test_offsets_have_the_documented_json() -> None:
    assert topic_id_text(b"\xff" * 16) == "_" * 21 + "w", "as Kafka's tools write it"
    assert json.dumps(offsets_with_all_fields().to_json_dict()) == (
        '{"a": {"0": 3}, "orders": {"9": 1200, "10": 7}, '
        f'"@ids": {{"orders": "{TOPIC_ID_TEXT}"}}, '
        '"@epochs": {"orders": {"9": 4}}, "@joined": {"orders": {"10": 5}}, "@leaders": {"orders": {"9": 3}}, '
        '"@skipped": {"orders": {"9": 17}}, "@cluster": {"id": "prod"}}'
    )


def test_skipped_offsets_of_deleted_partitions_have_a_newer_key() -> None:
    """An older version would refuse partitions without an end in `@skipped` as a damaged checkpoint."""
    offsets = replace(offsets_with_all_fields(), skipped={("orders", 9): 17, ("orders", 1): 40, ("b", 0): 2})
    rows = offsets.to_json_dict()
    assert rows["@skipped"] == {"orders": {"9": 17}}
    assert rows["@skippedDeleted"] == {"b": {"0": 2}, "orders": {"1": 40}}
    assert Offsets.from_json_dict(json.loads(json.dumps(rows))) == offsets


def test_json_of_sparks_connector_is_accepted_and_written() -> None:
    offsets = Offsets.from_json_dict(json.loads('{"b":{"1":5,"0":4},"a":{"0":0}}'))
    assert offsets == batch_end({("a", 0): 0, ("b", 0): 4, ("b", 1): 5})
    assert offsets.to_json_dict() == {"a": {"0": 0}, "b": {"0": 4, "1": 5}}


@given(OFFSETS, st.randoms())
def test_equal_offsets_are_equal_strings(ends: dict[tuple[str, int], int], random: Any) -> None:
    shuffled = list(ends.items())
    random.shuffle(shuffled)
    assert json.dumps(batch_end(dict(shuffled)).to_json_dict()) == json.dumps(batch_end(ends).to_json_dict())


@given(OFFSETS, st.binary(min_size=16, max_size=16))
def test_written_offsets_are_read_back(ends: dict[tuple[str, int], int], topic_id: bytes) -> None:
    offsets = batch_end(
        ends,
        ids={topic: topic_id for topic, _ in ends},
        epochs=dict.fromkeys(ends, 3),
        joined=ends,
        leaders=ends,
        skipped=ends,
    )
    assert Offsets.from_json_dict(json.loads(json.dumps(offsets.to_json_dict()))) == offsets


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ([], "not a JSON object"),
        ({"orders": 5}, "orders has no JSON object of partitions"),
        ({"orders": {"x": 5}}, "orders has the partition 'x'"),
        ({"orders": {"-1": 5}}, "orders has the partition '-1'"),
        ({"orders": {"01": 5}}, "orders has the partition '01'"),
        ({"orders": {"2147483648": 5}}, "orders has the partition '2147483648'"),
        ({"orders": {"0": -1}}, "orders-0 is -1, not a whole number from 0"),
        ({"orders": {"0": 2**63}}, "not a whole number"),
        ({"orders": {"0": True}}, "orders-0 is True"),
        ({"orders": {"0": 1.0}}, "orders-0 is 1.0"),
        ({"orders": {"0": "1"}}, "orders-0 is '1'"),
        ({"not a topic": {"0": 1}}, "'not a topic' is no topic name"),
        ({"orders": {"0": 1}, "@later": {}}, "'@later' is unknown; a newer version wrote it"),
        ({"orders": {"0": 1}, "@ids": []}, "@ids is not a JSON object"),
        ({"orders": {"0": 1}, "@cluster": {"id": 5}}, "@cluster has the id 5"),
        ({"orders": {"0": 1}, "@ids": {"orders": "short"}}, "@ids has 'short'"),
        ({"orders": {"0": 1}, "@ids": {"orders": "/" * 22}}, "no topic id"),
        ({"orders": {"0": 1}, "@ids": {"other": TOPIC_ID_TEXT}}, "@ids names other, which has no end offset"),
        ({"orders": {"0": 1}, "@epochs": {"orders": {"1": 0}}}, "@epochs names ('orders', 1)"),
        ({"orders": {"0": 1}, "@epochs": {"orders": {"0": -1}}}, "@epochs: orders-0 is -1"),
        ({"orders": {"0": 1}, "@joined": {"orders": {"1": 0}}}, "@joined names ('orders', 1)"),
        ({"orders": {"0": 1}, "@leaders": {"orders": {"1": 0}}}, "@leaders names ('orders', 1)"),
        ({"orders": {"0": 1}, "@leaders": {"orders": {"0": -1}}}, "@leaders: orders-0 is -1"),
        ({"orders": {"0": 1}, "@skipped": {"orders": {"1": 0}}}, "@skipped names ('orders', 1)"),
        ({"orders": {"0": 1}, "@skipped": {"orders": {"0": -1}}}, "@skipped: orders-0 is -1"),
        ({"orders": {"0": 1}, "@joined": {"orders": {"0": 2}}}, "begins orders-0 at 2, after its end 1"),
    ],
)
def test_other_json_is_refused_with_reason_and_remedy(rows: object, why: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        Offsets.from_json_dict(rows)
    assert why in str(raised.value)
    assert "checkpointLocation" in str(raised.value)


def test_offsets_of_two_documents_are_parsed_once() -> None:
    parser = OffsetsParser()
    start, end = ({"orders": {"0": offset}} for offset in (1, 2))
    offsets = [parser.parse(start), parser.parse(end)]
    assert [offsets[0].ends, offsets[1].ends] == [{("orders", 0): 1}, {("orders", 0): 2}]
    assert parser.parse({"orders": {"0": 1}}) is offsets[0]
    assert parser.parse({"orders": {"0": 2}}) is offsets[1]
    assert parser.parse({"orders": {"0": 3}}).ends == {("orders", 0): 3}
    assert parser.parse(end) is offsets[1]
    assert parser.parse(start) is not offsets[0]


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a@b", "ä", "x" * 250, "a\n"])
def test_topic_name_that_kafka_does_not_allow_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="no topic name"):
        checked_topic(name)
    for valid in ("a", "...", "A-Z_0.9", "x" * 249):
        assert checked_topic(valid) == valid

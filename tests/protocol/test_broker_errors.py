"""The table of error codes against Kafka's Java client and two other Python clients, and the errors made from it."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from protocol.broker_errors import BY_CODE, ErrorCode, GroupEffect, Refresh, TransactionEffect, broker_error, error_row
from protocol.errors import BrokerError

# Metadata is refreshed although Java's exception is no InvalidMetadataException; Java's callers refresh explicitly.
REFRESHED_BY_HAND = {
    ErrorCode.NOT_CONTROLLER,
    ErrorCode.UNKNOWN_LEADER_EPOCH,  # a recreated topic begins again at epoch 0
    ErrorCode.OFFSET_NOT_AVAILABLE,
    ErrorCode.REBOOTSTRAP_REQUIRED,
}


def java_rows() -> list[tuple[int, str, bool, bool]]:
    lines = Path(__file__).with_name("kafka_errors.txt").read_text().splitlines()[1:]
    rows = [line.split() for line in lines]
    return [(int(code), name, retriable == "true", metadata == "true") for code, name, retriable, metadata in rows]


def test_codes_names_and_retriability_match_java() -> None:
    ours = [(row.code, row.name, row.retriable) for row in BY_CODE.values()]
    assert ours == [(code, name, retriable) for code, name, retriable, _ in java_rows()]


def test_metadata_is_refreshed_as_in_java() -> None:
    java = {code for code, _, _, invalid_metadata in java_rows() if invalid_metadata}
    ours = {row.code for row in BY_CODE.values() if row.refresh is Refresh.METADATA}
    assert ours == java | REFRESHED_BY_HAND


def test_coordinator_is_looked_up_again_after_a_move_but_not_while_loading() -> None:
    moved = {row.code for row in BY_CODE.values() if row.refresh is Refresh.COORDINATOR}
    assert moved == {ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR}
    assert BY_CODE[ErrorCode.COORDINATOR_LOAD_IN_PROGRESS].retriable


def codes_that_end(label: GroupEffect) -> set[int]:
    return {row.code for row in BY_CODE.values() if row.group_effect is label}


def test_errors_cured_by_rejoin_or_retry_are_not_fatal_for_members() -> None:
    fatal = codes_that_end(GroupEffect.MEMBER_FAILED)
    cured_by_rejoining = {
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.MEMBER_ID_REQUIRED,
        ErrorCode.FENCED_MEMBER_EPOCH,
        ErrorCode.STALE_MEMBER_EPOCH,
    }
    assert not fatal & cured_by_rejoining
    assert not fatal & {row.code for row in BY_CODE.values() if row.retriable}
    assert {ErrorCode.FENCED_INSTANCE_ID, ErrorCode.GROUP_AUTHORIZATION_FAILED, ErrorCode.UNSUPPORTED_ASSIGNOR} <= fatal


def test_errors_that_end_commits_are_not_retriable() -> None:
    """As in Java's `OffsetCommitResponseHandler`; a commit with a stale epoch is retried with the next one
    (KIP-848)."""
    assert codes_that_end(GroupEffect.COMMIT_REFUSED) == {
        ErrorCode.OFFSET_METADATA_TOO_LARGE,
        ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
    }
    assert codes_that_end(GroupEffect.ASSIGNMENT_LOST) == {
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.FENCED_MEMBER_EPOCH,
    }
    assert not any(row.retriable for row in BY_CODE.values() if row.group_effect is not GroupEffect.NOTHING)


def test_errors_fatal_for_transactional_producers_match_java() -> None:
    """As in Java's `TransactionManager`."""
    broken = {
        effect: {row.code for row in BY_CODE.values() if row.transaction_effect is effect}
        for effect in TransactionEffect
    }
    assert broken[TransactionEffect.FENCED] == {ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED}
    assert broken[TransactionEffect.NEEDS_PRODUCER_ID] == {ErrorCode.INVALID_PRODUCER_ID_MAPPING}
    assert broken[TransactionEffect.FATAL] == {
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.UNSUPPORTED_VERSION,
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.INVALID_TRANSACTION_TIMEOUT,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.SASL_AUTHENTICATION_FAILED,
    }
    assert not any(
        row.retriable for row in BY_CODE.values() if row.transaction_effect is not TransactionEffect.ABORTABLE
    )


def test_codes_and_names_agree_with_librdkafka() -> None:
    kafka = pytest.importorskip("confluent_kafka")
    renamed = {
        "UNKNOWN": "UNKNOWN_SERVER_ERROR",
        "NO_ERROR": "NONE",
        "INVALID_MSG": "CORRUPT_MESSAGE",
        "UNKNOWN_TOPIC_OR_PART": "UNKNOWN_TOPIC_OR_PARTITION",
        "INVALID_MSG_SIZE": "INVALID_FETCH_SIZE",
        "NOT_LEADER_FOR_PARTITION": "NOT_LEADER_OR_FOLLOWER",
        "MSG_SIZE_TOO_LARGE": "MESSAGE_TOO_LARGE",
        "STALE_CTRL_EPOCH": "STALE_CONTROLLER_EPOCH",
        "TOPIC_EXCEPTION": "INVALID_TOPIC_EXCEPTION",
        "INVALID_MSG_TIMESTAMP": "INVALID_TIMESTAMP",
    }
    reference = {}
    for name in dir(kafka.KafkaError):
        code = getattr(kafka.KafkaError, name)
        if isinstance(code, int) and code >= -1 and name.isupper():
            reference[code] = name
    different = {}
    for code, name in reference.items():
        # librdkafka: <something>_ERROR or its own shorter names; its negative codes are not Kafka's
        ours = error_row(code).name
        if _bare(renamed.get(name, name)) != _bare(ours):
            different[code] = (name, ours)
    assert len(reference) > 90
    assert different == {}


def _bare(name: str) -> str:
    return name.replace("_ERROR", "").replace("AUTHORIZATION_FAILED", "AUTH_FAILED").replace("_", "")


def test_codes_and_retriability_agree_with_kafka_python() -> None:
    errors = pytest.importorskip("kafka.errors")
    kinds = {code: kind for code, kind in errors.kafka_errors.items() if code is not None}
    retried = {code for code, kind in kinds.items() if kind.retriable}
    refreshed = {code for code, kind in kinds.items() if kind.invalid_metadata}
    ours = {code: BY_CODE[code] for code in kinds}

    # kafka-python does not retry this one, in which it differs from Java.
    assert {code for code, row in ours.items() if row.retriable} == retried | {ErrorCode.CORRUPT_MESSAGE}
    assert refreshed <= {row.code for row in ours.values() if row.refresh is Refresh.METADATA}
    assert len(kinds) > 90


def test_codes_have_distinct_texts() -> None:
    texts = [row.text for row in BY_CODE.values()]
    assert all(texts)
    assert len(set(texts)) == len(texts)
    assert [int(code) for code in ErrorCode] == list(BY_CODE)


def test_error_has_operation_and_meaning_and_pickles() -> None:
    error = broker_error(6, "Fetch v12 of orders-3 at kafka1:9092", topic="orders", partition=3)
    copy = pickle.loads(pickle.dumps(error))
    for raised in (error, copy):
        assert isinstance(raised, BrokerError)
        assert str(raised).startswith(
            "Fetch v12 of orders-3 at kafka1:9092: NOT_LEADER_OR_FOLLOWER (6), the broker is not"
        )
        assert (raised.code, raised.name) == (6, "NOT_LEADER_OR_FOLLOWER")
        assert raised.context["partition"] == 3


def test_code_newer_than_the_table_is_not_retried() -> None:
    row = error_row(999)
    assert 999 not in BY_CODE
    assert (row.name, row.retriable, row.refresh, row.group_effect) == (
        "UNKNOWN_ERROR_CODE_999",
        False,
        Refresh.NONE,
        GroupEffect.NOTHING,
    )
    assert broker_error(999, "EndTxn").code == 999

"""A topic counts as deleted after consecutive replies over time, not by time alone."""

from __future__ import annotations

import pytest

from protocol.base.clock import Backoff, Deadline
from protocol.broker_errors import ErrorCode, broker_error
from protocol.cluster.dispatch import retrying
from protocol.cluster.unknown_topic import UnknownTopicTimer
from protocol.errors import BrokerError, ConnectFailed, DeadlineExceeded, KafkaError, TopicUnknown
from protocol.testing.fake_kafka.clock import ManualClock

Answer = KafkaError | None

NO_BROKER = ConnectFailed("nobody is there")
NO_LEADER = broker_error(ErrorCode.LEADER_NOT_AVAILABLE, "orders-0", topic="orders", partition=0)


def unknown(*topics: str) -> BrokerError:
    return broker_error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "unknown", unknown=topics or ("orders",))


def after(answers: list[tuple[float, Answer]]) -> UnknownTopicTimer:
    patience = UnknownTopicTimer(10.0)
    for at_s, answer in answers:
        patience.record(answer, at_s)
    return patience


def replies(begin: int, end: int, answer: Answer = None) -> list[tuple[float, Answer]]:
    return [(float(at_s), answer or unknown()) for at_s in range(begin, end + 1)]


@pytest.mark.parametrize(
    ("answers", "over"),
    [
        pytest.param(replies(0, 10), True, id="ten seconds of answers"),
        pytest.param(replies(0, 9), False, id="less"),
        pytest.param([(0.0, unknown()), (10.0, unknown())], False, id="two answers"),
        pytest.param([*replies(0, 8), (30.0, unknown()), (31.0, unknown())], False, id="a silence"),
        pytest.param([*replies(0, 8), *replies(30, 40)], True, id="after the silence"),
        pytest.param([*replies(0, 8), (9.0, None), *replies(10, 19)], False, id="known in between"),
        pytest.param([*replies(0, 8), (9.0, NO_LEADER), *replies(10, 19)], False, id="another error in between"),
        pytest.param([*replies(0, 8), (9.0, NO_BROKER), *replies(10, 11)], True, id="one unanswered"),
        pytest.param([*replies(0, 8), *replies(9, 17, NO_BROKER), (18.0, unknown())], False, id="many unanswered"),
        pytest.param([*replies(0, 8, unknown("a")), *replies(9, 12, unknown("a", "b"))], False, id="another one later"),
        pytest.param([*replies(0, 8, unknown("a")), *replies(9, 19, unknown("a", "b"))], True, id="both for long"),
        pytest.param([*replies(0, 8, unknown("a")), *replies(9, 17, unknown("b"))], False, id="one after the other"),
        pytest.param([], False, id="nothing heard"),
    ],
)
def test_topic_is_lost_after_consecutive_unknown_replies(answers: list[tuple[float, Answer]], over: bool) -> None:
    assert after(answers).expired is over


def test_timer_has_the_time_of_the_first_unknown_reply() -> None:
    assert after([]).began_s is None
    assert after([*replies(5, 8), (40.0, unknown())]).began_s == 5.0
    assert after([*replies(5, 8), (9.0, NO_BROKER)]).began_s == 5.0
    assert after([*replies(5, 8), (9.0, NO_LEADER)]).began_s is None


def test_back_off_is_shortened_while_a_topic_is_unknown() -> None:
    assert after([]).wait_s(20.0) == 20.0
    assert after([(0.0, unknown())]).wait_s(20.0) == 1.5
    assert after([(0.0, unknown())]).wait_s(0.1) == 0.1


# -- in the retry loop ----------------------------------------------------------------------------


def loop(answers: list[tuple[float, Answer]], backoff_ms: int = 1_000) -> float:
    """Run the loop with attempts of given durations and results, the last one repeated; return its end in seconds."""
    clock = ManualClock()
    remaining = list(answers)

    def attempt() -> float:
        takes_s, answer = remaining.pop(0) if len(remaining) > 1 else remaining[0]
        clock.at_s += takes_s
        if answer is not None:
            raise answer
        return clock.at_s

    deadline = Deadline.after_ms(240_000, clock)
    try:
        return retrying(
            "it", attempt, deadline=deadline, backoff=Backoff(backoff_ms, backoff_ms), refresh=lambda *_: None
        )
    except TopicUnknown:
        return -clock.at_s


@pytest.mark.parametrize("backoff_ms", [100, 1_000, 60_000])
def test_retry_loop_ends_for_a_topic_that_stays_unknown(backoff_ms: int) -> None:
    assert -12.5 < loop([(0.0, unknown())], backoff_ms) < -9.9


def test_topic_unknown_to_an_inner_call_is_retried() -> None:
    """A topic found before has been deleted since: the next lookup will tell."""
    assert 10 < loop([(10.0, TopicUnknown("deleted since it was found")), (0.0, None)]) < 12
    with pytest.raises(DeadlineExceeded, match="deleted since"):
        loop([(10.0, TopicUnknown("deleted since it was found"))])
    with pytest.raises(DeadlineExceeded, match="no time"):
        loop([(1.0, DeadlineExceeded("no time")), (0.0, None)])


def test_call_that_detects_a_deleted_topic_has_time_for_it() -> None:
    clock = ManualClock()
    patience = UnknownTopicTimer(10.0)
    assert patience.prolonged(Deadline.after_ms(1_000, clock)).remaining_s() == patience.longest_s
    assert patience.prolonged(Deadline.after_ms(240_000, clock)).remaining_s() == 240


def test_retry_loop_continues_while_unknown_replies_are_rare_or_mixed() -> None:
    assert loop([(0.0, unknown()), (30.0, unknown()), (0.0, None)]) > 30
    assert loop([*[(0.0, unknown()), (0.0, NO_LEADER)] * 30, (0.0, None)]) > 30
    assert loop([(20.0, unknown())] * 5 + [(0.0, None)]) > 100
    with pytest.raises(DeadlineExceeded, match="did not succeed in"):
        loop([(20.0, unknown())])

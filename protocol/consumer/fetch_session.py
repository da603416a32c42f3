"""The incremental fetch session with one broker (KIP-227): after a first full request only what changed is sent.

Pure: knows rows of requests and the head of replies, no sockets, no clock. Used by `broker_consumer`. A session is
only a shorter way to say the same thing: positions live elsewhere, so losing it costs one full request.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from protocol.broker_errors import ErrorCode

NO_SESSION = 0
FINAL_EPOCH = -1
"""Ends the session, or asks without one."""
_INITIAL_EPOCH = 0
_LAST_EPOCH = 2**31 - 1

# A topic's id (Fetch version 13 and later) or its name, and the partition's number.
Key = tuple[bytes | str, int]
Row = dict[str, Any]

SESSION_ERRORS = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)
"""Codes that are about the session alone, not about any partition."""


class FetchSession:
    """What the broker remembers of our last request. One request at a time.

    Attributes
    ----------
    session_id : 0 while there is none.
    full : whether the last request named every partition, so that its reply must do so too.
    """

    def __init__(self) -> None:
        self.session_id = NO_SESSION
        self.full = True
        self._epoch = _INITIAL_EPOCH
        self._rows: Mapping[Key, Row] = {}
        self._by_id = False

    def request(self, rows: Mapping[Key, Row], *, by_id: bool) -> dict[str, Any]:
        """The fields of a request for exactly these rows: what the broker does not know yet, and what to forget.

        `by_id`: keys hold topic ids, not names; a session cannot change from one to the other.
        """
        if by_id != self._by_id:
            self.restart()
            self._by_id = by_id
        self.full = self._epoch == _INITIAL_EPOCH
        before = {} if self.full else self._rows
        changed = {key: row for key, row in rows.items() if before.get(key) != row}
        forgotten: dict[bytes | str, list[int]] = {}
        for topic, partition in before.keys() - rows.keys():
            forgotten.setdefault(topic, []).append(partition)
        self._rows = rows
        name = topic_field(by_id)
        return {
            "session_id": self.session_id,
            "session_epoch": self._epoch,
            "topics": topic_rows(changed, by_id),
            "forgotten_topics_data": [{name: topic, "partitions": gone} for topic, gone in forgotten.items()],
        }

    def accept(self, error_code: int, session_id: int) -> None:
        """Takes the head of a reply: the next request is the session's next one, or starts a new session."""
        if error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
            self.session_id = NO_SESSION
        if error_code != ErrorCode.NONE or (session_id != self.session_id and not self.full):
            self.restart()
        elif session_id == NO_SESSION:
            # The broker keeps no (more) sessions, or was throttling: a full request may start one.
            self.session_id, self._epoch = NO_SESSION, _INITIAL_EPOCH
        else:
            self.session_id = session_id
            # A session's second request has epoch 1, and 1 comes again after the largest.
            self._epoch = 1 if self._epoch == _LAST_EPOCH else self._epoch + 1

    def restart(self) -> None:
        """The next request is a full one; it ends the old session, if there is one. Also after a lost reply."""
        self._epoch = _INITIAL_EPOCH

    def close(self) -> dict[str, Any] | None:
        """The fields of a request that ends the session, which the broker would else keep for minutes."""
        session_id, self.session_id = self.session_id, NO_SESSION
        self.restart()
        return {"session_id": session_id, "session_epoch": FINAL_EPOCH, "topics": []} if session_id else None


def topic_field(by_id: bool) -> str:
    return "topic_id" if by_id else "topic"


def topic_rows(rows: Mapping[Key, Row], by_id: bool) -> list[dict[str, Any]]:
    """`rows` as the `topics` of a request, topics in the order of their first row."""
    topics: dict[bytes | str, list[Row]] = {}
    for (topic, _), row in rows.items():
        topics.setdefault(topic, []).append(row)
    name = topic_field(by_id)
    return [{name: topic, "partitions": partitions} for topic, partitions in topics.items()]


def keys_of(rows: Iterable[Mapping[str, Any]], by_id: bool) -> list[tuple[Key, Mapping[str, Any]]]:
    """The partition rows of a reply with their keys."""
    name = topic_field(by_id)
    return [
        ((bytes(topic[name]) if by_id else topic[name], row["partition_index"]), row)
        for topic in rows
        for row in topic["partitions"]
    ]

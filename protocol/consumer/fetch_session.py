"""The incremental fetch session with one broker (KIP-227): after a full request, only changes are sent. Sans-IO.

Used by `broker_consumer`. The session only shortens requests; it holds no positions, so losing it costs one full
request.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from protocol.broker_errors import ErrorCode

NO_SESSION = 0
FINAL_EPOCH = -1
"""Epoch of a request that closes the session, or that uses none."""
_INITIAL_EPOCH = 0
_LAST_EPOCH = 2**31 - 1

# A topic's id (since Fetch 13) or its name, and the partition number.
Key = tuple[bytes | str, int]
Row = dict[str, Any]

SESSION_ERRORS = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)
"""Codes about the session, not about partitions."""


class FetchSession:
    """The broker's state of the last request. One request at a time.

    Attributes
    ----------
    session_id : int
        0 if there is no session.
    full : bool
        The last request contained every partition, and so must its reply.
    """

    def __init__(self) -> None:
        self.session_id = NO_SESSION
        self.full = True
        self._epoch = _INITIAL_EPOCH
        self._rows: Mapping[Key, Row] = {}
        self._by_id = False

    def request(self, rows: Mapping[Key, Row], *, by_id: bool) -> dict[str, Any]:
        """Return the fields of a request for exactly these rows: changed rows, and partitions to forget.

        `by_id`: keys contain topic ids instead of names; a session cannot change between them.
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
        """Handle the head of a reply: the next request continues the session or starts a new one."""
        if error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
            self.session_id = NO_SESSION
        if error_code != ErrorCode.NONE or (session_id != self.session_id and not self.full):
            self.restart()
        elif session_id == NO_SESSION:
            # The broker has no room for the session, or throttles: a full request may create one later.
            self.session_id, self._epoch = NO_SESSION, _INITIAL_EPOCH
        else:
            self.session_id = session_id
            # The epoch of the second request is 1, and 1 follows the largest.
            self._epoch = 1 if self._epoch == _LAST_EPOCH else self._epoch + 1

    def restart(self) -> None:
        """Make the next request a full one, which also closes the old session. Needed after a lost reply."""
        self._epoch = _INITIAL_EPOCH

    def close(self) -> dict[str, Any] | None:
        """Return the fields of a request that closes the session, which the broker would otherwise keep for minutes."""
        session_id, self.session_id = self.session_id, NO_SESSION
        self.restart()
        return {"session_id": session_id, "session_epoch": FINAL_EPOCH, "topics": []} if session_id else None


def topic_field(by_id: bool) -> str:
    """Return the field that names the topic in requests and replies."""
    return "topic_id" if by_id else "topic"


def topic_rows(rows: Mapping[Key, Row], by_id: bool) -> list[dict[str, Any]]:
    """Group rows into the `topics` of a request, in the order of the topics' first rows."""
    topics: dict[bytes | str, list[Row]] = {}
    for (topic, _), row in rows.items():
        topics.setdefault(topic, []).append(row)
    name = topic_field(by_id)
    return [{name: topic, "partitions": partitions} for topic, partitions in topics.items()]


def keys_of(rows: Iterable[Mapping[str, Any]], by_id: bool) -> list[tuple[Key, Mapping[str, Any]]]:
    """Return the partition rows of a reply with their keys."""
    name = topic_field(by_id)
    return [
        ((bytes(topic[name]) if by_id else topic[name], row["partition_index"]), row)
        for topic in rows
        for row in topic["partitions"]
    ]

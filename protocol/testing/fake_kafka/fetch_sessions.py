"""Incremental fetch sessions of a broker (KIP-227)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from protocol.broker_errors import ErrorCode
from protocol.testing.fake_kafka.requests import Body, Refused

_NO_SESSION, _FIRST = -1, 0
_LAST_EPOCH = 2**31 - 1

Key = tuple[str, bytes, int]
"""Name and id of a topic, one of which is empty, and a partition."""


@dataclass
class FetchSession:
    """A session: `wanted` has the requested fields of each partition.

    `told` has the high watermark and log start offset that were sent last; -1 after an error.
    """

    session_id: int
    epoch: int = _FIRST
    wanted: dict[Key, Body] = field(default_factory=dict)
    told: dict[Key, tuple[int, int]] = field(default_factory=dict)

    def keep(self, rows: dict[Key, Body]) -> dict[Key, Body]:
        """Return the rows with changes. A partition that returned records is last in the next reply."""
        first, news = self.epoch == _FIRST, {}
        for key, row in rows.items():
            ends = (row["high_watermark"], row["log_start_offset"])
            if first or row["records"] or row["error_code"] or "diverging_epoch" in row or self.told.get(key) != ends:
                news[key] = row
            self.told[key] = (-1, -1) if row["error_code"] else ends
            if row["records"]:
                self.wanted[key] = self.wanted.pop(key)
        self.epoch = 1 if self.epoch == _LAST_EPOCH else self.epoch + 1
        return news


class FetchSessions:
    """All sessions of one broker, up to `slots`; further requests get none, since the model evicts none."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self.sessions: dict[int, FetchSession] = {}
        self._next_id = 1

    def of(self, body: Body) -> FetchSession:
        """Return the session of a request, with the request's changes; the id is 0 if the session ends with it.

        Raises `Refused`.
        """
        session_id, epoch = body["session_id"], body["session_epoch"]
        requested = dict(_partitions(body["topics"]))
        if epoch in (_NO_SESSION, _FIRST):
            self.sessions.pop(session_id, None)
            return FetchSession(0, wanted=requested) if epoch == _NO_SESSION else self._begin(requested)
        session = self.sessions.get(session_id)
        if session is None:
            raise Refused(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != epoch:
            raise Refused(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        session.wanted.update(requested)
        for topic in body["forgotten_topics_data"]:
            for number in topic["partitions"]:
                session.wanted.pop((topic["topic"], bytes(topic["topic_id"]), number), None)
                session.told.pop((topic["topic"], bytes(topic["topic_id"]), number), None)
        return session if session.wanted else FetchSession(0, wanted=self.sessions.pop(session_id).wanted)

    def _begin(self, requested: dict[Key, Body]) -> FetchSession:
        if len(self.sessions) >= self._slots:
            return FetchSession(0, wanted=requested)
        session = self.sessions[self._next_id] = FetchSession(self._next_id, wanted=requested)
        self._next_id += 1
        return session


def _partitions(topics: Iterable[Body]) -> Iterable[tuple[Key, Body]]:
    for topic in topics:
        for part in topic["partitions"]:
            yield (topic["topic"], bytes(topic["topic_id"]), part["partition"]), part

"""Wait for any of several replies, from any of their connections.

For threads that communicate with many brokers (the producer's sender); `Reply.result` waits for one reply only.
"""

from __future__ import annotations

import select
from collections.abc import Sequence

from protocol.clock import Deadline
from protocol.net.connection import Reply
from protocol.net.self_pipe import SelfPipe

_LONGEST_POLL_S = 3_600.0


def ready(
    replies: Sequence[Reply],
    timeout_s: float = 0.0,
    deadline: Deadline | None = None,
    self_pipe: SelfPipe | None = None,
) -> list[Reply]:
    """Wait until a reply arrives or fails. Reads what has come, so `result` of the returned replies does not wait.

    Parameters
    ----------
    replies : sequence of Reply
        The oldest pending reply of each connection, since replies are ordered.
    timeout_s : float
        The longest wait for the first of them.
    deadline : Deadline, optional
        Limit of the requests about unresponsive brokers; None sends none.
    self_pipe : SelfPipe, optional
        Ends the wait when woken, and is drained.

    Returns
    -------
    list of Reply
        May be empty, also because only part of a reply has come.
    """
    arrived = [reply for reply in replies if reply.take_in()]
    if arrived or not (replies or self_pipe):
        return arrived
    poll = select.poll()
    by_number: dict[int, Reply] = {}
    for reply in replies:
        number = reply.fileno()
        if number < 0:
            arrived.append(reply)
            continue
        by_number[number] = reply
        poll.register(number, select.POLLIN)
    if self_pipe is not None:
        poll.register(self_pipe.fileno(), select.POLLIN)
    events = poll.poll(0 if arrived else min(max(0.0, timeout_s), _LONGEST_POLL_S) * 1000)
    if self_pipe is not None and any(number == self_pipe.fileno() for number, _ in events):
        self_pipe.drain()
    if not events and not arrived and deadline is not None and not deadline.passed:
        for reply in replies:
            reply.check_silence(deadline)
    come = [by_number[number] for number, _ in events if number in by_number]
    return arrived + [reply for reply in come if reply.take_in()]

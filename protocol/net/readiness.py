"""Which of several replies can be taken without waiting, on whichever connections they come.

For those who talk to many brokers from one thread (the producer). `Reply.result` waits for one reply only.
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
    """Those that have arrived, failed, or have bytes to read; waits up to `timeout_s` for the first of them.

    Give the oldest outstanding reply of each connection: replies come in order. May return none: also when `self_pipe`
    was woken, which is drained then. When nothing came, and a broker has been silent for a while, others are asked
    about it until `deadline`; None: there is no time for that.
    """
    arrived = [reply for reply in replies if reply.arrived or reply.pending()]
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
    return arrived + [by_number[number] for number, _ in events if number in by_number]

"""What a reused Python worker of Spark pays between two tasks, and how our tasks make it pay less.

Called at the end of tasks, in executors. Two things cost more than a small task itself. PySpark's daemon collects
garbage after every task: about 20 ms over all that PySpark, pandas, Arrow and NumPy have loaded. And Spark's JVM tells
the next task in two writes to a TCP socket without TCP_NODELAY: the second write waits (Nagle) until the worker's side
has acknowledged the first, which Linux puts off for 40 ms on a socket that has just answered (delayed ACK). With
`spark.python.unix.domain.socket.enabled` there is no such wait.
"""

from __future__ import annotations

import gc
import socket
import sys
from functools import lru_cache
from types import FrameType
from typing import Any

_QUICK_ACK: int | None = getattr(socket, "TCP_QUICKACK", None)  # Linux only


@lru_cache(maxsize=1)
def tune_worker() -> None:
    """Makes this process, if it is a worker, quick between tasks; later calls do nothing.

    Call it at the end of a task, when all that tasks need has been imported and cached: it is taken out of the
    garbage collector's sight for ever, cycles that are alive now included.
    """
    gc.collect()
    gc.freeze()
    task_socket = _task_socket(sys._getframe())
    if task_socket is not None and task_socket.family != socket.AF_UNIX and _QUICK_ACK is not None:
        _acknowledge_at_once(task_socket, _QUICK_ACK)


def _acknowledge_at_once(task_socket: socket.socket, quick_ack: int) -> None:
    """Between tasks, tells Linux not to put off the next acknowledgement.

    It forgets that with the next answer that is sent, so it is told in the one thing that happens in this process
    after a task's last answer and before the next order: the daemon's collection of garbage.
    """

    def between_tasks(phase: str, info: dict[str, Any]) -> None:
        if phase == "stop" and info["generation"] == 2:
            try:
                task_socket.setsockopt(socket.IPPROTO_TCP, quick_ack, 1)
            except OSError:
                gc.callbacks.remove(between_tasks)

    gc.callbacks.append(between_tasks)


def _task_socket(frame: FrameType | None) -> socket.socket | None:
    """The socket that `pyspark.daemon.worker`, somewhere up the stack, gets its tasks from; None in other processes."""
    while frame is not None:
        if frame.f_code.co_name == "worker" and isinstance(frame.f_locals.get("sock"), socket.socket):
            found: socket.socket = frame.f_locals["sock"]
            return found
        frame = frame.f_back
    return None

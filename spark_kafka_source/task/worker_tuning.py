"""Reduce the time that a reused Python worker of Spark needs between two tasks. Runs in executors, after each task.

Two delays exceed the time of a small task:

- PySpark's daemon collects garbage after every task: about 20 ms for the objects of PySpark, pandas, Arrow and NumPy.
- Spark's JVM sends the next task in two writes to a TCP socket without TCP_NODELAY. The second write waits (Nagle) for
  the worker's acknowledgement of the first, which Linux delays by 40 ms on a socket that has just sent (delayed ACK).
  With `spark.python.unix.domain.socket.enabled` there is no such delay.
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
    """Tune this process if it is a worker; later calls do nothing.

    Call it at the end of a task, after all imports: the garbage collector ignores all current objects from then on,
    also cycles.
    """
    gc.collect()
    gc.freeze()
    task_socket = _task_socket(sys._getframe())
    if task_socket is not None and task_socket.family != socket.AF_UNIX and _QUICK_ACK is not None:
        _acknowledge_at_once(task_socket, _QUICK_ACK)


def _acknowledge_at_once(task_socket: socket.socket, quick_ack: int) -> None:
    """Set TCP_QUICKACK between tasks, so that Linux does not delay the next acknowledgement.

    The next send resets the option. So it is set in a callback of the daemon's garbage collection: the only event in
    this process between the last output of a task and the next task.
    """

    def between_tasks(phase: str, info: dict[str, Any]) -> None:
        if phase == "stop" and info["generation"] == 2:
            try:
                task_socket.setsockopt(socket.IPPROTO_TCP, quick_ack, 1)
            except OSError:
                gc.callbacks.remove(between_tasks)

    gc.callbacks.append(between_tasks)


def _task_socket(frame: FrameType | None) -> socket.socket | None:
    """Return the task socket of `pyspark.daemon.worker`, found up the stack; None in other processes."""
    while frame is not None:
        if frame.f_code.co_name == "worker" and isinstance(frame.f_locals.get("sock"), socket.socket):
            sock: socket.socket = frame.f_locals["sock"]
            return sock
        frame = frame.f_back
    return None

"""The thread of a producer: hands over batches that have lingered, lets the sender work, and ends both.

It alone knows both sides: `batch_assembler` hands batches over to `sender`, which reports results to `pending_rows`.
"""

from __future__ import annotations

import logging
import os
import threading
from functools import partial

from protocol.base.clock import Clock, Deadline
from protocol.base.interrupts import join
from protocol.errors import KafkaError, UsageError
from protocol.producer.batch_assembler import BatchAssembler
from protocol.producer.sender import Sender

log = logging.getLogger(__name__)


class ProducerThread:
    """Runs from `start` until `stop`, an error of the assembler, or an unexpected one."""

    def __init__(self, assembler: BatchAssembler, sender: Sender, clock: Clock) -> None:
        self._assembler = assembler
        self._sender = sender
        self._clock = clock
        self._process_id = os.getpid()
        self._thread = threading.Thread(target=self._run, name=sender.purpose, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop, and fail pending rows. Does not wait, and takes no lock."""
        if self.in_this_process:
            self._sender.stop()

    def join(self, deadline: Deadline) -> None:
        """Wait for the end of the thread, at most until the deadline."""
        in_other_thread = self.in_this_process and not self.is_current
        if in_other_thread and not join(self._thread, deadline.remaining_s()):
            log.warning("%s still waits for a broker; it ends with the reply or its timeout", self._thread.name)

    @property
    def in_this_process(self) -> bool:
        """False after a fork, which does not copy threads."""
        return self._process_id == os.getpid()

    @property
    def is_current(self) -> bool:
        """True in a callback."""
        return threading.current_thread() is self._thread

    def _run(self) -> None:
        end: KafkaError | None = None
        try:
            while not self._sender.stopped:
                looked_at_s = self._clock.now_s()
                self._sender.work()
                # After the work, which may have completed a batch that rows wait for. `put` ends the wait.
                self._sender.wait(self._assembler.hand_over_due(), looked_at_s)
        except BaseException as error:
            log.exception("%s: the sender has failed", self._thread.name)
            end = UsageError(
                "this producer cannot continue: its sender has failed, unacknowledged rows may be written or not: "
                f"{error!r}"
            )
        finally:
            self._end(end or self._sender.stop_error)

    def _end(self, error: KafkaError) -> None:
        """Give every row a result, so that no caller waits forever. Each step comes also after an error of another.

        In this order: results that the sender has already; failures of all other rows; then the callers that wait for
        a reset, which see the error that `fail_batches` has set.
        """
        steps = partial(self._sender.fail_batches, error), partial(self._assembler.close, error), self._sender.close
        for step in steps:
            try:
                step()
            except Exception:
                log.exception("%s: the sender cannot end in order", self._thread.name)

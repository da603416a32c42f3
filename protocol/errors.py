"""The families of errors this package raises; what each one is for, and whose fault it says it was.

Five families under one root: ours or the caller's (`UsageError`), the peer's bytes (`ProtocolError`), the transport
(`TransportError`), who trusts whom (`SecurityError`), and the configuration (`ConfigurationError`). What a broker
answers with an error code is a `BrokerError`; the table of codes is `protocol.broker_errors`.

Every error here pickles (executors send them to the driver) and keeps its `__cause__` when raised `from`.
"""

from __future__ import annotations

from typing import Any


class KafkaError(Exception):
    """Root of everything this package raises on purpose.

    `context`: what it is about, as fields. `settings` among them names those properties (or parameters of this package)
    in the message that whoever reads it may set, for a user who knows them by other names.
    """

    def __init__(self, message: str, **context: Any) -> None:
        super().__init__(message)
        self.message = message
        self.context = context

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.context)

    def __str__(self) -> str:
        return self.message

    @property
    def settings(self) -> frozenset[str]:
        """Also those of its causes, whose words a message repeats."""
        cause = self.__cause__
        return frozenset(self.context.get("settings", ())) | (
            cause.settings if isinstance(cause, KafkaError) else frozenset()
        )


def _rebuild(kind: type[KafkaError], message: str, context: dict[str, Any]) -> KafkaError:
    error = kind.__new__(kind)
    KafkaError.__init__(error, message, **context)
    return error


class UsageError(KafkaError):
    """The caller asked for something that makes no sense (an unknown field, a closed object)."""


class ConfigurationError(KafkaError):
    """A property is unknown, forbidden or has a wrong value. The message names it and the remedy."""


class ProtocolError(KafkaError):
    """The peer's bytes break Kafka's protocol."""


class Truncated(ProtocolError):
    """The bytes end before the value they announce does."""


class Corrupt(ProtocolError):
    """The bytes are there, but cannot be what they claim to be (CRC, counts, codes, trailing bytes)."""


class DecompressedTooLarge(Corrupt):
    """A compressed record batch unpacks to more than the cap on decompressed bytes."""


class FrameTooLarge(ProtocolError):
    """A reply announces more bytes than the cap on a frame, or a size no Kafka broker would announce."""


class UnsupportedVersion(KafkaError):
    """No version of an API suits us, the broker and the features this call needs."""


class TransportError(KafkaError):
    """A socket could not be opened, was closed, or a deadline passed. Retriable by nature."""


class ConnectFailed(TransportError):
    """No connection to the broker (name not found, refused, timed out)."""


class ConnectionLost(TransportError):
    """The connection was closed or reset; what was in flight has an unknown outcome."""


class RequestTimedOut(TransportError):
    """One request had no reply in `request.timeout.ms`; its outcome is unknown."""


class DeadlineExceeded(TransportError):
    """The deadline of a whole call passed, retries included. `__cause__` is the last failure."""


class TopicUnknown(DeadlineExceeded):
    """Brokers have said for long, again and again, that they do not know a topic or a partition."""

    @property
    def answer(self) -> BrokerError:
        """What was said last."""
        assert isinstance(self.__cause__, BrokerError)
        return self.__cause__


class SecurityError(KafkaError):
    """Client and broker do not accept each other. No retry mends that: somebody has to change something."""


class TLSFailed(SecurityError):
    """A certificate, a host name, or what both ends speak of TLS was refused, here or there."""


class AuthenticationFailed(SecurityError):
    """The broker does not take our credentials, or has not proved that it knows them."""


class BrokerError(KafkaError):
    """A broker answered with an error code.

    `context` has at least `code` (int) and `name` (str, Kafka's name of the code); `row` of the table is
    `protocol.broker_errors.BY_CODE[code]`.
    """

    @property
    def code(self) -> int:
        return int(self.context["code"])

    @property
    def name(self) -> str:
        return str(self.context["name"])


class DataLoss(KafkaError):
    """Records that were asked for are not in the log any more. The message says which, and the likely cause."""


class LogTruncated(DataLoss):
    """The log has lost records that were read from it, and may have others in their place (KIP-320).

    `context` has `end_offset`: up to there the log is still the one that was read.
    """


class TopicRecreated(DataLoss):
    """The topic was deleted and recreated under its name: what was to be read went with the old one."""


class NoOffset(KafkaError):
    """`auto.offset.reset` is `none`, and the group has no offset to begin at."""


class CommitFailed(KafkaError):
    """Offsets were not committed. The cause says why: refused, no answer in time, or another member's by now."""


class TransactionFailed(KafkaError):
    """A transaction cannot be committed, and must be aborted; nothing of it is or will be visible. See the cause."""


class ProducerFenced(KafkaError):
    """Another producer with the same transactional id has come, or the broker has timed the transaction out."""


class OutcomeUnknown(KafkaError):
    """Whether a transaction was committed is not known: nobody answered in time, or nobody can tell any more."""


class AdminFailed(KafkaError):
    """An administrative operation failed for some of its resources; it was done for the others.

    Attributes
    ----------
    errors : dict
        The `KafkaError` of each failed resource, by the key that the caller passed.
    results : dict
        The results of the other resources.
    """

    @property
    def errors(self) -> dict[Any, KafkaError]:
        return dict(self.context["errors"])

    @property
    def results(self) -> dict[Any, Any]:
        return dict(self.context["results"])


class WakeUp(KafkaError):
    """A `KafkaConsumer` was woken out of `poll` by another thread."""

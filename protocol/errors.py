"""Errors of this package by cause, under the root `KafkaError`.

`UsageError`: a mistake in calling code. `ConfigurationError`: a property. `ProtocolError`: invalid bytes from the
broker. `TransportError`: sockets and timeouts. `SecurityError`: TLS and authentication. `BrokerError`: an error code
in a reply; `protocol.broker_errors` has the table of codes.

Errors can be pickled (executors send them to the driver) and keep their `__cause__` when raised `from`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any


def rename_properties(text: str, names: Iterable[str], rename: Callable[[str], str]) -> str:
    """Replace names of Kafka properties in a text by those of an integration, such as options of a Spark source.

    `names`: the properties in the text.
    `rename`: converts a name: `group.id` to `kafka.group.id`, for example.
    """
    for name in sorted(names):
        text = re.sub(rf"(?<![\w.]){re.escape(name)}(?!\w|\.\w)", lambda match: rename(match[0]), text)
    return text


class KafkaError(Exception):
    """Root of all errors that this package raises on purpose.

    Parameters
    ----------
    message : str
        The complete text for users.
    **context
        Facts about the error as fields, such as `topic` and `partition`. The field `settings` lists the properties
        and parameters in the message that the user may set.

    Attributes
    ----------
    message : str
    context : dict
    """

    def __init__(self, message: str, **context: Any) -> None:
        super().__init__(message)
        self.message = message
        self.context = context

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.context)

    def __str__(self) -> str:
        return self.message

    def with_names(self, rename: Callable[[str], str]) -> str:
        """Return the message with an integration's names of the `settings`, as `rename_properties`."""
        return rename_properties(self.message, self.settings, rename)

    @property
    def settings(self) -> frozenset[str]:
        """Names of properties in the message, including those of its causes, whose texts the message repeats."""
        cause = self.__cause__
        return frozenset(self.context.get("settings", ())) | (
            cause.settings if isinstance(cause, KafkaError) else frozenset()
        )


def _rebuild(kind: type[KafkaError], message: str, context: dict[str, Any]) -> KafkaError:
    error = kind.__new__(kind)
    KafkaError.__init__(error, message, **context)
    return error


class UsageError(KafkaError):
    """The caller misused the interface: an unknown field, a closed object."""


class ConfigurationError(KafkaError):
    """A property is unknown, forbidden or has a wrong value. The message names it and the remedy."""


class ProtocolError(KafkaError):
    """The bytes of the peer violate Kafka's protocol."""


class Truncated(ProtocolError):
    """The bytes end before the announced end of a value."""


class Corrupt(ProtocolError):
    """The bytes are complete but invalid (CRC, counts, codes, trailing bytes)."""


class DecompressedTooLarge(Corrupt):
    """A decompressed record batch exceeds `max.decompressed.batch.bytes`."""


class FrameTooLarge(ProtocolError):
    """A reply announces more bytes than the client reads (see `fetch.max.bytes`), or a size that no broker sends."""


class UnsupportedVersion(KafkaError):
    """No version of an API is supported by this client and the broker and has the features that the call needs."""


class TransportError(KafkaError):
    """A socket could not be opened or was closed, or a deadline passed. Retriable."""


class ConnectFailed(TransportError):
    """No connection to the broker (name not found, refused, timed out)."""


class ConnectionLost(TransportError):
    """The connection was closed or reset; the outcome of requests in flight is unknown."""


class RequestTimedOut(TransportError):
    """A request had no reply within `request.timeout.ms`; its outcome is unknown."""


class DeadlineExceeded(TransportError):
    """The deadline of a whole call passed, retries included. `__cause__` is the last failure."""


class TopicUnknown(DeadlineExceeded):
    """Brokers reported repeatedly, until the timeout, that they do not know a topic or a partition."""

    @property
    def answer(self) -> BrokerError:
        """The error code of the last reply, as a `BrokerError`."""
        assert isinstance(self.__cause__, BrokerError)
        return self.__cause__


class SecurityError(KafkaError):
    """Client and broker do not accept each other. Retries do not help: fix the configuration or the ACLs."""


class TLSFailed(SecurityError):
    """The TLS handshake failed: a certificate, a host name, a TLS version or a cipher suite was refused."""


class AuthenticationFailed(SecurityError):
    """The broker refused the client's credentials, or has not proved that it knows them."""


class BrokerError(KafkaError):
    """A broker replied with an error code.

    `context` has at least `code` (int) and `name` (str, Kafka's name of the code).
    `protocol.broker_errors.BY_CODE[code]` has the row of the code.
    """

    @property
    def code(self) -> int:
        """Kafka's error code."""
        return int(self.context["code"])

    @property
    def name(self) -> str:
        """Kafka's name of the code, such as `NOT_LEADER_OR_FOLLOWER`."""
        return str(self.context["name"])


class DataLoss(KafkaError):
    """Requested records are no longer in the log. The message says which, and the likely cause."""


class LogTruncated(DataLoss):
    """The log lost records after they were read or planned, and may have other records at their offsets (KIP-320).

    Records are planned if they are in a range to read, such as a micro-batch, and not read yet.
    `context["end_offset"]`: the log is unchanged before this offset. Absent for planned records: then
    `leaders.py` queries the leader.
    `context["end_epoch"]`: leader epoch of the record before `end_offset`. Pass both to `seek`, so that the next
    truncation is detected.
    `context["record_epoch"]`: leader epoch of a record that shows the loss of planned records. If the leader denies the
    loss, the epoch of the range's end must be dropped: otherwise the same record raises this error without end.
    """


class TopicRecreated(DataLoss):
    """The topic was deleted and recreated with the same name; the unread records were deleted with it.

    `context["topic_id"]`: id of the new topic, in errors of open partitions: `seek` continues there.
    """


class NoOffset(KafkaError):
    """`auto.offset.reset` is `none`, and the group has no committed offset to start from."""


class CommitFailed(KafkaError):
    """Offsets were not committed. See the cause: refused, timed out, or the partition has a new owner."""


class TransactionFailed(KafkaError):
    """The transaction cannot be committed and must be aborted; no record of it becomes visible. See the cause."""


class ProducerFenced(KafkaError):
    """A newer producer has the same transactional id, or the coordinator has aborted a transaction that timed out."""


class OutcomeUnknown(KafkaError):
    """The outcome of a commit or an abort is not known yet: no reply within the deadline. Repeat the call."""


class OutcomeLost(KafkaError):
    """A transaction may be committed or aborted, and its producer cannot find out any more.

    A commit had no reply, and then the coordinator aborted the transaction after its timeout or had a newer producer.
    Create a new producer, and check whether the records are visible before you send them again.
    """


class AdminFailed(KafkaError):
    """An administrative operation failed for some of its resources, and succeeded for the others.

    Attributes
    ----------
    errors : dict
        The `KafkaError` of each failed resource, by the key that the caller passed.
    results : dict
        The results of the other resources.
    """

    @property
    def errors(self) -> dict[Any, KafkaError]:
        """Return the error of each failed resource."""
        return dict(self.context["errors"])

    @property
    def results(self) -> dict[Any, Any]:
        """Return the results of the other resources."""
        return dict(self.context["results"])


class SendFailed(KafkaError):
    """Some messages of `Producer.send_many` were not acknowledged: refused, or still pending at the deadline.

    Attributes
    ----------
    errors : dict
        The `KafkaError` of each failed message, by its index among the messages.
    results : dict
        The `RecordMetadata` of the others.
    """

    @property
    def errors(self) -> dict[int, KafkaError]:
        """Return the error of each failed message."""
        return dict(self.context["errors"])

    @property
    def results(self) -> dict[int, Any]:
        """Return the location of each written message."""
        return dict(self.context["results"])


class RegistryFailed(KafkaError):
    """A schema registry refused a request, or did not respond in time.

    The context has `status` and `error_code` of a refusal.
    """


class DecodeFailed(KafkaError):
    """A key or a value cannot be decoded with its schema.

    The context has `topic`, `partition` and `offset`.
    """


class FilterFailed(KafkaError):
    """The condition of a filter failed on a record, as in Spark's ANSI mode."""


class WakeUp(KafkaError):
    """`KafkaConsumer.wakeup` was called during `poll` or before it, by another thread or a signal handler."""

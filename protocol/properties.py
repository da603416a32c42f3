"""The table of Kafka's client properties: what each one is, which values it takes, and what it does here.

Owns the names and what becomes of one property (applies, without effect, forbidden, not supported yet); those of TLS
are in `protocol.security`. Read by `protocol.config`, which holds the defaults, and by whoever prints the table.
May not know what the values are used for. No message ever shows the value of a property it does not know, of one of
SASL, or what a reference leads to: it could be a secret.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from protocol.config_providers import resolved
from protocol.errors import ConfigurationError
from protocol.once import warn_once
from protocol.property import Effect, Property, Role, applies, forbidden, no_effect
from protocol.property_kinds import (
    ACKS,
    ADDRESSES,
    BOOLEAN,
    LIBRDKAFKA_PARTITIONER,
    MAX_INT64,
    MILLISECONDS,
    NONEMPTY,
    PARTITIONER,
    POSITIVE_MILLISECONDS,
    SECURITY_PROTOCOL,
    SOCKET_BUFFER,
    TEXT,
    integer,
    one_of,
)
from protocol.sasl.properties import SASL_PROPERTIES
from protocol.security.tls_properties import TLS_PROPERTIES
from protocol.spelling import meant

# -- the table ------------------------------------------------------------------------------------

_CLIENT, _CONSUMER, _PRODUCER = Role.CLIENT, Role.CONSUMER, Role.PRODUCER
_ARROW = "keys and values are bytes here; convert them in columns, before or after"

PROPERTIES: tuple[Property, ...] = (
    applies(_CLIENT, "bootstrap.servers", ADDRESSES, "brokers to ask first; required"),
    applies(_CLIENT, "client.id", NONEMPTY, "the name in brokers' logs, metrics and quotas"),
    applies(_CLIENT, "security.protocol", SECURITY_PROTOCOL, "how to talk to brokers"),
    applies(_CLIENT, "request.timeout.ms", POSITIVE_MILLISECONDS, "the longest wait for one reply"),
    applies(
        _CLIENT, "default.api.timeout.ms", POSITIVE_MILLISECONDS, "the longest time of a whole call, with its retries"
    ),
    applies(
        _CLIENT, "socket.connection.setup.timeout.ms", POSITIVE_MILLISECONDS, "the longest time to open a connection"
    ),
    applies(
        _CLIENT,
        "reconnect.backoff.ms",
        MILLISECONDS,
        "a broker that has failed is not connected to again for so long, twice that the next time, and so on",
    ),
    applies(
        _CLIENT,
        "reconnect.backoff.max.ms",
        MILLISECONDS,
        "the longest such wait; by default not less than reconnect.backoff.ms",
    ),
    applies(_CLIENT, "retry.backoff.ms", MILLISECONDS, "the first wait before a request is tried again"),
    applies(_CLIENT, "retry.backoff.max.ms", MILLISECONDS, "the longest such wait"),
    applies(_CLIENT, "metadata.max.age.ms", MILLISECONDS, "how old metadata may grow"),
    applies(
        _CLIENT,
        "connections.max.idle.ms",
        integer(1, also={-1: MAX_INT64}),
        "connections idle for this long are closed; -1: never",
    ),
    applies(_CLIENT, "receive.buffer.bytes", SOCKET_BUFFER, "SO_RCVBUF; -1: the system tunes it"),
    applies(_CLIENT, "send.buffer.bytes", SOCKET_BUFFER, "SO_SNDBUF; -1: the system tunes it"),
    applies(
        _CLIENT, "max.response.bytes", integer(1024), "cap on one reply (a property of this client, not of Kafka's)"
    ),
    applies(_CONSUMER, "group.id", NONEMPTY, "the group whose offsets are read and committed"),
    applies(
        _CONSUMER,
        "auto.offset.reset",
        one_of("earliest", "latest", "none", otherwise="by_duration is not supported yet"),
        "where to start when the group has no offset, or one that is not in the log; none: fail",
    ),
    applies(
        _CONSUMER,
        "isolation.level",
        one_of("read_uncommitted", "read_committed"),
        "whether records of aborted and open transactions are read",
    ),
    applies(_CONSUMER, "fetch.min.bytes", integer(0), "a broker waits for this much before it replies"),
    applies(_CONSUMER, "fetch.max.wait.ms", MILLISECONDS, "but no longer than this"),
    applies(_CONSUMER, "fetch.max.bytes", integer(1), "the most that one reply brings"),
    applies(
        _CONSUMER,
        "max.partition.fetch.bytes",
        integer(1),
        "the most of one partition that one reply brings; a larger record batch still comes whole",
    ),
    applies(
        _CONSUMER,
        "client.rack",
        NONEMPTY,
        "where this client is; brokers with replica.selector.class then name a replica nearby to read from",
    ),
    applies(
        _CONSUMER,
        "max.processing.time.ms",
        POSITIVE_MILLISECONDS,
        "for `protocol.consumer.consumer` alone: a partition that is not read for so long is left out of the fetches "
        "until it is (a property of this client, not of Kafka's)",
    ),
    applies(_CONSUMER, "check.crcs", BOOLEAN, "whether the CRC of every record batch is checked"),
    applies(
        _CONSUMER,
        "max.decompressed.batch.bytes",
        integer(1024),
        "cap on one record batch, unpacked (a property of this client, not of Kafka's)",
    ),
    applies(
        _CONSUMER,
        "group.protocol",
        one_of("none", "classic", "consumer"),
        "none: offsets are committed without joining the group. Members of one share its partitions: by JoinGroup "
        "(classic), or as the brokers assign them (consumer, KIP-848, since Kafka 4.0)",
    ),
    applies(
        _CONSUMER,
        "group.instance.id",
        NONEMPTY,
        "a static member, that may come back within session.timeout.ms to what it had (KIP-345)",
    ),
    applies(
        _CONSUMER,
        "session.timeout.ms",
        POSITIVE_MILLISECONDS,
        "classic: a member that the coordinator has not heard of for so long has lost its partitions",
    ),
    applies(
        _CONSUMER, "heartbeat.interval.ms", POSITIVE_MILLISECONDS, "classic: how often a member tells that it is there"
    ),
    applies(
        _CONSUMER,
        "max.poll.interval.ms",
        POSITIVE_MILLISECONDS,
        "a member whose owner asks nothing of it for so long leaves; so long do others wait for it in a rebalance",
    ),
    applies(
        _CONSUMER,
        "partition.assignment.strategy",
        NONEMPTY,
        "classic: how the leader assigns, the preferred ones first: range, roundrobin, sticky, cooperative-sticky, or "
        "Java's classes of these",
    ),
    applies(
        _CONSUMER, "group.remote.assignor", NONEMPTY, "consumer: how the brokers assign; by default as they prefer"
    ),
    applies(_PRODUCER, "acks", ACKS, "how many replicas confirm a write"),
    applies(
        _PRODUCER, "compression.type", one_of("none", "gzip", "snappy", "lz4", "zstd"), "the codec of record batches"
    ),
    applies(_PRODUCER, "compression.gzip.level", integer(1, 9, also={-1: None}), "level of gzip", field="gzip_level"),
    applies(_PRODUCER, "compression.lz4.level", integer(1, 17), "level of lz4", field="lz4_level"),
    applies(_PRODUCER, "compression.zstd.level", integer(-131072, 22), "level of zstd", field="zstd_level"),
    applies(
        _PRODUCER,
        "linger.ms",
        MILLISECONDS,
        "how long to wait for a record batch to fill; a task of a sink that is not told waits until its rows end",
    ),
    applies(_PRODUCER, "batch.size", integer(0), "the most bytes of one record batch", field="batch_size_bytes"),
    applies(
        _PRODUCER,
        "batch.num.messages",
        integer(1),
        "the most records of one record batch; with so many it waits no longer (librdkafka's name, sarama's "
        "Flush.Messages)",
    ),
    applies(
        _PRODUCER,
        "max.request.size",
        integer(1),
        "the most bytes of one request and record",
        field="max_request_size_bytes",
    ),
    applies(
        _PRODUCER,
        "max.in.flight.requests.per.connection",
        integer(1),
        "requests that wait for their reply at once; with idempotence at most 5",
    ),
    applies(_PRODUCER, "enable.idempotence", BOOLEAN, "retries make no duplicates, order is kept"),
    applies(
        _PRODUCER,
        "transactional.id",
        NONEMPTY,
        "who a producer of transactions is, through restarts: a newer one of this id fences the older",
    ),
    applies(
        _PRODUCER,
        "transaction.timeout.ms",
        POSITIVE_MILLISECONDS,
        "a transaction that has not ended after so long is aborted by its coordinator; brokers allow at most their "
        "transaction.max.timeout.ms",
    ),
    applies(_PRODUCER, "retries", integer(0), "how often a write is tried again within delivery.timeout.ms"),
    applies(
        _PRODUCER,
        "delivery.timeout.ms",
        POSITIVE_MILLISECONDS,
        "the longest time from when a record batch is full, or has waited for linger.ms, until it is acknowledged",
    ),
    applies(
        _PRODUCER,
        "partitioner.class",
        PARTITIONER,
        "which partition a row goes to: by a hash of its key as Java has it (murmur2), or sarama (fnv1a, "
        "fnv1a_reference, crc32), without looking at keys (random, round_robin), or only as rows say themselves "
        "(manual). Rows with a null key go to another partition every 16 KiB",
        field="partitioner",
    ),
    applies(
        _PRODUCER,
        "partitioner",
        LIBRDKAFKA_PARTITIONER,
        "the same by librdkafka's names; with consistent, murmur2 and fnv1a null keys are hashed as if they were empty",
        field="librdkafka_partitioner",
    ),
    applies(_PRODUCER, "partitioner.ignore.keys", BOOLEAN, "rows with a key are spread as those without"),
    applies(
        _PRODUCER,
        "partitioner.adaptive.partitioning.enable",
        BOOLEAN,
        "rows without a key go rather to partitions for which fewer record batches wait (KIP-794)",
    ),
    applies(
        _PRODUCER,
        "partitioner.availability.timeout.ms",
        MILLISECONDS,
        "and not to partitions whose leader has taken nothing for so long; 0: however long",
    ),
    applies(
        _PRODUCER,
        "buffer.memory",
        integer(1, MAX_INT64),
        "about the most bytes that one task holds back or has under way; when there is more it takes no further rows",
        field="buffer_memory_bytes",
    ),
    applies(
        _PRODUCER,
        "max.block.ms",
        MILLISECONDS,
        "the longest wait for a topic's metadata, and for memory while nothing is acknowledged",
    ),
    *no_effect(_CLIENT, "client.dns.lookup", "every address of a host name is tried"),
    *no_effect(
        _CLIENT,
        "socket.connection.setup.timeout.max.ms",
        "the time to connect does not grow; use socket.connection.setup.timeout.ms",
    ),
    *no_effect(
        _CLIENT,
        "metadata.recovery.strategy metadata.recovery.rebootstrap.trigger.ms",
        "how a client comes back after it lost every broker cannot be chosen here",
    ),
    *no_effect(
        _CLIENT,
        "metric.reporters metrics.num.samples metrics.recording.level metrics.sample.window.ms "
        "auto.include.jmx.reporter enable.metrics.push",
        "there are no JVM metrics here",
    ),
    *no_effect(_CONSUMER, "auto.commit.interval.ms", "offsets are committed when their records have been processed"),
    *no_effect(_CONSUMER, "max.poll.records", "records come in columns, some thousands of rows at a time"),
    *no_effect(_CONSUMER, "exclude.internal.topics", "a pattern never matches Kafka's internal topics"),
    *no_effect(_CONSUMER, "allow.auto.create.topics", "reading a topic never creates it"),
    *no_effect(_PRODUCER, "metadata.max.idle.ms", "metadata is kept by metadata.max.age.ms alone"),
    *forbidden(
        _CONSUMER | _PRODUCER,
        "interceptor.classes",
        "JVM classes that may change records cannot run here; change columns instead",
    ),
    *forbidden(_CONSUMER, "key.deserializer value.deserializer", _ARROW),
    *forbidden(_PRODUCER, "key.serializer value.serializer", _ARROW),
    *forbidden(
        _CONSUMER,
        "enable.auto.commit",
        "a commit on a timer would run ahead of what has been processed; offsets are committed after processing",
    ),
    *no_effect(_CLIENT, "config.providers", "those named env, file and dir are always there, and no others"),
    *forbidden(_CLIENT, "security.providers", "JVM classes cannot run here"),
    *TLS_PROPERTIES,
    *SASL_PROPERTIES,
)

BY_NAME: Mapping[str, Property] = {row.name: row for row in PROPERTIES}


# -- reading --------------------------------------------------------------------------------------


def read(properties: Mapping[str, object], role: Role, *, prefix: str = "") -> dict[str, Any]:
    """The values given for one role, by field. Messages put `prefix` ("kafka.") before names.

    Raises `ConfigurationError` for a forbidden or not yet supported property and for a wrong value. An unknown
    property is a warning, as with Kafka's own clients. Properties of another role are skipped: those of `CLIENT`
    silently (they have their own reader), else with one warning, because they do nothing here.
    """
    values: dict[str, Any] = {}
    for name, raw in properties.items():
        row = find(name)
        if row is None:
            _warn_of_unknown(name, prefix)
            continue
        if row.effect in (Effect.FORBIDDEN, Effect.NOT_YET) and row.role & (role | Role.CLIENT):
            raise ConfigurationError(f"{prefix}{name} is {row.effect.value}: {row.doc}.", name=f"{prefix}{name}")
        if row.role & role:
            if row.effect is Effect.APPLIES:
                text = _text(prefix + name, raw)
                # Texts that say how to connect keep their references, which are followed where a connection is opened.
                kept = name.startswith(("ssl.", "sasl.")) and row.kind.allowed in (TEXT.allowed, NONEMPTY.allowed)
                value = text if kept else resolved(text)
                # What stands elsewhere is shown by no message: it may be a secret, put into the wrong place.
                kind = row.kind if value == text else replace(row.kind, secret=True)
                values[row.field] = kind.read(f"{prefix}{name}", value, "Leave it out for the default.")
            elif row.effect is Effect.NO_EFFECT:
                warn_once(f"{prefix}{name} has no effect: {row.doc}")
        elif role is not Role.CLIENT and row.role is not Role.CLIENT:
            warn_once(f"{prefix}{name} has no effect: it is a property of {_roles(row.role)}")
    return values


def find(name: str) -> Property | None:
    """The row of a property; None for one that Kafka does not have."""
    return BY_NAME.get(name)


def _warn_of_unknown(name: str, prefix: str) -> None:
    like = meant(name, BY_NAME)
    hint = f"; did you mean {prefix}{like}?" if like else ""
    warn_once(f"{prefix}{name} has no effect: it is not a known Kafka property{hint}")


def _text(name: str, raw: object) -> str:
    if isinstance(raw, bool):
        return str(raw).lower()
    if isinstance(raw, (str, int)):
        return str(raw)
    raise ConfigurationError(
        f"{name} is given as {type(raw).__name__}; allowed: text, a whole number, true or false.", name=name
    )


def _roles(role: Role) -> str:
    return " and ".join(word for member, word in _ROLE_WORDS.items() if member & role)


_ROLE_WORDS = {Role.CLIENT: "every client", Role.CONSUMER: "consumers", Role.PRODUCER: "producers"}

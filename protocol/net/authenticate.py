"""SASL authentication of a connection: SaslHandshake, then SaslAuthenticate until both sides are done (KIP-152).

All connections of a client share one `Authenticator`, owned by `pool`: brokers may lock accounts, so after a refusal
no other connection tries at once. `Connection` authenticates after its handshake and before its session ends (KIP-368).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from protocol.base.clock import Backoff, Clock, Deadline
from protocol.base.condition import Lock, locked
from protocol.base.listing import CHOICES, listed
from protocol.broker_errors import ErrorCode, error_row
from protocol.errors import (
    AuthenticationFailed,
    ConfigurationError,
    ConnectFailed,
    ConnectionLost,
    KafkaError,
    RequestTimedOut,
)
from protocol.net.tokens import Tokens
from protocol.sasl.config import SaslConfig
from protocol.sasl.credentials import Credentials, Kerberos, Password, credentials, sasl_extensions
from protocol.sasl.mechanisms import Exchange, oauthbearer, plain, scram
from protocol.settings.property_kinds import shown
from protocol.settings.secret import Secret, SecretBytes
from protocol.wire.messages.m17_sasl_handshake import SASL_HANDSHAKE
from protocol.wire.messages.m36_sasl_authenticate import SASL_AUTHENTICATE
from protocol.wire.schema import Api

log = logging.getLogger(__name__)

Ask = Callable[[Api, int, dict[str, Any], Deadline], Mapping[str, Any]]
"""Sends one request, of at least the given version, and waits for its reply."""

# Wait after a refusal; doubles each time. An administrator may fix the account meanwhile.
_AFTER_REFUSAL_MS, _AFTER_REFUSAL_MAX_MS = 10_000, 300_000
# Messages of SASL mechanisms have some hundred bytes, a Kerberos ticket some thousand.
_MAX_CHALLENGE_BYTES = 1 << 20
# A session is renewed after this part of its lifetime, but brokers refuse to reauthenticate within a second (KIP-368).
_RENEWED_AT, _MIN_RENEWAL_MS = 0.8, 1_050
_HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
# As in Java, any other code is a failure of the broker, not a refusal.
_REMEDY: Mapping[int, str] = {
    ErrorCode.SASL_AUTHENTICATION_FAILED: "check the user and the password or token",
    ErrorCode.ILLEGAL_SASL_STATE: "this listener does not use SASL: set security.protocol to PLAINTEXT or SSL",
}


@dataclass(frozen=True)
class Session:
    """An authenticated session. `user` is None if a token or a ticket identifies the user."""

    user: Secret | None
    reauthenticate_after_s: float | None  # None: the session does not expire


@dataclass
class _Refusal:
    error: AuthenticationFailed
    until_s: float
    backoff: Backoff


class Authenticator:
    """Authenticates connections with the credentials in `config`. Thread-safe."""

    def __init__(self, config: SaslConfig, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._tokens = Tokens(clock)
        self._refusal: _Refusal | None = None
        # Until the first success, only one connection authenticates at a time.
        self._trying = Lock()
        self._proven = False
        self._taken: SaslConfig | None = None  # last accepted configuration, with resolved references

    def authenticate(self, address: str, ask: Ask, deadline: Deadline, before: Session | None = None) -> Session:
        """Authenticate with the broker at `address`.

        `address`: host:port, for messages and Kerberos.
        `ask`: sends a request on the connection and waits for the reply.
        `before`: the session of the same connection to renew.
        Raises `AuthenticationFailed`: the broker refused the credentials, or has not proved that it knows them.
        `ConfigurationError`: a reference cannot be resolved, or a token provider cannot be imported. `TransportError`:
        the connection failed, or the broker returned another error code. `ConnectionLost` also if the user has changed:
        brokers require a new connection.
        """
        if self._proven:
            return self._sign_in(address, ask, deadline, before)

        def sign_in(free: bool) -> Session:
            if not free:
                raise RequestTimedOut(
                    f"{address}: not authenticated: another connection was still trying to authenticate"
                )
            return self._sign_in(address, ask, deadline, before)

        return locked(self._trying, deadline.remaining_s(), sign_in)

    def _sign_in(self, address: str, ask: Ask, deadline: Deadline, before: Session | None) -> Session:
        refusal = self._refusal
        if refusal is not None and self._clock.now_s() < refusal.until_s:
            wait_s = refusal.until_s - self._clock.now_s()
            raise AuthenticationFailed(
                f"{refusal.error.message} (next try in {wait_s:.0f} s, since accounts may lock)",
                **refusal.error.context,
            ) from refusal.error
        config = self._resolved()
        mechanism = "OAUTHBEARER" if config.mechanism == "AWS_MSK_IAM" else str(config.mechanism)
        who = _who(config)
        user = who.username if isinstance(who, Password) else None
        if before is not None and before.user != user:
            raise ConnectionLost(f"{address}: closed by the client, since its user has changed")
        try:
            exchange = self._begin(who, config, mechanism, address, deadline)
            lifetime_ms = _exchange(exchange, mechanism, address, ask, deadline)
        except AuthenticationFailed as error:
            named = _named(error, address, mechanism)
            backoff = refusal.backoff if refusal else Backoff(_AFTER_REFUSAL_MS, _AFTER_REFUSAL_MAX_MS)
            self._refusal = _Refusal(named, self._clock.now_s() + backoff.next_s(), backoff)
            self._proven, self._taken = False, None
            # A new token may be accepted: signing keys change, and clocks differ.
            self._tokens = Tokens(self._clock)
            raise named from error
        self._proven, self._taken, self._refusal = True, config, None
        ends = lifetime_ms > 0
        return Session(user, max(lifetime_ms * _RENEWED_AT, _MIN_RENEWAL_MS) / 1000 if ends else None)

    def _resolved(self) -> SaslConfig:
        """Resolve the references. A value that is missing temporarily, during its replacement, is not an error."""
        try:
            return self._config.resolved()
        except ConfigurationError as error:
            if self._taken is None:
                raise
            log.warning("%s The previous value is still used", error)
            return self._taken

    def _begin(
        self, who: Credentials, config: SaslConfig, mechanism: str, address: str, deadline: Deadline
    ) -> Exchange:
        if isinstance(who, Password):
            return _password_exchange(mechanism, who)
        if isinstance(who, Kerberos):
            from protocol.sasl.mechanisms import kerberos  # an optional dependency

            return kerberos(who, host=address.rpartition(":")[0])
        token = self._tokens.token(who, config, address, deadline)
        return oauthbearer(token.value, {**sasl_extensions(config), **token.extensions})


_MAY_REFER = (
    "sasl.jaas.config", "sasl.oauthbearer.config", "sasl.oauthbearer.extensions", "sasl.oauthbearer.token.endpoint.url",
)  # fmt: skip


def _who(config: SaslConfig) -> Credentials:
    who = credentials(config)
    if who is None:
        raise ConfigurationError(
            f"{listed(_MAY_REFER, CHOICES)} refers to a text that is itself a reference.",
            settings=_MAY_REFER,
        )
    return who


def _exchange(exchange: Exchange, mechanism: str, address: str, ask: Ask, deadline: Deadline) -> int:
    """Run the SASL exchange; return the session's lifetime in ms, 0 if endless."""
    # Before the first request: a failure here is not the broker's refusal.
    message = SecretBytes(next(exchange))
    reply = ask(SASL_HANDSHAKE, 1, {"mechanism": mechanism}, deadline)
    if reply["error_code"]:
        raise _not_enabled(reply, address)
    while True:
        reply = ask(SASL_AUTHENTICATE, 0, {"auth_bytes": message}, deadline)
        if reply["error_code"]:
            raise _refused(reply, address)
        challenge = reply["auth_bytes"]
        if len(challenge) > _MAX_CHALLENGE_BYTES:
            raise AuthenticationFailed(f"the broker's challenge has {len(challenge)} bytes")
        try:
            message = SecretBytes(exchange.send(bytes(challenge)))
        except StopIteration:
            return int(reply.get("session_lifetime_ms", 0))


def _password_exchange(mechanism: str, who: Password) -> Exchange:
    if mechanism == "PLAIN":
        return plain(who.username, who.password)
    return scram(_HASHES[mechanism], who.username, who.password, token_auth=who.token_auth)


def _named(error: KafkaError, address: str, mechanism: str) -> AuthenticationFailed:
    settings = {"security.protocol", "sasl.mechanism", "sasl.jaas.config", *error.settings}
    return AuthenticationFailed(f"{address}: SASL {mechanism} authentication failed: {error}", settings=tuple(settings))


def _not_enabled(reply: Mapping[str, Any], address: str) -> AuthenticationFailed | ConnectFailed:
    if reply["error_code"] != ErrorCode.UNSUPPORTED_SASL_MECHANISM:
        return _refused(reply, address)
    enabled = shown(", ".join(sorted(reply["mechanisms"])))
    return AuthenticationFailed(
        f"this listener has not enabled it, only {enabled}; set sasl.mechanism to one of these",
        settings=("sasl.mechanism",),
    )


def _refused(reply: Mapping[str, Any], address: str) -> AuthenticationFailed | ConnectFailed:
    row = error_row(reply["error_code"])
    remedy = _REMEDY.get(row.code, row.text)
    broker_message = f": {shown(reply['error_message'])}" if reply.get("error_message") else ""
    text = f"the broker replied {row.name} ({row.code}){broker_message}; {remedy}"
    return AuthenticationFailed(text) if row.code in _REMEDY else ConnectFailed(f"{address}: not authenticated: {text}")

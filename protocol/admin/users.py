"""Users of SASL SCRAM, client quotas, and delegation tokens.

Runs in the caller's thread, in the shared retry loop. A password is salted and hashed here; it is never sent.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from protocol.admin.resources import Operations, Row, ask_each
from protocol.errors import UsageError
from protocol.settings.secret import Secret, SecretBytes
from protocol.wire.messages.m38_delegation_tokens import (
    CREATE_DELEGATION_TOKEN,
    DESCRIBE_DELEGATION_TOKEN,
    EXPIRE_DELEGATION_TOKEN,
    RENEW_DELEGATION_TOKEN,
)
from protocol.wire.messages.m48_client_quotas import ALTER_CLIENT_QUOTAS, DESCRIBE_CLIENT_QUOTAS
from protocol.wire.messages.m50_user_scram_credentials import (
    ALTER_USER_SCRAM_CREDENTIALS,
    DESCRIBE_USER_SCRAM_CREDENTIALS,
)
from protocol.wire.schema import Body

_SALT_BYTES = 24
_ITERATIONS = range(4096, 16384 + 1)
_EXACT, _DEFAULT, _ANY = 0, 1, 2


class ScramMechanism(IntEnum):
    """SCRAM mechanisms by Kafka's numbers."""

    SCRAM_SHA_256 = 1
    SCRAM_SHA_512 = 2

    @property
    def hash_name(self) -> str:
        """The hash function, as `hashlib` names it."""
        return "sha256" if self is ScramMechanism.SCRAM_SHA_256 else "sha512"


@dataclass(frozen=True)
class ScramUpsertion:
    """A credential to create or replace; its password is not shown in a `repr`.

    Attributes
    ----------
    iterations
        4096 to 16384.
    salt
        Random bytes; None for new ones.
    """

    user: str
    password: str | Secret
    mechanism: ScramMechanism = ScramMechanism.SCRAM_SHA_512
    iterations: int = 8192
    salt: bytes | None = None

    def __post_init__(self) -> None:
        if isinstance(self.password, str):
            object.__setattr__(self, "password", Secret(self.password))
        if self.iterations not in _ITERATIONS:
            raise UsageError(f"iterations={self.iterations} is out of range; Kafka takes 4096 to 16384")


@dataclass(frozen=True)
class ScramDeletion:
    """A credential to delete."""

    user: str
    mechanism: ScramMechanism


QuotaEntity = tuple[tuple[str, str | None], ...]
"""(type, name) pairs, sorted: "user", "client-id" or "ip"; the name None is the default entity of the type."""


def quota_entity(**names: str | None) -> QuotaEntity:
    """Return a quota entity: `quota_entity(user="alice", client_id=None)`; None is the default entity."""
    return tuple(sorted((kind.replace("_", "-"), name) for kind, name in names.items()))


@dataclass(frozen=True)
class DelegationToken:
    """A delegation token (KIP-48).

    Attributes
    ----------
    token_id
        Use it as the user name for SCRAM, with `tokenauth="true"`.
    hmac
        The password, base64-encoded; hidden in a `repr`.
    owner, requester
        Principals, such as "User:alice".
    issue_ms, expiry_ms, max_ms
        Milliseconds since 1970.
    renewers
        Principals that may renew it.
    """

    token_id: str
    hmac: Secret
    owner: str
    requester: str
    issue_ms: int
    expiry_ms: int
    max_ms: int
    renewers: tuple[str, ...] = ()


class UserOperations(Operations):
    """SCRAM users, quotas and delegation tokens of a cluster."""

    def describe_user_scram_credentials(
        self, users: Iterable[str] | None = None, *, timeout_ms: float | None = None
    ) -> dict[str, dict[ScramMechanism, int]]:
        """Return the iterations by mechanism of SCRAM users; None for all users.

        Raises
        ------
        AdminFailed
            Some users have no credential (RESOURCE_NOT_FOUND).
        """
        deadline = self._deadline(timeout_ms)
        if users is None:
            reply = self._ask(DESCRIBE_USER_SCRAM_CREDENTIALS, {"users": None}, deadline)
            return {row["user"]: _scram(row) for row in reply["results"]}
        batch = ask_each(
            self._client,
            DESCRIBE_USER_SCRAM_CREDENTIALS,
            users,
            lambda users: {"users": [{"name": name} for name in users]},
            lambda reply, _: ((row["user"], row) for row in reply["results"]),
            deadline,
            error_context=_about_user,
        )
        return batch.results("DescribeUserScramCredentials", lambda user, row: _scram(row))

    def alter_user_scram_credentials(
        self, alterations: Iterable[ScramUpsertion | ScramDeletion], *, timeout_ms: float | None = None
    ) -> None:
        """Create, replace and delete SCRAM credentials (KIP-554, since Kafka 2.7).

        Raises
        ------
        AdminFailed
            Some users were not changed (RESOURCE_NOT_FOUND, UNACCEPTABLE_CREDENTIAL, …).
        """
        by_user: dict[str, list[ScramUpsertion | ScramDeletion]] = {}
        for alteration in alterations:
            by_user.setdefault(alteration.user, []).append(alteration)

        def body(users: list[str]) -> Body:
            pending = [alteration for user in users for alteration in by_user[user]]
            return {
                "deletions": [
                    {"name": alteration.user, "mechanism": int(alteration.mechanism)}
                    for alteration in pending
                    if isinstance(alteration, ScramDeletion)
                ],
                "upsertions": [
                    _upsertion(alteration) for alteration in pending if isinstance(alteration, ScramUpsertion)
                ],
            }

        batch = ask_each(
            self._client,
            ALTER_USER_SCRAM_CREDENTIALS,
            by_user,
            body,
            lambda reply, _: ((row["user"], row) for row in reply["results"]),
            self._deadline(timeout_ms),
            error_context=_about_user,
        )
        batch.results("AlterUserScramCredentials", lambda user, row: None)

    def describe_client_quotas(
        self, *, strict: bool = False, timeout_ms: float | None = None, **components: str | None
    ) -> dict[QuotaEntity, dict[str, float]]:
        """Return quotas by entity (KIP-546, since Kafka 2.6).

        Parameters
        ----------
        strict
            Exclude entities with further components.
        components
            Select entities: `user="alice"`, `client_id=None` (the default entity), `ip="*"` (any name). Without
            components all quotas are returned.

        Returns
        -------
        dict of QuotaEntity to dict of str to float
            Such as `{(("user", "alice"),): {"producer_byte_rate": 1e6}}`.
        """
        rows = [
            {
                "entity_type": kind.replace("_", "-"),
                "match_type": _ANY if name == "*" else _DEFAULT if name is None else _EXACT,
                "match": None if name in (None, "*") else name,
            }
            for kind, name in components.items()
        ]
        body = {"components": rows, "strict": strict}
        reply = self._ask(DESCRIBE_CLIENT_QUOTAS, body, self._deadline(timeout_ms))
        return {
            _entity(row["entity"]): {value["key"]: value["value"] for value in row["values"]}
            for row in reply["entries"] or ()
        }

    def alter_client_quotas(
        self,
        quotas: Mapping[QuotaEntity, Mapping[str, float | None]],
        *,
        validate_only: bool = False,
        timeout_ms: float | None = None,
    ) -> None:
        """Set and remove quotas (KIP-546, since Kafka 2.6).

        Parameters
        ----------
        quotas
            By entity (see `quota_entity`): the value of each quota, None to remove it. Kafka's names are
            "producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate" and
            "connection_creation_rate".
        validate_only
            Check the request without changing anything.

        Raises
        ------
        AdminFailed
            Some entities were not changed.
        """

        def body(entities: list[QuotaEntity]) -> Body:
            entries = [
                {
                    "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity],
                    "ops": [
                        {"key": key, "value": float(value or 0), "remove": value is None}
                        for key, value in quotas[entity].items()
                    ],
                }
                for entity in entities
            ]
            return {"entries": entries, "validate_only": validate_only}

        batch = ask_each(
            self._client,
            ALTER_CLIENT_QUOTAS,
            quotas,
            body,
            lambda reply, _: ((_entity(row["entity"]), row) for row in reply["entries"]),
            self._deadline(timeout_ms),
        )
        batch.results("AlterClientQuotas", lambda entity, row: None)

    # Delegation tokens

    def create_delegation_token(
        self,
        *,
        owner: str | None = None,
        renewers: Iterable[str] = (),
        max_lifetime_ms: int = -1,
        timeout_ms: float | None = None,
    ) -> DelegationToken:
        """Create a delegation token; needs an authenticated connection that itself uses no token.

        Parameters
        ----------
        owner
            Principal such as "User:alice"; None for the authenticated user (another one since Kafka 3.3).
        renewers
            Principals that may renew it.
        max_lifetime_ms
            -1 for the broker's `delegation.token.max.lifetime.ms`.

        Raises
        ------
        BrokerError
            DELEGATION_TOKEN_AUTH_DISABLED, DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, …
        """
        body: dict[str, Any] = {
            "renewers": [_principal(renewer) for renewer in renewers],
            "max_lifetime_ms": max_lifetime_ms,
        }
        if owner is not None:
            parts = _principal(owner)
            body |= {"owner_principal_type": parts["principal_type"], "owner_principal_name": parts["principal_name"]}
        at_least = 3 if owner is not None else 0
        row = self._ask(CREATE_DELEGATION_TOKEN, body, self._deadline(timeout_ms), at_least=at_least)
        return _token(
            row, row["issue_timestamp_ms"], row["expiry_timestamp_ms"], row["max_timestamp_ms"], body["renewers"]
        )

    def renew_delegation_token(
        self, hmac: Secret | bytes, *, renew_period_ms: int = -1, timeout_ms: float | None = None
    ) -> int:
        """Extend a token's life, -1 for the broker's period; return the new expiry in milliseconds since 1970."""
        body = {"hmac": _hmac(hmac), "renew_period_ms": renew_period_ms}
        return int(self._ask(RENEW_DELEGATION_TOKEN, body, self._deadline(timeout_ms))["expiry_timestamp_ms"])

    def expire_delegation_token(
        self, hmac: Secret | bytes, *, expiry_period_ms: int = -1, timeout_ms: float | None = None
    ) -> int:
        """Shorten a token's life, -1 to end it now; return the new expiry in milliseconds since 1970."""
        body = {"hmac": _hmac(hmac), "expiry_time_period_ms": expiry_period_ms}
        return int(self._ask(EXPIRE_DELEGATION_TOKEN, body, self._deadline(timeout_ms))["expiry_timestamp_ms"])

    def describe_delegation_tokens(
        self, owners: Iterable[str] | None = None, *, timeout_ms: float | None = None
    ) -> list[DelegationToken]:
        """Return the tokens of owners ("User:alice"); None for all that the user may see."""
        principals = None if owners is None else [_principal(owner) for owner in owners]
        reply = self._ask(DESCRIBE_DELEGATION_TOKEN, {"owners": principals}, self._deadline(timeout_ms))
        return [
            _token(row, row["issue_timestamp"], row["expiry_timestamp"], row["max_timestamp"], row["renewers"])
            for row in reply["tokens"]
        ]


def _about_user(user: str) -> dict[str, str]:
    return {"user": user}


def _scram(row: Row) -> dict[ScramMechanism, int]:
    mechanisms = set(ScramMechanism)
    return {
        ScramMechanism(credential["mechanism"]): credential["iterations"]
        for credential in row["credential_infos"]
        if credential["mechanism"] in mechanisms
    }


def _upsertion(new: ScramUpsertion) -> dict[str, Any]:
    salt = new.salt if new.salt is not None else os.urandom(_SALT_BYTES)
    assert isinstance(new.password, Secret)
    salted = hashlib.pbkdf2_hmac(new.mechanism.hash_name, new.password.reveal().encode(), salt, new.iterations)
    return {
        "name": new.user,
        "mechanism": int(new.mechanism),
        "iterations": new.iterations,
        "salt": salt,
        "salted_password": SecretBytes(salted),
    }


def _entity(rows: Iterable[Row]) -> QuotaEntity:
    return tuple(sorted((row["entity_type"], row["entity_name"]) for row in rows))


def _principal(text: str) -> dict[str, str]:
    kind, separator, name = text.partition(":")
    if not separator:
        raise UsageError(f"{text!r} is not a principal; write it as User:{text}")
    return {"principal_type": kind, "principal_name": name}


def _token(row: Row, issue_ms: int, expiry_ms: int, max_ms: int, renewers: Iterable[Row]) -> DelegationToken:
    owner = f"{row['principal_type']}:{row['principal_name']}"
    requester = row["token_requester_principal_type"]  # empty before version 3
    return DelegationToken(
        row["token_id"],
        Secret(base64.b64encode(row["hmac"]).decode()),
        owner,
        f"{requester}:{row['token_requester_principal_name']}" if requester else owner,
        issue_ms,
        expiry_ms,
        max_ms,
        tuple(f"{renewer['principal_type']}:{renewer['principal_name']}" for renewer in renewers),
    )


def _hmac(hmac: Secret | bytes) -> bytes:
    return SecretBytes(base64.b64decode(hmac.reveal()) if isinstance(hmac, Secret) else hmac)

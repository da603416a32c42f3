"""The server's side of SASL: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 (RFC 5802), and the credentials of users.

Sans-IO; a connection's `SaslSession` handles its SaslHandshake and SaslAuthenticate requests.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Generator, Mapping
from dataclasses import dataclass

from protocol.broker_errors import ErrorCode
from protocol.testing.fake_kafka.requests import Body, Refused
from protocol.wire.messages.m17_sasl_handshake import SASL_HANDSHAKE
from protocol.wire.schema import Api

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
MIN_ITERATIONS, MAX_ITERATIONS = 4_096, 16_384

Exchange = Generator[bytes, bytes, "tuple[str, bytes]"]
"""Yields challenges and receives the client's messages; returns the user and the last message. Raises `Refused`."""


@dataclass(frozen=True)
class ScramCredential:
    """The stored credential of one user for one mechanism."""

    salt: bytes
    iterations: int
    salted_password: bytes

    @classmethod
    def of(cls, mechanism: str, password: str) -> ScramCredential:
        """Derive the credential from a password."""
        salt = secrets.token_bytes(16)
        salted = hashlib.pbkdf2_hmac(_HASHES[mechanism], password.encode(), salt, MIN_ITERATIONS)
        return cls(salt, MIN_ITERATIONS, salted)


class Credentials:
    """Users: passwords for PLAIN, and `scram` credentials by user and mechanism."""

    def __init__(self, users: Mapping[str, str]) -> None:
        self.passwords = dict(users)
        self.scram = {
            (user, mechanism): ScramCredential.of(mechanism, password)
            for user, password in users.items()
            for mechanism in _HASHES
        }


class SaslSession:
    """Authentication of one connection; `principal` is None until it has succeeded."""

    def __init__(self, credentials: Credentials) -> None:
        self.principal: str | None = None
        self._credentials = credentials
        self._mechanism = ""
        self._exchange: Exchange | None = None

    def handle(self, api: Api, body: Body) -> Body:
        """Return the reply to SaslHandshake or SaslAuthenticate."""
        if api is SASL_HANDSHAKE:
            return self._handshake(body["mechanism"])
        try:
            return {"error_code": ErrorCode.NONE, "error_message": None, "auth_bytes": self._step(body["auth_bytes"])}
        except Refused as refusal:
            self._exchange = None
            return {"error_code": refusal.code, "auth_bytes": b"", "error_message": None, **refusal.fields}

    def _handshake(self, mechanism: str) -> Body:
        if mechanism not in MECHANISMS:
            return {"error_code": ErrorCode.UNSUPPORTED_SASL_MECHANISM, "mechanisms": MECHANISMS}
        self._mechanism = mechanism
        scram = mechanism in _HASHES
        self._exchange = _scram(self._credentials, mechanism) if scram else _plain(self._credentials)
        next(self._exchange)
        return {"error_code": ErrorCode.NONE, "mechanisms": MECHANISMS}

    def _step(self, message: bytes) -> bytes:
        if self._exchange is None:
            raise Refused(ErrorCode.ILLEGAL_SASL_STATE)
        try:
            return self._exchange.send(bytes(message))
        except StopIteration as finished:
            user, last = finished.value
            self.principal, self._exchange = f"User:{user}", None
            return bytes(last)
        except (ValueError, IndexError, KeyError):
            raise _failed(self._mechanism) from None


def _failed(mechanism: str) -> Refused:
    if mechanism == "PLAIN":
        message = "Authentication failed: Invalid username or password"
    else:
        message = (
            f"Authentication failed during authentication due to invalid credentials with SASL mechanism {mechanism}"
        )
    return Refused(ErrorCode.SASL_AUTHENTICATION_FAILED, error_message=message)


def _plain(credentials: Credentials) -> Exchange:
    message = yield b""
    _, user, password = message.decode().split("\0")
    if credentials.passwords.get(user) != password:
        raise _failed("PLAIN")
    return user, b""


def _scram(credentials: Credentials, mechanism: str) -> Exchange:
    name = _HASHES[mechanism]
    client_first = (yield b"").decode().split(",", 2)[2]
    fields = dict(part.split("=", 1) for part in client_first.split(","))
    user = fields["n"].replace("=2C", ",").replace("=3D", "=")
    credential = credentials.scram.get((user, mechanism))
    if credential is None:
        raise _failed(mechanism)
    nonce = fields["r"] + secrets.token_urlsafe(16)
    server_first = f"r={nonce},s={base64.b64encode(credential.salt).decode()},i={credential.iterations}"
    client_final = (yield server_first.encode()).decode()
    without_proof, proof = client_final.rsplit(",p=", 1)
    client_key = hmac.digest(credential.salted_password, b"Client Key", name)
    signed = f"{client_first},{server_first},{without_proof}".encode()
    signature = hmac.digest(hashlib.new(name, client_key).digest(), signed, name)
    expected = bytes(left_byte ^ right_byte for left_byte, right_byte in zip(client_key, signature, strict=True))
    if f",r={nonce}" not in without_proof or not hmac.compare_digest(base64.b64decode(proof), expected):
        raise _failed(mechanism)
    server_key = hmac.digest(credential.salted_password, b"Server Key", name)
    return user, b"v=" + base64.b64encode(hmac.digest(server_key, signed, name))

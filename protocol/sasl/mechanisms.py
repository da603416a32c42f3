"""The SASL mechanisms. An exchange is a generator that yields messages for the broker and receives its challenges.

    exchange = plain(username, password)
    message = next(exchange)            # to send
    message = exchange.send(challenge)  # until StopIteration: the client is satisfied

An exchange raises `AuthenticationFailed` if the broker refuses, or does not prove what the mechanism requires.
`protocol.net.authenticate` runs the exchanges.

- PLAIN and OAUTHBEARER (RFC 7628, KIP-255): an eavesdropper can use the password or token, so use TLS.
- SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677): both sides prove that they know the password; none sends it. As
  in Java: no channel binding, names and passwords as UTF-8 without SASLprep, `tokenauth=true` for delegation tokens
  (KIP-48).
- GSSAPI (RFC 4752): Kerberos with the package `gssapi` and the system's library, without a security layer.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import re
import secrets
from collections.abc import Generator, Mapping
from typing import Any

from protocol.errors import AuthenticationFailed, ConfigurationError, ConnectFailed
from protocol.sasl.credentials import Kerberos
from protocol.sasl.token import checked_extensions
from protocol.settings.secret import Secret

Exchange = Generator[bytes, bytes, None]

# Maximum characters of a broker's refusal in error messages.
_MAX_SHOWN = 200


def plain(username: Secret, password: Secret) -> Exchange:
    """Authenticate with a password by PLAIN (RFC 4616), which sends it as plain text.

    Raises `ConfigurationError`: the name or the password contains a NUL, which the message cannot contain.
    """
    if any("\0" in part.reveal() for part in (username, password)):
        raise ConfigurationError("the user's name or password contains a NUL, which PLAIN cannot carry.")
    yield f"\0{username.reveal()}\0{password.reveal()}".encode()


# With fewer iterations an impostor could guess the password from the client's proof; RFC 7677 and Kafka set the same
# minimum. A million takes half a second of CPU, 2^31 - 1 would take a quarter of an hour.
MIN_ITERATIONS, MAX_ITERATIONS = 4_096, 1_000_000

_BASE64 = r"(?:[A-Za-z0-9/+]{4})*(?:[A-Za-z0-9/+]{3}=|[A-Za-z0-9/+]{2}==)?"
_EXTENSIONS = r"(?:,[A-Za-z]+=[\x01-\x2b\x2d-\x7f]+)*"
_SERVER_FIRST = re.compile(rf"r=([\x21-\x2b\x2d-\x7e]+),s=({_BASE64}),i=([0-9]{{1,10}}){_EXTENSIONS}")
_SERVER_FINAL = re.compile(rf"(?:e=([\x01-\x2b\x2d-\x3c\x3e-\x7f]+)|v=({_BASE64})){_EXTENSIONS}")
_NO_CHANNEL_BINDING = base64.b64encode(b"n,,").decode()


def scram(
    hash_name: str, username: Secret, password: Secret, *, token_auth: bool = False, nonce: str | None = None
) -> Exchange:
    """Authenticate with a password.

    `hash_name`: "sha256" or "sha512", as in `hashlib`.
    `username`, `password`: credentials, or a delegation token's id and HMAC.
    `token_auth`: the credentials are a delegation token.
    `nonce`: client nonce for tests; None for a random one.
    Raises `AuthenticationFailed`: the broker refused, sent an invalid message, or did not prove that it knows the
    password.
    """
    nonce = nonce or secrets.token_urlsafe(24)
    name = username.reveal().replace("=", "=3D").replace(",", "=2C")
    client_first = f"n={name},r={nonce}{',tokenauth=true' if token_auth else ''}"
    server_first = _text((yield f"n,,{client_first}".encode()))
    server_nonce, salt, iterations = _parse_server_first(server_first, nonce)
    client_final = f"c={_NO_CHANNEL_BINDING},r={server_nonce}"
    auth_message = f"{client_first},{server_first},{client_final}".encode()
    proof, server_signature = _proofs(hash_name, password, salt, iterations, auth_message)
    server_final = _text((yield f"{client_final},p={base64.b64encode(proof).decode()}".encode()))
    _check_server_final(server_final, server_signature)


def _proofs(hash_name: str, password: Secret, salt: bytes, iterations: int, auth_message: bytes) -> tuple[bytes, bytes]:
    """Return the client's proof and the expected server signature; intermediate secrets stay in this function."""
    salted_password = hashlib.pbkdf2_hmac(hash_name, password.reveal().encode(), salt, iterations)
    client_key = hmac.digest(salted_password, b"Client Key", hash_name)
    stored_key = hashlib.new(hash_name, client_key).digest()
    signature = hmac.digest(stored_key, auth_message, hash_name)
    server_key = hmac.digest(salted_password, b"Server Key", hash_name)
    proof = bytes(left_byte ^ right_byte for left_byte, right_byte in zip(client_key, signature, strict=True))
    return proof, hmac.digest(server_key, auth_message, hash_name)


def _parse_server_first(message: str, nonce: str) -> tuple[str, bytes, int]:
    """Return the whole nonce, the salt and the number of iterations."""
    match = _SERVER_FIRST.fullmatch(message)
    if match is None:
        raise AuthenticationFailed("the broker's first message is not valid SCRAM")
    server_nonce, salt, iterations = match[1], base64.b64decode(match[2]), int(match[3])
    if not server_nonce.startswith(nonce) or len(server_nonce) == len(nonce):
        raise AuthenticationFailed(
            "the broker's nonce does not extend the client's: it replays another exchange, or is not a broker"
        )
    if not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
        raise AuthenticationFailed(
            f"the broker requires {iterations} iterations; only {MIN_ITERATIONS} to {MAX_ITERATIONS} are supported"
        )
    return server_nonce, salt, iterations


def _check_server_final(message: str, signature: bytes) -> None:
    match = _SERVER_FINAL.fullmatch(message)
    if match is None:
        raise AuthenticationFailed("the broker has not proved that it knows the password: its signature is missing")
    if match[1] is not None:
        raise AuthenticationFailed(f"the broker refused: {match[1][:_MAX_SHOWN]}")
    if not hmac.compare_digest(base64.b64decode(match[2]), signature):
        raise AuthenticationFailed("the broker has not proved that it knows the password: its signature is wrong")


def _text(message: bytes) -> str:
    return str(message, "utf-8", "replace")


_SEPARATOR = "\x01"
# The characters that RFC 6750 allows in an HTTP header. Others could be parsed as further fields of the message.
_TOKEN = re.compile(r"[-._~+/A-Za-z0-9]+=*")


def oauthbearer(token: Secret, extensions: Mapping[str, str]) -> Exchange:
    """Authenticate with a token.

    `token`: the bearer token.
    `extensions`: SASL extensions to send with the token (KIP-342).
    Raises `ConfigurationError`: the token or an extension has invalid characters. `AuthenticationFailed`: the broker
    refused the token.
    """
    refusal = yield _initial_response(token, extensions)
    if refusal:
        # RFC 7628: the broker fails the authentication only after this message. The caller then raises the broker's
        # error, and the error below is not reached.
        yield _SEPARATOR.encode()
        raise AuthenticationFailed(f"the broker refused the token{_refusal_details(refusal)}")


def _initial_response(token: Secret, extensions: Mapping[str, str]) -> bytes:
    fields = {"auth": f"Bearer {_checked_token(token)}", **checked_extensions(extensions)}
    pairs = "".join(f"{name}={value}{_SEPARATOR}" for name, value in fields.items())
    return f"n,,{_SEPARATOR}{pairs}{_SEPARATOR}".encode()


def _checked_token(token: Secret) -> str:
    if not _TOKEN.fullmatch(token.reveal()):
        raise ConfigurationError("the token is empty, or has characters that no token has.")
    return token.reveal()


def _refusal_details(refusal: bytes) -> str:
    """Return the status and scope of the refusal (RFC 7628) in brackets."""
    try:
        fields = json.loads(bytes(refusal))
    except (ValueError, RecursionError):
        return ""
    if not isinstance(fields, dict):
        return ""
    details = ", ".join(f"{name}: {fields[name]}" for name in ("status", "scope") if isinstance(fields.get(name), str))
    return f" ({details[:_MAX_SHOWN]})" if details else ""


# RFC 4752: the bit for "no security layer" in the layers that the broker offers.
_NO_LAYER = 1
_KRB5_KDC_UNREACH = -1765328228


def kerberos(credentials: Kerberos, host: str) -> Exchange:
    """Authenticate with Kerberos.

    `credentials`: service name of the brokers, and optionally principal and keytab.
    `host`: the broker's host name, as in its principal.
    Raises `ConfigurationError`: the package is missing, or the keytab cannot be read. `ConnectFailed`: no KDC is
    reachable. `AuthenticationFailed`: Kerberos or the broker refused.
    """
    try:
        import gssapi
    except ImportError as error:
        raise ConfigurationError(
            "sasl.mechanism is GSSAPI, which needs the package gssapi and the system's Kerberos library: "
            "pip install 'spark-kafka-source[kerberos]'.",
            settings=("sasl.mechanism",),
        ) from error
    try:
        broker = gssapi.Name(f"{credentials.service_name}@{host}", gssapi.NameType.hostbased_service)
        context = gssapi.SecurityContext(
            name=broker, creds=_credentials(gssapi, credentials), usage="initiate", mech=gssapi.MechType.kerberos
        )
        ticket = context.step()
        while not context.complete:
            ticket = context.step((yield ticket or b""))
        offered = context.unwrap((yield ticket or b"")).message
        if len(offered) != 4 or not offered[0] & _NO_LAYER:
            raise AuthenticationFailed("the broker requires a Kerberos security layer, which is not supported; use TLS")
        yield context.wrap(bytes((_NO_LAYER, 0, 0, 0)), False).message
    except gssapi.exceptions.GSSError as error:
        # Minor codes are 32 bits, signed or not by platform.
        no_kdc = (error.min_code - _KRB5_KDC_UNREACH) % 2**32 == 0  # retriable
        raise (ConnectFailed if no_kdc else AuthenticationFailed)(f"Kerberos error: {error.gen_message()}") from error


def _credentials(gssapi: Any, credentials: Kerberos) -> Any:
    """Return credentials of the keytab, or of the principal's tickets; None to use the process's default tickets."""
    if credentials.principal is None and credentials.keytab is None:
        return None
    name = gssapi.Name(credentials.principal, gssapi.NameType.kerberos_principal) if credentials.principal else None
    if credentials.keytab and not os.access(credentials.keytab.removeprefix("FILE:"), os.R_OK):
        raise ConfigurationError(
            f"sasl.jaas.config: its keyTab, {credentials.keytab}, cannot be read in this process.",
            settings=("sasl.jaas.config",),
        )
    # Tickets of the keytab are stored in memory: the tickets of another principal are not used, and not overwritten.
    tickets = f"MEMORY:{credentials.principal} by {credentials.keytab}"
    store = {"client_keytab": credentials.keytab, "ccache": tickets} if credentials.keytab else None
    return gssapi.Credentials(name=name, usage="initiate", store=store)

"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677): both sides prove that they know the password; none sends it.

As in Kafka's Java client: no channel binding, names and passwords as UTF-8 without SASLprep, and the extension
`tokenauth=true` for delegation tokens (KIP-48).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets

from protocol.errors import AuthenticationFailed
from protocol.sasl.exchange import Exchange
from protocol.secret import Secret

# With fewer iterations an impostor could guess the password from the client's proof; RFC 7677 and Kafka set the same
# minimum. A million takes half a second of CPU, 2^31 - 1 would take a quarter of an hour.
MIN_ITERATIONS, MAX_ITERATIONS = 4_096, 1_000_000

_BASE64 = r"(?:[A-Za-z0-9/+]{4})*(?:[A-Za-z0-9/+]{3}=|[A-Za-z0-9/+]{2}==)?"
_EXTENSIONS = r"(?:,[A-Za-z]+=[\x01-\x2b\x2d-\x7f]+)*"
_SERVER_FIRST = re.compile(rf"r=([\x21-\x2b\x2d-\x7e]+),s=({_BASE64}),i=([0-9]{{1,10}}){_EXTENSIONS}")
_SERVER_FINAL = re.compile(rf"(?:e=([\x01-\x2b\x2d-\x3c\x3e-\x7f]+)|v=({_BASE64})){_EXTENSIONS}")
_NO_CHANNEL_BINDING = base64.b64encode(b"n,,").decode()
_MAX_SHOWN = 100


def scram(
    hash_name: str, username: Secret, password: Secret, *, token_auth: bool = False, nonce: str | None = None
) -> Exchange:
    """Authenticate with a password.

    Parameters
    ----------
    hash_name
        "sha256" or "sha512", as in `hashlib`.
    username, password
        Credentials, or a delegation token's id and HMAC.
    token_auth
        The credentials are a delegation token.
    nonce
        Client nonce for tests; None for a random one.

    Raises
    ------
    AuthenticationFailed
        The broker refused, sent an invalid message, or did not prove that it knows the password.
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
    proof = bytes(one ^ other for one, other in zip(client_key, signature, strict=True))
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
        raise AuthenticationFailed(f"the broker answers {match[1][:_MAX_SHOWN]}")
    if not hmac.compare_digest(base64.b64decode(match[2]), signature):
        raise AuthenticationFailed("the broker has not proved that it knows the password: its signature is wrong")


def _text(message: bytes) -> str:
    return str(message, "utf-8", "replace")

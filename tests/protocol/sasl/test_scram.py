"""SCRAM: the exchange of RFC 7677, and servers that are invalid or try to exhaust the client."""

from __future__ import annotations

import base64
import hashlib
import hmac
import time

import pytest

from protocol.errors import AuthenticationFailed
from protocol.sasl.mechanisms import Exchange, scram
from protocol.settings.secret import Secret

NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_NONCE = f"{NONCE}%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
SALT = "W22ZaJ0SNY7soEsUEjb6gQ=="
SERVER_FIRST = f"r={SERVER_NONCE},s={SALT},i=4096".encode()
SIGNATURE = "6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def begun(username: str = "user", password: str = "pencil", *, token_auth: bool = False) -> tuple[Exchange, bytes]:
    exchange = scram("sha256", Secret(username), Secret(password), token_auth=token_auth, nonce=NONCE)
    return exchange, next(exchange)


def test_exchange_is_that_of_rfc_7677() -> None:
    exchange, first = begun()
    assert first == f"n,,n=user,r={NONCE}".encode()
    proof = "dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    assert exchange.send(SERVER_FIRST) == f"c=biws,r={SERVER_NONCE},p={proof}".encode()
    with pytest.raises(StopIteration):
        exchange.send(f"v={SIGNATURE}".encode())


@pytest.mark.parametrize("hash_name", ["sha256", "sha512"])
def test_server_with_the_password_is_accepted(hash_name: str) -> None:
    """Compare with an independent implementation of the formulas of RFC 5802."""
    exchange = scram(hash_name, Secret("a,b=c"), Secret("pässwörd"))
    bare = next(exchange).decode().removeprefix("n,,")
    assert bare.startswith("n=a=2Cb=3Dc,r=")
    nonce = f"{bare.partition(',r=')[2]}more"
    first = f"r={nonce},s={SALT},i=5000,ext=ignored"
    final = exchange.send(first.encode()).decode()
    salted = hashlib.pbkdf2_hmac(hash_name, "pässwörd".encode(), base64.b64decode(SALT), 5000)
    auth_message = f"{bare},{first},{final.partition(',p=')[0]}".encode()
    key = hmac.new(salted, b"Client Key", hash_name).digest()
    mask = hmac.new(hashlib.new(hash_name, key).digest(), auth_message, hash_name).digest()
    assert base64.b64decode(final.partition(",p=")[2]) == bytes(a ^ b for a, b in zip(key, mask, strict=True))
    signature = hmac.new(hmac.new(salted, b"Server Key", hash_name).digest(), auth_message, hash_name).digest()
    with pytest.raises(StopIteration):
        exchange.send(b"v=" + base64.b64encode(signature))


def test_delegation_token_is_marked_as_token() -> None:
    assert begun(token_auth=True)[1] == f"n,,n=user,r={NONCE},tokenauth=true".encode()


def test_exchanges_have_distinct_nonces() -> None:
    assert next(scram("sha256", Secret("u"), Secret("p"))) != next(scram("sha256", Secret("u"), Secret("p")))


@pytest.mark.parametrize(
    ("first", "why"),
    [
        (f"r={SERVER_NONCE},s={SALT},i=1", "requires 1 iterations"),
        (f"r={SERVER_NONCE},s={SALT},i=4095", "requires 4095 iterations"),
        (f"r={SERVER_NONCE},s={SALT},i=1000001", "requires 1000001 iterations"),
        (f"r={SERVER_NONCE},s={SALT},i=2147483647", "only 4096 to 1000000"),
        (f"r={NONCE},s={SALT},i=4096", "does not extend the client's"),
        (f"r=other{NONCE},s={SALT},i=4096", "does not extend the client's"),
        (f"r={SERVER_NONCE},s={SALT},i=99999999999999", "not valid SCRAM"),
        (f"r={SERVER_NONCE},s=?,i=4096", "not valid SCRAM"),
        (f"m=x,r={SERVER_NONCE},s={SALT},i=4096", "not valid SCRAM"),
        ("", "not valid SCRAM"),
        ("\udcff", "not valid SCRAM"),
    ],
)
def test_invalid_first_message_is_refused_at_once(first: str, why: str) -> None:
    exchange, _ = begun()
    began_s = time.thread_time()
    with pytest.raises(AuthenticationFailed, match=why):
        exchange.send(first.encode("utf-8", "surrogateescape"))
    assert time.thread_time() - began_s < 0.1


@pytest.mark.parametrize(
    ("final", "why"),
    [
        ("", "signature is missing"),
        ("v", "signature is missing"),
        (f"v={base64.b64encode(bytes(32)).decode()}", "signature is wrong"),
        ("v=", "signature is wrong"),
        ("e=invalid-proof", "the broker refused: invalid-proof"),
        (f"e=invalid-proof,v={SIGNATURE}", "the broker refused: invalid-proof|signature is missing"),
    ],
)
def test_server_without_proof_of_the_password_is_refused(final: str, why: str) -> None:
    exchange, _ = begun()
    exchange.send(SERVER_FIRST)
    with pytest.raises(AuthenticationFailed, match=why):
        exchange.send(final.encode())

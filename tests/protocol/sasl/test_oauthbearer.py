"""OAUTHBEARER: the messages of KIP-255, and invalid tokens."""

from __future__ import annotations

import pytest

from protocol.errors import AuthenticationFailed, ConfigurationError
from protocol.sasl.mechanisms import oauthbearer
from protocol.settings.secret import Secret


def test_message_is_that_of_rfc_7628() -> None:
    exchange = oauthbearer(Secret("vF9dft4qmTc2Nvb3RlckBhbHRhdmlzdGEuY29tCg=="), {"traceId": "12 3"})
    token = b"auth=Bearer vF9dft4qmTc2Nvb3RlckBhbHRhdmlzdGEuY29tCg=="
    assert next(exchange) == b"n,,\x01" + token + b"\x01traceId=12 3\x01\x01"
    with pytest.raises(StopIteration):
        exchange.send(b"")


@pytest.mark.parametrize(
    ("challenge", "reason"),
    [
        (b'{"status":"invalid_token","scope":"a b"}', r"refused the token \(status: invalid_token, scope: a b\)"),
        (b"not json", r"refused the token$"),
        (b"[" * 100_000, r"refused the token$"),
        (b'{"status":7}', r"refused the token$"),
    ],
)
def test_refusal_is_acknowledged_before_it_is_raised(challenge: bytes, reason: str) -> None:
    exchange = oauthbearer(Secret("token"), {})
    next(exchange)
    assert exchange.send(challenge) == b"\x01"
    with pytest.raises(AuthenticationFailed, match=reason):
        exchange.send(b"")


@pytest.mark.parametrize("token", ["", "a\x01auth=Bearer b", "a b", "tökén", "a=b"])
def test_invalid_token_is_not_sent(token: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        next(oauthbearer(Secret(token), {}))
    assert not token or token not in str(refused.value)


@pytest.mark.parametrize("extensions", [{"auth": "x"}, {"a1": "x"}, {"a": ""}, {"a": "x\x01b=y"}, {"": "x"}])
def test_invalid_extensions_are_refused(extensions: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match="extension"):
        next(oauthbearer(Secret("token"), extensions))

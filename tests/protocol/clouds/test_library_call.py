"""Failures of the vendors' libraries: secrets in their texts, and failures that another attempt may resolve."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.clouds import aws, azure, google, library_call
from protocol.clouds.library_call import error_text, without_secrets
from protocol.errors import AuthenticationFailed
from tests.protocol.clouds.signing_in import jwt

SIGNATURE = "0123456789abcdef" * 4
SESSION = "IQoJb3JpZ2luX2VjEJr//////////wEaCXVzLWVhc3QtMSJHMEUCIQDf/abc+def8Zk=xyz12345"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("client_id=a&client_secret=b%2Fc&scope=d", "client_id=a&client_secret=[hidden]&scope=d"),
        ('{"client_assertion": "a b", "x": 1}', '{"client_assertion": [hidden], "x": 1}'),
        ("{'authorization': 'Bearer a'}", "{'authorization': [hidden]}"),
        (f"refused {jwt(sub='a', name='b' * 40)}.", "refused [hidden]"),
        (f"X-Amz-Signature={SIGNATURE}&a=b", "X-Amz-Signature=[hidden]&a=b"),
        (f"of {SIGNATURE}", "of [hidden]"),
        (f"of {SESSION}", "of [hidden]"),
        ("at https://me:hunter2@example.com/a", "at https://***@example.com/a"),
        ("AADSTS7000215: Invalid client secret provided.", "AADSTS7000215: Invalid client secret provided."),
        (
            "http://127.0.0.1:40641/computeMetadata/v1/instance/service-accounts/default/?recursive=true",
            "http://127.0.0.1:40641/computeMetadata/v1/instance/service-accounts/default/?recursive=true",
        ),
    ],
)
def test_secrets_are_hidden_and_the_cause_is_not(text: str, shown: str) -> None:
    assert without_secrets(text) == shown


def test_secret_of_the_environment_is_hidden_in_any_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_CLIENT_SECRET", "hunter2~short")
    monkeypatch.setenv("AZURE_FEDERATED_TOKEN_FILE", "/var/run/token")
    assert without_secrets("a hunter2~short b /var/run/token") == "a [hidden] b /var/run/token"
    monkeypatch.setenv("AZURE_CLIENT_SECRET", "hunter2\nof  two lines")
    assert error_text(ValueError("a\nhunter2\nof  two lines b")) == "ValueError: a [hidden] b"
    monkeypatch.setenv("AZURE_TOKEN_CREDENTIALS", "ManagedIdentityCredential")
    assert without_secrets("ManagedIdentityCredential failed") == "ManagedIdentityCredential failed"


def test_forked_process_does_not_wait_for_a_call_of_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = library_call._Call(lambda: "of the parent")
    ended.start()
    ended.join()
    ended.done.clear()  # as in a fork during the call
    monkeypatch.setitem(library_call._running, "key", ended)
    output = {"source": "a", "remedy": "b", "transient": lambda error: False}
    assert library_call.call_library("key", lambda: "of the child", 10, **output) == "of the child"


def test_calls_with_other_claims_or_lifetimes_do_not_share_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    keys: list[object] = []
    monkeypatch.setattr(aws, "call_library", lambda key, *_, **__: keys.append(key))
    options: list[dict[str, Any]] = [{}, {"duration_s": 60}, {"tags": {"team": "orders"}}, {"tags": {"team": "b"}}]
    for arguments in options:
        aws.aws_web_identity_token("eu-north-1", "kafka", **arguments)
    assert len(set(keys)) == len(options)


def test_exit_of_a_library_is_an_error() -> None:
    def leave() -> None:
        raise SystemExit(1)

    output = {"source": "a", "remedy": "do b", "transient": lambda error: False}
    with pytest.raises(AuthenticationFailed, match="no token from a: SystemExit: 1; do b"):
        library_call.call_library("key", leave, 10, **output)


def test_long_text_of_a_library_is_cut() -> None:
    text = error_text(ValueError("no " * 2_000))
    assert text.startswith("ValueError: no no")
    assert text.endswith("... (5999 characters)")
    assert error_text(ValueError()) == "ValueError"


class ServiceRequestError(Exception):
    """As azure-core's."""


class TransportError(Exception):
    """As google-auth's."""


class ConnectTimeoutError(type("HTTPClientError", (Exception,), {})):  # type: ignore[misc]
    """As botocore's."""


def with_fields(**fields: object) -> Exception:
    error = Exception()
    vars(error).update(fields)
    return error


def aws_reply(status: int, code: str) -> Exception:
    return with_fields(response={"ResponseMetadata": {"HTTPStatusCode": status}, "Error": {"Code": code}})


@pytest.mark.parametrize(
    ("vendor", "error", "transient"),
    [
        (azure, ServiceRequestError(), True),
        (azure, with_fields(response=with_fields(status_code=429)), True),
        (azure, with_fields(response=with_fields(status_code=401)), False),
        (azure, Exception(), False),
        (aws, ConnectTimeoutError(), True),
        (aws, aws_reply(400, "Throttling"), True),
        (aws, aws_reply(503, "Any"), True),
        (aws, aws_reply(403, "AccessDenied"), False),
        (google, TransportError(), True),
        (google, with_fields(retryable=True), True),
        (google, with_fields(retryable=False), False),
    ],
)
def test_failure_is_transient_if_another_attempt_may_resolve_it(
    vendor: object, error: Exception, transient: bool
) -> None:
    assert vendor.is_transient(error) == transient  # type: ignore[attr-defined]

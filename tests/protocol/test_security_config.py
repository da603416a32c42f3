"""Kafka's properties of TLS and SASL: incomplete ones are refused, and no error or warning has a secret."""

from __future__ import annotations

import pytest

from protocol.base import once
from protocol.config import parse_client
from protocol.errors import ConfigurationError
from protocol.sasl.credentials import Password, credentials
from protocol.settings.secret import Secret
from tests.protocol.test_config import BROKERS, PARSERS, Parse, refusal


@pytest.mark.parametrize("value", ["SASL_SSL", "sasl_plaintext"])
def test_sasl_never_falls_back_to_plain_text(value: str) -> None:
    assert "sasl.mechanism is missing" in refusal(parse_client, {**BROKERS, "security.protocol": value})
    assert "allowed: PLAINTEXT, SSL" in refusal(parse_client, {**BROKERS, "security.protocol": f"{value}S"})


JAAS = "org.apache.kafka.common.security.plain.PlainLoginModule required"
PASSWORD = f'{JAAS} username="me" password="hunter2";'
REFERENCE = "${env:NOT_THERE_OF_A_TEST}"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, 'sasl.jaas.config is missing; give username="…" and password="…" in it, or sasl.username'),
        (
            {"sasl.jaas.config": f'{JAAS} username="hunter2";'},
            'sasl.jaas.config is [hidden], which lacks password; give username="…" and password="…" in it, or',
        ),
        (
            {"sasl.jaas.config": f'{JAAS} username="me" pasword="hunter2";'},
            "sasl.jaas.config is [hidden], which lacks password; is pasword a misspelling of password?",
        ),
        ({"sasl.jaas.config": "hunter2"}, "sasl.jaas.config is [hidden], which cannot be read"),
        ({"sasl.jaas.config": PASSWORD[:-1]}, "[hidden], which cannot be read: it must end with a semicolon."),
        ({"sasl.mechanism": "OAUTHBEARER", "sasl.jaas.config": PASSWORD}, "whose login module does not support"),
        ({"sasl.mechanism": "OAUTHBEARER"}, "sasl.oauthbearer.token.provider is missing"),
        (
            {"sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.token.provider": "hunter2"},
            "allowed: package.module:function",
        ),
        ({"sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.token.endpoint.url": "https://a"}, 'give clientId="…"'),
        ({"sasl.oauthbearer.extensions": "auth=hunter2"}, "must have a name of letters, but not auth"),
        ({"sasl.mechanism": "GSSAPI"}, "sasl.kerberos.service.name is missing"),
        ({"sasl.mechanism": "hunter2"}, "sasl.mechanism has a wrong value, which is not shown; allowed: PLAIN, SCRAM"),
        ({"sasl.mechanism": "PLIAN"}, "which is not shown (did you mean PLAIN?); allowed: PLAIN, SCRAM"),
        ({"sasl.login.callback.handler.class": "com.hunter2"}, "use sasl.oauthbearer.token.provider=package.module"),
        ({"sasl.login.class": "hunter2"}, "sasl.login.class is forbidden"),
    ],
)
def test_incomplete_sasl_properties_are_refused_at_once(options: dict[str, str], says: str) -> None:
    message = refusal(parse_client, {**BROKERS, "security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", **options})
    assert says in message
    assert "hunter2" not in message


def test_references_to_external_secrets_are_resolved_later() -> None:
    who = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}
    for jaas in (REFERENCE, f'{JAAS} username="me" password="${{file:/no/such/file:name}}";'):
        assert parse_client({**BROKERS, **who, "sasl.jaas.config": jaas}).sasl.jaas_config == Secret(jaas)
    # The URL may be that of a file, which needs no client id.
    token = {"sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.token.endpoint.url": REFERENCE}
    assert parse_client({**BROKERS, **who, **token}).sasl.token_endpoint_url == REFERENCE


@pytest.mark.parametrize("prefix", ["kafkashaded.", "shadeddatabricks.v2."])
def test_login_modules_of_shaded_packages_are_recognised(prefix: str) -> None:
    who = {"security.protocol": "SASL_SSL", "sasl.mechanism": "scram-sha-512", "sasl.jaas.config": prefix + PASSWORD}
    assert credentials(parse_client({**BROKERS, **who}).sasl) == Password(Secret("me"), Secret("hunter2"))


@pytest.mark.parametrize("name", ["sasl.jaas.config", "sasl.password", "sasl.jaas.other"])
@pytest.mark.parametrize("parse", PARSERS.values())
def test_sasl_property_without_sasl_is_a_warning_without_its_value(
    parse: Parse, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    once.reset()
    parse({**BROKERS, name: PASSWORD})
    assert ("has no effect" in caplog.text) == (parse is parse_client or name.endswith("other"))
    assert "hunter2" not in caplog.text


def test_password_in_an_address_is_not_shown() -> None:
    message = refusal(parse_client, {"bootstrap.servers": "kafka://me:hunter2@broker:9092"})
    assert "***@broker:9092" in message
    assert "hunter2" not in message


@pytest.mark.parametrize("name", ["ssl.enabled.protocols", "bootstrap.servers"])
def test_wrong_value_of_a_reference_is_not_shown(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PASSWORD_OF_A_TEST", "hunter2..hunter2:1")
    with pytest.raises(ConfigurationError, match=f"^{name} has a wrong value, which is not shown; allowed: ") as raised:
        parse_client({**BROKERS, name: "${env:PASSWORD_OF_A_TEST}"})
    assert "hunter2" not in f"{raised.value!r} {raised.value.__cause__!r}"


def test_error_traceback_has_no_secrets() -> None:
    with pytest.raises(ConfigurationError) as raised:
        parse_client({"bootstrap.servers": "me:hunter2@broker"})
    causes = [raised.value, raised.value.__cause__, raised.value.__context__]
    assert all("hunter2" not in repr(cause) for cause in causes)

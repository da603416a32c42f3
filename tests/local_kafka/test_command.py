"""`python -m spark_kafka_source.local_kafka` with users and ACLs, on the in-memory cluster."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import Any

import pytest

from protocol.errors import KafkaError, UsageError
from protocol.fetch.list_offsets import list_offsets
from protocol.kafka_terms import LATEST
from spark_kafka_source.local_kafka import __main__ as command
from spark_kafka_source.local_kafka import acl_settings
from spark_kafka_source.local_kafka.users import sasl_properties, scram_credentials
from tests.protocol.fetch.consuming import client_of
from tests.support.fake_local_kafka import FakeLocalKafka

SASL = ("--security", "sasl_plaintext")


def test_acls_of_command_apply_to_its_users_until_sigterm(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    class InMemory(FakeLocalKafka):
        def __init__(
            self, brokers: int, version: str, settings: Mapping[str, str], *, users: Mapping[str, str], **further: Any
        ) -> None:
            assert settings == {**acl_settings(), "log.dirs": "x"}
            super().__init__(brokers, users=users, anonymous=True, settings=acl_settings())

        def client_properties(self, user: str | None = None, mechanism: str = "PLAIN") -> dict[str, str]:
            return super().client_properties()  # LocalKafka's parameter is a listener

    def read_then_stop(kafka: FakeLocalKafka) -> None:
        for name, allowed in (("alice", True), ("bob", False)):
            properties = sasl_properties("SCRAM-SHA-512", name, f"{name}:secret")
            with client_of(kafka, security_protocol="SASL_PLAINTEXT", **properties) as client:
                if allowed:
                    assert list_offsets(client, {("orders", 0): LATEST})
                else:
                    with pytest.raises(KafkaError, match="orders"):
                        list_offsets(client, {("orders", 0): LATEST})
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(command, "LocalKafka", InMemory)
    monkeypatch.setattr(command, "_watch", read_then_stop)
    former = [(number, signal.getsignal(number)) for number in (signal.SIGHUP, signal.SIGTERM)]
    request.addfinalizer(lambda: [signal.signal(*handler) for handler in former])
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as `nohup` does
    users = ("--user", "alice:alice:secret", "--user", "bob:bob:secret")
    acl = ("--acl", "User:alice:read:topic:orders", "--set", "log.dirs=x")
    assert command.main([*SASL, "--topic", "orders", *users, *acl]) == 0
    assert "secret" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((*SASL, "--user", "secret"), "such as alice:alice-secret"),
        ((*SASL, "--user", "alice:sec,ret"), "without commas"),
        ((*SASL, "--acl", "alice:read:orders"), "such as User:alice:read:topic:orders"),
        ((*SASL, "--acl", "User:alice:look:topic:orders"), "such as User:alice:read:topic:orders"),
        (("--user", "alice:secret"), "add --security sasl_plaintext"),
        (("--set", "log.retention.ms"), "such as log.retention.ms=60000"),
    ],
)
def test_wrong_arguments_are_refused_without_the_password(
    arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        command.main(arguments)
    refusal = capsys.readouterr().err.splitlines()[-1]
    assert words in refusal
    assert "sec" not in refusal.replace("alice-secret", "").replace("security", "")


@pytest.mark.parametrize("users", [{}, {"alice": "sec,ret"}, {"al,ice": "secret"}])
def test_users_that_kafka_does_not_accept_are_refused_without_the_password(users: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="at least one user") as raised:
        scram_credentials(users)
    assert "ret" not in str(raised.value)


def test_help_has_examples_and_names_the_signal_of_background_jobs(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["--help"])
    output = capsys.readouterr().out
    assert "SIGTERM" in output
    assert "--acl User:alice:read:topic:orders" in output

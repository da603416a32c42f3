"""TLS with a real broker: every part of this project, and every possible misconfiguration."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest

from protocol.base.clock import Deadline
from protocol.cluster.client import Client
from protocol.config import parse_client
from protocol.errors import KafkaError
from protocol.net import pool
from spark_kafka_source.local_kafka.certificates import CertificateAuthority
from spark_kafka_source.process_state import PROCESS
from tests.protocol.security.secure_parts import PARTS, create_topic
from tests.support.secured_kafka import SecuredKafka

Change = Callable[[SecuredKafka, dict[str, str]], dict[str, str]]


@pytest.fixture(scope="module", autouse=True)
def _topic(secured: SecuredKafka) -> None:
    create_topic(secured.kafka)


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[object]]:
    """Yield a list with one entry per connection attempt."""
    made: list[object] = []
    connect = pool.connect  # type: ignore[attr-defined]

    def counted(*arguments: object, **options: object) -> object:
        made.append(arguments)
        return connect(*arguments, **options)  # type: ignore[arg-type]

    PROCESS.reset()
    monkeypatch.setattr(pool, "connect", counted)
    yield made
    PROCESS.reset()


TLS_1_2 = {"ssl.enabled.protocols": "TLSv1.2"}


def changed(added: Mapping[str, str] = MappingProxyType({}), without: str | tuple[str, ...] = "-") -> Change:
    """Return a change that leaves out the properties with a prefix, and adds others."""

    def change(secured: SecuredKafka, options: dict[str, str]) -> dict[str, str]:
        return {**{name: value for name, value in options.items() if not name.startswith(without)}, **added}

    return change


def inline(secured: SecuredKafka, properties: dict[str, str]) -> dict[str, str]:
    """Return the same properties without files, for TLS 1.2."""
    key = Path(properties["ssl.keystore.location"]).read_text()
    stores = {
        "ssl.truststore.certificates": Path(properties["ssl.truststore.location"]).read_text(),
        "ssl.keystore.certificate.chain": key,
        "ssl.keystore.key": " ".join(key.split("\n")),
    }
    return changed(stores | TLS_1_2, without="ssl.")(secured, properties)


GOOD: dict[str, tuple[str, Change]] = {
    "TLS": ("SSL", changed()),
    "TLS 1.2": ("SSL", changed(TLS_1_2)),
    "any host": ("ELSEWHERE", changed({"ssl.endpoint.identification.algorithm": ""})),
    "mutual": ("MUTUAL", changed()),
    "mutual, inline, TLS 1.2": ("MUTUAL", inline),
}


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("how", GOOD)
def test_parts_work_over_tls(secured: SecuredKafka, part: str, how: str) -> None:
    listener, change = GOOD[how]
    PARTS[part](change(secured, secured.properties(listener)))


def another_ca(secured: SecuredKafka, options: dict[str, str]) -> dict[str, str]:
    return {**options, "ssl.truststore.location": str(secured.authority.certificate)}


def key_of_another_ca(secured: SecuredKafka, options: dict[str, str]) -> dict[str, str]:
    return {**options, "ssl.keystore.location": str(secured.authority.issue("stranger"))}


def at_the_plain_port(secured: SecuredKafka, options: dict[str, str]) -> dict[str, str]:
    return {**options, "bootstrap.servers": secured.kafka.bootstrap_servers}


NO_CERTIFICATE = "the broker requires a client certificate .*ssl.keystore.location"
NOT_TLS = "this listener uses TLS .set (kafka.)?security.protocol to SSL"
WRONG: dict[str, tuple[str, Change, str]] = {
    "unknown CA": ("SSL", another_ca, "is of an untrusted CA .*ca.pem. Set (kafka.)?ssl.truststore"),
    "the system's CAs": ("SSL", changed(without="ssl.truststore"), r"it is not in the system's trust store \("),
    "expired": ("EXPIRED", changed(), "has expired .*renew it on the broker"),
    "not valid yet": ("EARLY", changed(), "is not valid yet .*check this machine's clock"),
    "wrong host": ("ELSEWHERE", changed(), r"is not for 127.0.0.1, but for broker-1.example.com, 10.1.2.3\."),
    "no client certificate": ("MUTUAL", changed(without="ssl.keystore"), NO_CERTIFICATE),
    "no client certificate, TLS 1.2": ("MUTUAL", changed(TLS_1_2, without="ssl.keystore"), NO_CERTIFICATE),
    "client certificate of another CA": ("MUTUAL", key_of_another_ca, "the broker refused our certificate"),
    "TLS 1.1 only": ("OLD", changed(), "the broker does not support TLSv1.2 and TLSv1.3"),
    "plain text at a TLS port": ("SSL", changed(without=("ssl.", "security.")), NOT_TLS),
    "TLS at a plain port": ("SSL", at_the_plain_port, "the server did not respond with TLS"),
}


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("how", WRONG)
def test_misconfigured_parts_fail_at_once_with_the_cause(
    secured: SecuredKafka, part: str, how: str, attempts: list[object]
) -> None:
    listener, change, words = WRONG[how]
    properties = change(secured, secured.properties(listener))
    began_s = time.monotonic()
    with pytest.raises(KafkaError, match=words) as raised:
        PARTS[part](properties)
    assert time.monotonic() - began_s < 10
    assert properties["bootstrap.servers"] in str(raised.value)
    assert 1 <= len(attempts) <= 3


def test_changed_certificates_are_read_again(secured: SecuredKafka, tmp_path: Path) -> None:
    ours = Path(secured.properties("SSL")["ssl.truststore.location"])
    store = tmp_path / "ca.pem"
    store.write_bytes(ours.read_bytes())
    at_once = {"reconnect.backoff.ms": "0", "reconnect.backoff.max.ms": "0"}
    config = parse_client({**secured.properties("SSL"), "ssl.truststore.location": str(store), **at_once})
    # Each request opens a new connection.
    with Client(replace(config, connections_max_idle_ms=0)) as client:
        client.metadata([])
        for content in (CertificateAuthority(tmp_path / "another").certificate.read_text(), "half a file"):
            store.write_text(content)
            with pytest.raises(KafkaError, match="untrusted CA"):
                client.metadata([])
        store.write_bytes(ours.read_bytes())
        client.metadata([])


def test_forked_child_does_not_wait_for_the_parents_store_lock(secured: SecuredKafka) -> None:
    with Client(parse_client(secured.properties("SSL"))) as client:
        context = client.pool._tls
        assert context is not None
        with context._lock:
            child = os.fork()
            if child == 0:
                signal.alarm(30)  # ends a child that waits forever
                with suppress(BaseException):
                    os._exit(0 if client.metadata([], Deadline.after_ms(20_000)).brokers else 1)
                os._exit(2)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0

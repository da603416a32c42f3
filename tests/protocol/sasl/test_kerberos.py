"""GSSAPI with a real KDC and a real broker; skipped if MIT's KDC or the package `gssapi` is not installed.

On Debian: `apt-get install krb5-kdc krb5-admin-server krb5-user libkrb5-dev`, `pip install gssapi`.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from protocol.cluster.client import Client
from protocol.config import parse_client
from protocol.errors import KafkaError
from spark_kafka_source.local_kafka import LocalKafka
from spark_kafka_source.local_kafka.cluster import free_ports
from tests.conftest import KAFKA_VERSION
from tests.protocol.security.secure_parts import PARTS, create_topic
from tests.support.spark_home import BRIEF_LIFE

_TOOLS = {
    name: shutil.which(name, path="/usr/sbin:/usr/bin:/sbin:/bin")
    for name in ("krb5kdc", "kdb5_util", "kadmin.local", "kinit")
}
pytestmark = [
    pytest.mark.kafka,
    pytest.mark.skipif(
        None in _TOOLS.values() or importlib.util.find_spec("gssapi") is None,
        reason="Kerberos is not installed: MIT's KDC, and the package gssapi",
    ),
]

REALM, SERVICE = "EXAMPLE.TEST", "kafka/127.0.0.1"
_MODULE = "com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true storeKey=true"
_FAILED = "SASL GSSAPI authentication failed: Kerberos error: .*"
LISTENERS = {"KERBEROS": "SASL_PLAINTEXT", "KERBEROS_TLS": "SASL_SSL"}
_KRB5_CONF = """
[libdefaults]
  default_realm = {realm}
  dns_lookup_kdc = false
  dns_lookup_realm = false
  dns_canonicalize_hostname = false
  rdns = false
  udp_preference_limit = 1
[realms]
  {realm} = {{
    kdc = 127.0.0.1:{port}
  }}
"""
_KDC_CONF = """
[kdcdefaults]
  kdc_listen = ""
  kdc_tcp_listen = 127.0.0.1:{port}
[realms]
  {realm} = {{
    database_name = {folder}/principal
    key_stash_file = {folder}/stash
    supported_enctypes = aes256-cts-hmac-sha1-96:normal
  }}
"""


@dataclass(frozen=True)
class KDC:
    """A KDC with principals for the brokers, alice and bob; the environment of this process points to it."""

    folder: Path

    def keytab(self, name: str) -> Path:
        """Write a keytab of a principal. Each call creates a new key, which invalidates earlier keytabs."""
        file = self.folder / f"{name.replace('/', '-')}-{len(list(self.folder.glob('*.keytab')))}.keytab"
        self.administer(f"ktadd -k {file} {name}")
        return file

    def administer(self, query: str) -> None:
        run("kadmin.local", "-q", query)

    def kinit(self, name: str) -> None:
        """Authenticate as `kinit` does: the tickets are in the cache of this process."""
        run("kinit", "-k", "-t", str(self.keytab(name)), name)


def run(tool: str, *arguments: str) -> None:
    subprocess.run([str(_TOOLS[tool]), *arguments], check=True, capture_output=True)


@pytest.fixture(scope="module")
def kdc(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KDC]:
    folder = tmp_path_factory.mktemp("kdc")
    port = free_ports(1)[0]
    (folder / "krb5.conf").write_text(_KRB5_CONF.format(realm=REALM, port=port))
    (folder / "kdc.conf").write_text(_KDC_CONF.format(realm=REALM, port=port, folder=folder))
    places = {"KRB5_CONFIG": "krb5.conf", "KRB5_KDC_PROFILE": "kdc.conf", "KRB5CCNAME": "tickets"}
    with pytest.MonkeyPatch.context() as patch:
        for name, file in places.items():
            patch.setenv(name, str(folder / file))
        run("kdb5_util", "create", "-s", "-P", "master", "-r", REALM)
        running = subprocess.Popen([str(_TOOLS["krb5kdc"]), "-n"], env=os.environ)
        try:
            made = KDC(folder)
            for name in (SERVICE, "alice", "bob"):
                made.administer(f"addprinc -randkey {name}")
            yield made
        finally:
            running.terminate()
            running.wait(10)


@pytest.fixture(scope="module")
def kerberized(kdc: KDC) -> Iterator[LocalKafka]:
    """Start a broker whose sessions last two seconds."""
    login = f'{_MODULE} keyTab="{kdc.keytab(SERVICE)}" principal="{SERVICE}@{REALM}";'
    settings = {"sasl.kerberos.service.name": "kafka"}
    for listener in LISTENERS:
        own = f"listener.name.{listener.lower()}"
        settings |= {f"{own}.sasl.enabled.mechanisms": "GSSAPI", f"{own}.gssapi.sasl.jaas.config": login}
        settings[f"{own}.gssapi.connections.max.reauth.ms"] = "2000"
    options = [*BRIEF_LIFE, f"-Djava.security.krb5.conf={kdc.folder / 'krb5.conf'}"]
    with LocalKafka(
        1, KAFKA_VERSION, security="ssl", listeners=LISTENERS, settings=settings, jvm_options=options
    ) as running:
        create_topic(running)
        yield running


def properties_of(kafka: LocalKafka, listener: str = "KERBEROS", **jaas: str) -> dict[str, str]:
    """Return client properties; without `jaas`, for the tickets of this process."""
    properties = {**kafka.client_properties("SSL"), "security.protocol": LISTENERS[listener]}
    properties |= {"bootstrap.servers": kafka.bootstrap_servers_of(listener), "sasl.mechanism": "GSSAPI"}
    properties["sasl.kerberos.service.name"] = "kafka"
    words = "".join(f' {name}="{text}"' for name, text in jaas.items())
    return {**properties, **({"sasl.jaas.config": f"{_MODULE}{words};"} if jaas else {})}


@pytest.mark.parametrize("listener", LISTENERS)
def test_parts_work_with_a_keytab(kerberized: LocalKafka, kdc: KDC, listener: str) -> None:
    properties = properties_of(kerberized, listener, keyTab=str(kdc.keytab("alice")), principal=f"alice@{REALM}")
    for part in PARTS.values():
        part(properties)


def test_ticket_cache_of_the_process_is_used(kerberized: LocalKafka, kdc: KDC) -> None:
    kdc.kinit("alice")
    PARTS["commit"](properties_of(kerberized))


def test_keytab_takes_precedence_over_the_ticket_cache(kerberized: LocalKafka, kdc: KDC) -> None:
    kdc.kinit("bob")
    PARTS["commit"](properties_of(kerberized, keyTab=str(kdc.keytab("alice")), principal=f"alice@{REALM}"))


def test_session_is_renewed(kerberized: LocalKafka, kdc: KDC) -> None:
    properties = properties_of(kerberized, keyTab=str(kdc.keytab("alice")), principal=f"alice@{REALM}")
    with Client(parse_client(properties)) as client:
        client.metadata([])
        (connection,) = client.pool.connections.values()
        first_s = connection.reauthenticate_at_s
        while client.clock.now_s() < first_s:
            client.clock.sleep_s(0.1)
        client.metadata([])
        assert connection.reauthenticate_at_s > first_s
        assert list(client.pool.connections.values()) == [connection]


@pytest.mark.parametrize(
    ("label", "words"),
    [
        ("an old key", f"{_FAILED}Decrypt integrity check failed"),
        ("no such service", f"{_FAILED}queue/127.0.0.1@EXAMPLE.TEST not found"),
        ("no such file", r"sasl\.jaas\.config: its keyTab, .*none, cannot be read in this process"),
        ("no tickets", f"{_FAILED}No Kerberos credentials available"),
    ],
)
def test_misconfiguration_fails_at_once(
    kerberized: LocalKafka, kdc: KDC, monkeypatch: pytest.MonkeyPatch, label: str, words: str
) -> None:
    principal = f"alice@{REALM}"
    properties = properties_of(kerberized, keyTab=str(kdc.keytab("alice")), principal=principal)
    if label == "an old key":
        kdc.keytab("alice")
    elif label == "no such service":
        properties["sasl.kerberos.service.name"] = "queue"
    elif label == "no such file":
        properties = properties_of(kerberized, keyTab=str(kdc.folder / "none"), principal=principal)
    else:
        monkeypatch.setenv("KRB5CCNAME", str(kdc.folder / "no-tickets"))
        properties = properties_of(kerberized)
    with pytest.raises(KafkaError, match=words):
        PARTS["commit"](properties)

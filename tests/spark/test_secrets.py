"""Secrets in options are hidden in logs, plans, progress, errors, files, Spark's UI and process lists.

A password of each kind, a key and a token, in queries that succeed and in queries that fail in every possible way.
Secrets behind references and config providers never enter Spark's JVM.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from protocol.sasl.token import unsecured_token
from spark_kafka_source.local_kafka.config import write_properties
from spark_kafka_source.local_kafka.jars import find_java
from spark_kafka_source.local_kafka.users import sasl_properties
from tests.protocol.sasl.test_real_broker import failed_logins
from tests.protocol.security.secure_parts import TOPIC, create_topic, options
from tests.support.secured_kafka import PASSWORD, USERS, SecuredKafka
from tests.support.soak import SOAK
from tests.support.tls_ends import encrypted_key

pytestmark = pytest.mark.soak

KEY_PASSWORD, STORE_PASSWORD = "hunter4-of-a-key", "hunter5-of-a-store"
PROVIDER = "tests.support.token_of_alice:kept"
BEARER = {
    "sasl.mechanism": "OAUTHBEARER",
    "sasl.jaas.config": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;",
}

_NO_PASSWORD = "SASL PLAIN authentication failed: the broker replied SASL_AUTHENTICATION_FAILED"
# (query, case) -> outcome: "done", or text in the error.
OUTCOMES = {
    ("stream write", "by a token"): "done",
    ("copy", "by references"): "done",
    ("stream read", "by passwords"): "done",
    ("stream read", "wrong password"): _NO_PASSWORD,
    ("batch read", "wrong store password"): "keytool cannot read a store",
}
_OTHER_WAYS = {
    ("batch read", "wrong token"): "SASL OAUTHBEARER authentication failed",
    ("stream write", "wrong key password"): "ssl.key",
    ("batch write", "expired"): "has expired",
    ("stream read", "missing right"): f"(it needs Describe on Topic {TOPIC}; grant Read to consume",
    ("batch read", "by a token"): "done",
    ("batch read", "by passwords"): "done",
    ("batch write", "by passwords"): "done",
    ("stream write", "by passwords"): "done",
    ("batch write", "wrong password"): _NO_PASSWORD,
    ("batch read", "unknown CA"): "is of an untrusted CA",
    ("stream write", "wrong host"): "is not for 127.0.0.1",
    ("batch read", "no broker"): "no broker could be reached",
}
OUTCOMES |= _OTHER_WAYS if SOAK else {}


class Secrets:
    """Files with secrets, and client options that contain secrets or refer to them, for one cluster."""

    def __init__(self, secured: SecuredKafka, folder: Path) -> None:
        self._secured = secured
        self.folder = folder
        folder.mkdir()
        who = {"unsecuredLoginStringClaim_sub": "alice", "unsecuredLoginLifetimeSeconds": "3600"}
        self.token = unsecured_token(who, time.time()).value.reveal()
        key, certificate = divided(secured.client_certificate().read_text())
        self.key = encrypted_key(key, KEY_PASSWORD)
        self._store = trust_store(Path(secured.properties("SSL")["ssl.truststore.location"]), folder / "trust.jks")
        self._in_store = {
            "ssl.truststore.location": str(self._store),
            "ssl.truststore.password": STORE_PASSWORD,
        }
        self._signed = {
            "ssl.keystore.certificate.chain": certificate,
            "ssl.keystore.key": self.key,
            "ssl.key.password": KEY_PASSWORD,
        }
        passwords = {"dave": USERS["dave"], "store": STORE_PASSWORD, "key": KEY_PASSWORD}
        write_properties(folder / "passwords.properties", passwords)
        for name, text in {"key.pem": self.key, "token": self.token, "wrong-token": f"{self.token}signed"}.items():
            (folder / name).write_text(text)

    def at(self, listener: str, *parts: Mapping[str, str]) -> dict[str, str]:
        properties = self._secured.properties(listener)
        where = {name: properties[name] for name in ("bootstrap.servers", "security.protocol")}
        return options({name: text for part in (where, *parts) for name, text in part.items()})

    def cases(self) -> dict[str, dict[str, str]]:
        """Return client options by the case names in `OUTCOMES`; cases with references come first."""
        carol, stored = sasl_properties("PLAIN", "carol", PASSWORD), {**self._in_store, **self._signed}
        idle = {"sasl_plain_password": PASSWORD, "my.token": PASSWORD}
        other_ca = {"ssl.truststore.location": str(self._secured.authority.certificate), **self._signed}
        nowhere = {"bootstrap.servers": "127.0.0.1:1", "default.api.timeout.ms": "500"}
        wrong_token = {"sasl.oauthbearer.token.endpoint.url": f"file://{self.folder}/wrong-token"}
        elsewhere = {
            "ssl.truststore.location": str(self._store),
            "ssl.truststore.password": self._in_file("store"),
            "ssl.keystore.certificate.chain": self._signed["ssl.keystore.certificate.chain"],
            "ssl.keystore.key": f"${{dir:{self.folder}:key.pem}}",
            "ssl.key.password": self._in_file("key"),
        }
        dave = sasl_properties("SCRAM-SHA-512", "dave", self._in_file("dave"))
        return {
            "by a token": self.at("SASL_SSL", elsewhere, BEARER, {"sasl.oauthbearer.token.provider": PROVIDER}),
            "by references": self.at("SASL_SSL", elsewhere, dave),
            "by passwords": {**self.at("SASL_SSL", stored, carol, idle), "password": PASSWORD},
            "wrong password": self.at("SASL_SSL", stored, sasl_properties("PLAIN", "carol", f"{PASSWORD}!")),
            "wrong token": self.at("SASL_SSL", stored, BEARER, wrong_token),
            "wrong key password": self.at("SASL_SSL", stored, carol, {"ssl.key.password": f"{KEY_PASSWORD}!"}),
            "wrong store password": self.at(
                "SASL_SSL", stored, carol, {"ssl.truststore.password": f"{STORE_PASSWORD}!"}
            ),
            "unknown CA": self.at("SASL_SSL", other_ca, carol),
            "wrong host": self.at("ELSEWHERE", other_ca),
            "expired": self.at("EXPIRED", other_ca),
            "missing right": self.at("SASL_SSL", stored, sasl_properties("PLAIN", "bob", USERS["bob"])),
            "no broker": {**self.at("SASL_SSL", stored, carol, nowhere), "fetchOffset.numRetries": "0"},
        }

    def _in_file(self, name: str) -> str:
        return f"${{file:{self.folder}/passwords.properties:{name}}}"

    def to_hide(self) -> dict[str, str]:
        """Return the secrets by description: one line of a key, the claims of a token, since parts would leak, too."""
        return {
            **{f"password of {name}": USERS[name] for name in ("bob", "carol", "dave")},
            "password of a key": KEY_PASSWORD,
            "password of a store": STORE_PASSWORD,
            "key": self.key.splitlines()[2],
            "token": self.token.split(".")[1],
        }


def divided(pem: str) -> tuple[str, str]:
    """Split PEM text into the key and its certificate."""
    key, begin, certificate = pem.partition("-----BEGIN CERTIFICATE")
    return key, begin + certificate


def trust_store(certificate: Path, store: Path) -> Path:
    keytool = [str(Path(find_java()).with_name("keytool")), "-importcert", "-noprompt", "-alias", "ca"]
    inputs = ["-file", str(certificate), "-keystore", str(store), "-storetype", "JKS", "-storepass", STORE_PASSWORD]
    subprocess.run([*keytool, *inputs], check=True, capture_output=True)
    return store


@contextmanager
def seen_processes(job: subprocess.Popen[str]) -> Iterator[dict[str, str]]:
    """Collect command line and environment of all processes of a session, as `ps` shows them to other users."""
    observed: dict[str, str] = {}
    ended = threading.Event()

    def look() -> None:
        further: set[str] = set()
        while not ended.wait(0.05):
            for pid in set(filter(str.isdigit, os.listdir("/proc"))) - further:
                folder = Path("/proc", pid)
                try:
                    if int((folder / "stat").read_text().rpartition(")")[2].split()[3]) != job.pid:
                        further.add(pid)
                        continue
                    line = (folder / "cmdline").read_text().replace("\0", " ")
                    observed[line] = (folder / "environ").read_text(errors="replace")
                except OSError:
                    pass  # the process has ended

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield observed
    finally:
        ended.set()
        looking.join()


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_secrets_appear_in_no_log_plan_error_or_process(secured: SecuredKafka, tmp_path: Path) -> None:
    """Slow: a separate Spark fails in each way that could print a secret, and dumps its heap."""
    secrets = Secrets(secured, tmp_path / "secrets")
    folder = tmp_path / "job"
    (folder / "events").mkdir(parents=True)
    create_topic(secured.kafka)
    secured.kafka.create_topic(f"{TOPIC}-copy")
    ways = {name: [way for way, case in OUTCOMES if case == name] for name in secrets.cases()}
    cases = [{"name": name, "options": case, "ways": ways[name]} for name, case in secrets.cases().items()]
    before = failed_logins(secured.kafka)
    job = subprocess.Popen(
        [sys.executable, "-m", "tests.jobs.with_secrets"],
        env={**os.environ, "TOKEN_OF_ALICE": str(secrets.folder / "token")},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with seen_processes(job) as processes:
        job_input = json.dumps({"folder": str(folder), "topic": TOPIC, "cases": cases})
        output, logs = job.communicate(job_input, timeout=580)
    assert job.returncode == 0, logs[-10_000:]
    outcomes = json.loads((folder / "outcomes.json").read_text())
    assert outcomes.keys() == {f"{way}, {case}" for way, case in OUTCOMES}
    for (way, case), words in OUTCOMES.items():
        assert words in outcomes[f"{way}, {case}"], f"{way}, {case}"

    files = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    (heap,) = (path for path in files if path.name == "heap.hprof")
    in_jvm = files.pop(heap)
    everything = {"standard output": output, "logs": logs}
    everything |= {str(path.relative_to(folder)): data.decode("utf-8", "replace") for path, data in files.items()}
    everything |= {f"process {line}": f"{line} {environment}" for line, environment in processes.items()}
    assert_all_is_there(everything)
    # Refused logins of driver and tasks are few, so that brokers do not lock accounts.
    assert failed_logins(secured.kafka) - before <= 3 * 3
    # The JVM has the references. The heap dump precedes the cases that give it real secrets.
    assert all(words.encode() in in_jvm for words in (PROVIDER, "passwords.properties:dave"))
    for name, secret in secrets.to_hide().items():
        assert [where for where, text in everything.items() if secret in text] == [], name
        assert secret.encode() not in in_jvm, name


def assert_all_is_there(everything: dict[str, str]) -> None:
    """Check that all texts that could contain a secret were collected."""
    output, logs = everything["standard output"], everything["logs"]
    assert output.count("UI: ") == 7
    assert "planDescription" in output
    assert "kafka.sasl_plain_password=*********(redacted)" in output
    assert "kafka.sasl_plain_password has no effect" in logs
    assert any("SparkListenerSQLExecutionStart" in text for text in everything.values())
    assert any("/checkpoint/offsets/" in where for where in everything)
    for command in ("keytool", "pyspark.daemon", "org.apache.spark", "tests.jobs.with_secrets"):
        assert any(command in where for where in everything if where.startswith("process ")), command

"""A password among the options is nowhere to be seen: logs, plans, progress, errors, files and UI of Spark."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.protocol.sasl.test_real_broker import failed_logins
from tests.protocol.security.secure_parts import TOPIC, create_topic
from tests.secured_kafka import PASSWORD, SecuredKafka

WAYS = ("batch write", "batch read", "stream read", "stream write")
OUTCOMES = {"signed-in": "done", "refused": "failed", "unreachable": "failed"}


@pytest.mark.spark
def test_a_password_is_seen_by_nobody(secured: SecuredKafka, tmp_path: Path) -> None:
    given = {**secured.properties("SASL_SSL"), "sasl.mechanism": "PLAIN"}
    del given["sasl.jaas.config"]
    create_topic(secured.kafka)
    arguments = [json.dumps(given), TOPIC, str(tmp_path), PASSWORD]
    command = [sys.executable, "-m", "tests.jobs.with_passwords", *arguments]
    before = failed_logins(secured.kafka)
    ended = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert ended.returncode == 0, ended.stderr[-10_000:]
    lines = ended.stdout.splitlines()
    assert [line for line in lines if " of " in line and line.endswith((": done", ": failed"))] == [
        f"{way} of {name}: {outcome}" for name, outcome in OUTCOMES.items() for way in WAYS
    ]
    assert ended.stdout.count("UI: ") == 4
    assert "planDescription" in ended.stdout
    files = {path: path.read_text(errors="replace") for path in tmp_path.rglob("*") if path.is_file()}
    # All that there is to look through is there.
    assert "kafka.sasl_plain_password=*********(redacted)" in ended.stdout
    assert "cannot sign in by SASL PLAIN: the broker answers SASL_AUTHENTICATION_FAILED" in ended.stdout
    assert "kafka.sasl_plain_password has no effect" in ended.stderr
    assert any("SparkListenerSQLExecutionStart" in text for text in files.values())
    assert any(path.parent.name == "offsets" for path in files)

    # Four ways were refused, by a driver or by tasks: no account is locked by one of them.
    assert failed_logins(secured.kafka) - before <= 4 * 3
    seen = [line for line in (ended.stdout + ended.stderr).splitlines() if PASSWORD in line]
    assert seen == []
    assert [path for path, text in files.items() if PASSWORD in text] == []

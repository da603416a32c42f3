"""`pykafka profile`, the precedence of profiles, and completion in a shell."""

from __future__ import annotations

import json
import os
import pty
import select
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from protocol.testing.fake_kafka.server import FakeKafka
from spark_kafka_source.cli.pykafka import pykafka
from tests.cli.reference_page import every_command
from tests.cli.runs import COMMAND, NOWHERE, commit, invoke


@pytest.fixture
def run(tmp_path: Path) -> Any:
    def call(*arguments: str, code: int = 0, **env: str) -> Result:
        return invoke(*arguments, code=code, **{"PYKAFKA_CONFIG": None, "XDG_CONFIG_HOME": str(tmp_path), **env})

    return call


def write(folder: Path, text: str) -> Path:
    path = folder / "pykafka" / "config.toml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def test_profiles_are_listed_used_and_shown_without_secrets(run: Any, tmp_path: Path) -> None:
    write(
        tmp_path,
        """
        [profiles.prod]
        bootstrap.servers = ["broker-1:9093", "broker-2:9093"]
        security.protocol = "SASL_SSL"
        sasl.jaas.config = "x password=geheim"
        ssl.truststore.password = "${env:STORE}"
        schema.registry.url = "https://ops:ge@geheim@registry:8081"
        "request.timeout.ms" = 5000
        [profiles.test]
        bootstrap.servers = "test:9092"
        """,
    )
    listed = json.loads(run("profile", "list", "-o", "json").stdout)
    assert [(row["profile"], row["bootstrap_servers"], row["used"]) for row in listed] == [
        ("prod", "broker-1:9093,broker-2:9093", False),
        ("test", "test:9092", False),
    ]
    assert "No profile is used" in run("profile", "show", code=2).stderr
    run("profile", "use", "prod")
    shown = run("profile", "show", "-o", "json").stdout
    assert "geheim" not in shown
    assert {row["property"]: row["value"] for row in json.loads(shown)} == {
        "bootstrap.servers": "broker-1:9093,broker-2:9093",
        "security.protocol": "SASL_SSL",
        "sasl.jaas.config": "[hidden]",
        "ssl.truststore.password": "${env:STORE}",
        "schema.registry.url": "https://[hidden]@registry:8081",
        "request.timeout.ms": "5000",
    }
    assert [row["used"] for row in json.loads(run("profile", "list", "-o", "json").stdout)] == [True, False]
    run("profile", "use", "--none")
    assert "it has: prod, test" in " ".join(run("profile", "use", "stage", code=2).stderr.split())
    run("profile", "use", code=2)


def test_addresses_follow_the_precedence_of_their_sources(run: Any, fake: FakeKafka, tmp_path: Path) -> None:
    file = tmp_path / "admin.properties"
    local = fake.bootstrap_servers
    write(
        tmp_path,
        f'[profiles.good]\nbootstrap.servers = "{local}"\n[profiles.bad]\nbootstrap.servers = "{NOWHERE}"\n',
    )
    listing = ("groups", "list")
    failing = (*listing, "--timeout", "1s")
    run(*listing, "--profile", "good")
    run(*listing, PYKAFKA_PROFILE="good")
    run(*failing, "--profile", "bad", code=1)
    # An explicit profile is above the variable, and below the file and the option.
    run(*listing, "--profile", "good", KAFKA_BOOTSTRAP_SERVERS=NOWHERE)
    run(*listing, "--profile", "bad", "--bootstrap-server", local)
    file.write_text(f"bootstrap.servers={local}\n")
    run(*listing, "--profile", "bad", "--command-config", str(file))
    run(*listing, "--command-config", str(file), KAFKA_BOOTSTRAP_SERVERS=NOWHERE)
    file.write_text(f"bootstrap.servers={NOWHERE}\n")
    run(*listing, "--command-config", str(file), "--property", f"bootstrap.servers={local}")
    run(*listing, "--command-config", str(file), "--bootstrap-server", local)
    run("profile", "use", "good")
    run(*listing)
    # The profile in use is below everything.
    run(*failing, KAFKA_BOOTSTRAP_SERVERS=NOWHERE, code=1)
    run("profile", "use", "bad")
    run(*listing, KAFKA_BOOTSTRAP_SERVERS=local)
    run(*listing, "--profile", "good")
    run(*failing, code=1)
    assert "has no profile 'stage'" in " ".join(run(*listing, "--profile", "stage", code=2).stderr.split())


def test_credentials_of_used_profile_are_not_sent_to_other_brokers(run: Any, fake: FakeKafka, tmp_path: Path) -> None:
    write(tmp_path, '[profiles.prod]\nbootstrap.servers = "prod:9093"\nsecurity.protocol = "SSL"\n')
    run("profile", "use", "prod")
    run("groups", "list", "--bootstrap-server", fake.bootstrap_servers)


def test_malformed_file_is_one_error(run: Any, tmp_path: Path) -> None:
    path = write(tmp_path, "[profiles.prod\n")
    assert "cannot be read" in run("profile", "list", code=2).stderr
    second = tmp_path / "other.toml"
    second.write_text('[profiles.x]\nbootstrap.servers = "x:1"\n')
    assert "x:1" in run("profile", "list", PYKAFKA_CONFIG=str(second)).stdout
    assert completed("pykafka produce --profile p", tmp_path) == []
    path.write_text('profiles = "none"\n')
    run("profile", "list", code=2)


def completed(words: str, tmp_path: Path, *, by_process: bool = False, **env: str) -> list[str]:
    """Return the words that bash offers for the last one; `by_process` runs the command as bash does."""
    variables = {"_PYKAFKA_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    properties = {"XDG_CONFIG_HOME": str(tmp_path), **variables, **env}
    if by_process:
        output = subprocess.run(COMMAND, env=os.environ | properties, capture_output=True, text=True, timeout=60).stdout
    else:
        output = CliRunner().invoke(pykafka, [], prog_name="pykafka", env=properties, catch_exceptions=False).stdout
    return [line.partition(",")[2] for line in output.splitlines() if line]


def test_names_of_topics_groups_and_profiles_are_completed(tmp_path: Path) -> None:
    with FakeKafka() as kafka:
        for name in ("orders", "orders-upper", "payments"):
            kafka.create_topic(name, 1)
        commit(kafka, "orders-etl", {("orders", 0): 0})
        write(tmp_path, f'[profiles.prod]\nbootstrap.servers = "{kafka.bootstrap_servers}"\n')
        servers = {"KAFKA_BOOTSTRAP_SERVERS": kafka.bootstrap_servers}
        for by_process in (True, False):
            result = completed("pykafka consume ord", tmp_path, by_process=by_process, **servers)
            assert result == ["orders", "orders-upper"]
        assert completed("pykafka topics describe orders pay", tmp_path, **servers) == ["payments"]
        assert completed("pykafka groups describe ord", tmp_path, **servers) == ["orders-etl"]
        assert completed("pykafka consume orders -g o", tmp_path, **servers) == ["orders-etl"]
        assert completed("pykafka produce --profile prod pay", tmp_path) == ["payments"]
        assert completed("pykafka produce --profile p", tmp_path) == ["prod"]
        assert completed("pykafka gro", tmp_path) == ["groups"]
        assert completed("pykafka configs describe topic pay", tmp_path, **servers) == ["payments"]
        assert completed("pykafka configs describe group o", tmp_path, **servers) == ["orders-etl"]
        assert completed("pykafka configs describe broker o", tmp_path, **servers) == []
    assert completed("pykafka consume ord", tmp_path, **servers) == []
    assert completed("pykafka consume ord", tmp_path, KAFKA_BOOTSTRAP_SERVERS="") == []


def test_every_topic_and_group_of_every_command_is_completed() -> None:
    without = [
        (path, param.name)
        for path, command in every_command()
        for param in command.params
        if {"--topic", "--group", "--to-group", "--write"} & set(param.opts)
        or (str(param.metavar).startswith(("TOPIC", "GROUP")) and path != "topics create")
        if path != "fake" and param._custom_shell_complete is None
    ]
    assert without == []


@pytest.mark.skipif(shutil.which("zsh") is None, reason="needs zsh")
def test_zsh_completes_commands_and_topics(tmp_path: Path) -> None:
    command = tmp_path / "pykafka"
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m spark_kafka_source.cli "$@"\n')
    command.chmod(0o755)
    with FakeKafka() as kafka:
        kafka.create_topic("orders-upper", 1)
        terminal, other_end = pty.openpty()
        environment = {**os.environ, "KAFKA_BOOTSTRAP_SERVERS": kafka.bootstrap_servers, "TERM": "dumb"}
        environment["PATH"] = f"{tmp_path}:{os.environ['PATH']}"
        ends = dict.fromkeys(("stdin", "stdout", "stderr"), other_end)
        shell = subprocess.Popen(["zsh", "-f", "-i"], env=environment, start_new_session=True, **ends)
        os.close(other_end)
        shown = bytearray()

        def types(text: str, until: bytes) -> None:
            os.write(terminal, text.encode())
            deadline_s = time.monotonic() + 30
            while until not in shown:
                assert time.monotonic() < deadline_s, shown
                if select.select([terminal], [], [], 0.1)[0]:
                    shown.extend(os.read(terminal, 65_536))
            shown.clear()

        try:
            types('autoload -Uz compinit; compinit -u -D; eval "$(pykafka completion zsh)"; echo re""ady\n', b"ready")
            types("pykafka top\t", b"pykafka topics ")
            types("desc\t", b"describe ")
            types("ord\t", b"orders-upper ")
        finally:
            shell.kill()
            shell.wait(30)
            os.close(terminal)


def test_completion_of_topics_imports_neither_numpy_nor_pyarrow(fake: FakeKafka, tmp_path: Path) -> None:
    """They would double the wait in a shell."""
    words = {"_PYKAFKA_COMPLETE": "bash_complete", "COMP_WORDS": "pykafka topics describe o", "COMP_CWORD": "3"}
    environment = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path), **words}
    environment["KAFKA_BOOTSTRAP_SERVERS"] = fake.bootstrap_servers
    command = [sys.executable, "-X", "importtime", "-m", "spark_kafka_source.cli"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert ended.stdout == "plain,orders\n"
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in ended.stderr.splitlines()}
    assert "click" in imported
    assert not imported & {"numpy", "pyarrow", "rich"}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script_names_the_command(run: Any, shell: str) -> None:
    assert "_PYKAFKA_COMPLETE" in run("completion", shell).stdout


def test_user_without_a_home_has_no_profiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container with a user id that is not in its passwd file."""
    monkeypatch.setattr("pwd.getpwuid", lambda uid: {}[uid])
    without = {"HOME": None, "XDG_CONFIG_HOME": None, "PYKAFKA_CONFIG": None}
    refused = invoke("topics", "list", code=2, **without)
    assert "The address of the brokers is missing" in refused.stderr


@pytest.mark.parametrize("named", [False, True])
def test_user_with_the_home_of_another_user_has_no_profiles(monkeypatch: pytest.MonkeyPatch, named: bool) -> None:
    """As in a container with HOME=/root and another user. A file that PYKAFKA_CONFIG names must be readable."""

    def refuse(path: Path, *_: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "open", refuse)
    monkeypatch.setattr("os.access", lambda path, mode: False)
    config = "/root/config.toml" if named else None
    refused = invoke("topics", "list", code=2, HOME="/root", XDG_CONFIG_HOME=None, PYKAFKA_CONFIG=config)
    assert ("cannot be read" if named else "The address of the brokers is missing") in refused.stderr

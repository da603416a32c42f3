"""Finding Java and fetching Kafka's jars: once, complete or not at all, with a remedy in each error.

A shell script replaces Java, so that no network is needed: it creates the files that Ivy would fetch.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest

from protocol.errors import ConfigurationError, DeadlineExceeded, TransportError
from spark_kafka_source.local_kafka.jars import cache_folder, class_archive, find_java, kafka_jars
from spark_kafka_source.local_kafka.process import JavaProcess, Watchdog
from tests.support.wait_until import wait_until

# `java -version` prints $version; `java -jar ivy …` creates the jars and records the run in `runs`.
FAKE_JAVA = """#!/bin/sh
[ -n "$JAVA_TOOL_OPTIONS" ] && echo "Picked up JAVA_TOOL_OPTIONS: $JAVA_TOOL_OPTIONS" >&2
[ -n "$JDK_JAVA_OPTIONS" ] && echo "NOTE: Picked up JDK_JAVA_OPTIONS: $JDK_JAVA_OPTIONS" >&2
if [ "$1" = -version ]; then
  echo 'openjdk version "{version}" 2025-04-15' >&2; exit 0
fi
echo run >> {home}/runs
while [ $# -gt 0 ]; do [ "$1" = -retrieve ] && folder=$(dirname "$2"); shift; done
touch "$folder/kafka_2.13-4.2.0.jar"
{then}
touch "$folder/kafka-tools-4.2.0.jar" "$folder/slf4j-simple-1.7.36.jar"
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPARK_KAFKA_SOURCE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("SPARK_KAFKA_SOURCE_IVY_SETTINGS", raising=False)
    return tmp_path / "cache"


@pytest.fixture
def java_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    (tmp_path / "bin").mkdir()
    return tmp_path


def install_java(home: Path, version: str = "17.0.15", then: str = "") -> None:
    java = home / "bin" / "java"
    java.write_text(FAKE_JAVA.format(version=version, home=home, then=then))
    java.chmod(0o755)


def runs(home: Path) -> int:
    return len((home / "runs").read_text().splitlines())


def quiet(_: str) -> None:
    pass


def test_jars_are_fetched_once(cache: Path, java_home: Path) -> None:
    install_java(java_home)
    lines: list[str] = []
    folder = kafka_jars("4.2.0", lines.append)
    assert folder == cache / "kafka-4.2.0"
    assert {path.name for path in folder.iterdir()} == {
        "kafka_2.13-4.2.0.jar",
        "kafka-tools-4.2.0.jar",
        "slf4j-simple-1.7.36.jar",
    }
    assert lines[0].startswith(f"fetching Apache Kafka 4.2.0 into {folder}")
    assert kafka_jars("4.2.0", lines.append) == folder
    assert runs(java_home) == 1


def test_jars_are_fetched_once_by_concurrent_processes(cache: Path, java_home: Path) -> None:
    install_java(java_home, then="sleep 1")
    command = [
        sys.executable,
        "-c",
        "from spark_kafka_source.local_kafka.jars import kafka_jars; print(kafka_jars('4.2.0'))",
    ]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [process.communicate(timeout=60)[0].strip() for process in both] == [str(cache / "kafka-4.2.0")] * 2
    assert runs(java_home) == 1


def test_failed_fetch_leaves_no_jars_and_can_be_repeated(cache: Path, java_home: Path) -> None:
    install_java(java_home, then="exit 1")
    with pytest.raises(ConfigurationError, match=r"Apache Kafka 4\.2\.0: cannot be fetched"):
        kafka_jars("4.2.0", quiet)
    assert [path.name for path in cache.iterdir()] == ["kafka-4.2.0.lock"]
    install_java(java_home)
    assert (kafka_jars("4.2.0", quiet) / "kafka-tools-4.2.0.jar").exists()


def test_files_of_killed_fetch_are_removed(cache: Path, java_home: Path) -> None:
    (cache / "kafka-4.2.0.part-abc").mkdir(parents=True)
    (cache / "kafka-4.2.0.part-abc" / "half.jar").touch()
    install_java(java_home)
    kafka_jars("4.2.0", quiet)
    assert {path.name for path in cache.iterdir()} == {"kafka-4.2.0", "kafka-4.2.0.lock"}


def test_fetch_error_without_network_names_remedies(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Uses the real Ivy with an empty cache and a repository at a closed port."""
    settings = tmp_path / "ivysettings.xml"
    settings.write_text(
        f'<ivysettings><settings defaultResolver="none"/><caches defaultCacheDir="{tmp_path}/ivy"/><resolvers>'
        '<ibiblio name="none" m2compatible="true" root="http://127.0.0.1:9/"/></resolvers></ivysettings>'
    )
    monkeypatch.setenv("SPARK_KAFKA_SOURCE_IVY_SETTINGS", str(settings))
    with pytest.raises(TransportError, match=r"proxyHost(.|\n)*ivysettings(.|\n)*copy the folder(.|\n)*refused"):
        kafka_jars("4.2.0", quiet)


def test_fetch_error_names_unpublished_version(cache: Path, java_home: Path) -> None:
    install_java(java_home, then="echo ':: org.apache.kafka#kafka_2.13;4.2.0: not found'; exit 1")
    with pytest.raises(ConfigurationError, match=r"not published: org\.apache\.kafka#kafka_2\.13;4\.2\.0"):
        kafka_jars("4.2.0", quiet)


@pytest.mark.parametrize("variable", ["JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS"])
def test_errors_do_not_show_the_options_that_java_picks_up(
    cache: Path, java_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "-Dhttps.proxyPassword=secret")
    install_java(java_home, then="echo 'no space'; exit 1")
    with pytest.raises(ConfigurationError, match="no space") as raised:
        kafka_jars("4.2.0", quiet)
    assert "secret" not in str(raised.value)
    watchdog = Watchdog(tmp_path / "data")
    broker = JavaProcess("broker 1", tmp_path / "server.log", watchdog)
    broker.start([str(java_home / "bin" / "java"), "-version"])
    wait_until(lambda: not broker.running)
    watchdog.close()
    assert broker.log_excerpt() == 'openjdk version "17.0.15" 2025-04-15'


def test_class_archive_is_built_once_per_java(cache: Path, java_home: Path) -> None:
    install_java(java_home)
    java = str(java_home / "bin" / "java")
    made: list[Path] = []

    def make(path: Path) -> None:
        made.append(path)
        path.touch()

    def archive_for_java_built(at_s: int) -> Path | None:
        modules = java_home / "lib" / "modules"
        modules.parent.mkdir(exist_ok=True)
        modules.touch()
        os.utime(modules, (at_s, at_s))
        return class_archive(jars, java, make, quiet)

    jars = kafka_jars("4.2.0", quiet)
    first = archive_for_java_built(1)
    assert first is not None
    assert first.exists()
    assert archive_for_java_built(1) == first
    assert len(made) == 1
    assert archive_for_java_built(2) not in (None, first)
    assert not any(path.exists() for path in made)


def test_class_archive_failure_is_logged_and_ignored(cache: Path, java_home: Path) -> None:
    install_java(java_home)
    (java_home / "lib").mkdir()
    (java_home / "lib" / "modules").touch()

    def fail(path: Path) -> None:
        path.touch()
        raise DeadlineExceeded("too slow")

    lines: list[str] = []
    assert class_archive(kafka_jars("4.2.0", quiet), str(java_home / "bin" / "java"), fail, lines.append) is None
    assert lines[-1] == "continuing without Java's class archive: too slow"
    assert not list(cache.glob("*.jsa"))


@pytest.mark.parametrize("version", ["1.8.0_392", "11.0.2", "16"])
def test_java_before_17_is_refused_with_remedy(java_home: Path, version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Dhttps.proxyPassword=secret")
    install_java(java_home, version)
    remedy = "Java 17 or later: install it .*JAVA_HOME"
    with pytest.raises(ConfigurationError, match=rf'too old \(openjdk version "{version}".*{remedy}'):
        find_java()


@pytest.mark.parametrize("version", ["17", "17.0.15", "21-ea", "25.0.1"])
def test_java_17_and_later_is_accepted(java_home: Path, version: str) -> None:
    install_java(java_home, version)
    assert find_java() == str(java_home / "bin" / "java")


def test_missing_java_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigurationError, match=r"No java on PATH.*Java 17 or later: install it"):
        find_java()


def test_java_home_without_java_is_named_in_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    with pytest.raises(ConfigurationError, match=r"java of JAVA_HOME, .*gone/bin/java, does not run"):
        find_java()


def test_cache_folder_that_cannot_be_written_is_named_with_the_variable(cache: Path, java_home: Path) -> None:
    """As in a container whose user has no home."""
    cache.touch()
    with pytest.raises(ConfigurationError, match=rf"{cache} cannot be written .*Set SPARK_KAFKA_SOURCE_CACHE to"):
        kafka_jars("4.2.0", quiet)


@pytest.mark.parametrize(
    ("function", "raised", "says"),
    [("is_dir", PermissionError("denied"), "cannot be written"), ("home", RuntimeError("no home"), "no cache folder")],
)
def test_cache_in_a_closed_or_unknown_home_names_the_variable(
    cache: Path, monkeypatch: pytest.MonkeyPatch, function: str, raised: Exception, says: str
) -> None:
    def fail(*_: object) -> NoReturn:
        raise raised

    for variable in ("SPARK_KAFKA_SOURCE_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(Path, function, fail)
    with pytest.raises(ConfigurationError, match=rf"{says} .*Set SPARK_KAFKA_SOURCE_CACHE to"):
        kafka_jars("4.2.0", quiet)


def test_cache_folder_is_xdg_cache_home_unless_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SPARK_KAFKA_SOURCE_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "spark-kafka-source"
    monkeypatch.setenv("SPARK_KAFKA_SOURCE_CACHE", str(tmp_path / "mine"))
    assert cache_folder() == tmp_path / "mine"

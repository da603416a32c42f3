"""Find Java, and download the jars of Apache Kafka once into a cache folder, by the Ivy in PySpark.

Called by `cluster`, and by tests that need other jars. Needs Python, Java 17 and PySpark; no Docker, no Maven. A file
lock serialises downloads by several processes. A download goes to a temporary folder, which is renamed when complete.

Environment: `SPARK_KAFKA_SOURCE_CACHE` is the cache folder (default: `spark-kafka-source` in the user's cache folder),
`SPARK_KAFKA_SOURCE_IVY_SETTINGS` an ivysettings.xml for downloads from a mirror.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from protocol.errors import ConfigurationError, KafkaError, TransportError
from spark_kafka_source.local_kafka.config import version_numbers
from spark_kafka_source.local_kafka.process import printed_lines

CACHE_VARIABLE = "SPARK_KAFKA_SOURCE_CACHE"
IVY_SETTINGS_VARIABLE = "SPARK_KAFKA_SOURCE_IVY_SETTINGS"
JAVA_AT_LEAST = 17

Report = Callable[[str], None]

_SECONDS_BETWEEN_PROGRESS_LINES = 5.0

_IVY_FILE = """<ivy-module version="2.0">
  <info organisation="spark-kafka-source" module="jars"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>
{dependencies}
  </dependencies>
</ivy-module>
"""
_DEPENDENCY = (
    '    <dependency org="{0.group}" name="{0.name}" rev="{0.version}" conf="default->default" transitive="{1}"/>'
)


@dataclass(frozen=True)
class Jar:
    """A published jar; `alone` excludes its dependencies."""

    group: str
    name: str
    version: str
    alone: bool = False


def to_stderr(line: str) -> None:
    """Print a line of progress to standard error; the default `Report`."""
    print(line, file=sys.stderr, flush=True)


def cache_folder() -> Path:
    """Return `SPARK_KAFKA_SOURCE_CACHE` if set, else `spark-kafka-source` in the user's cache folder.

    Raises `ConfigurationError`: the user has no home.
    """
    chosen = os.environ.get(CACHE_VARIABLE)
    try:
        if chosen:
            return Path(chosen).expanduser().absolute()
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "spark-kafka-source"
    except RuntimeError as error:
        raise ConfigurationError(f"There is no cache folder ({error}). Set {CACHE_VARIABLE} to a folder.") from error


def find_java() -> str:
    """Return the `java` of `JAVA_HOME`, else of `PATH`. Raises `ConfigurationError` if it is missing or too old."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    remedy = (
        f"PySpark 4 and Apache Kafka need Java {JAVA_AT_LEAST} or later: install it "
        f"(Debian and Ubuntu: apt-get install openjdk-{JAVA_AT_LEAST}-jre-headless), or point JAVA_HOME at it."
    )
    if java is None:
        raise ConfigurationError(f"No java on PATH, and JAVA_HOME is not set. {remedy}")
    try:
        result = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        where = "JAVA_HOME" if home else "PATH"
        raise ConfigurationError(f"The java of {where}, {java}, does not run ({error}). {remedy}") from error
    match = re.search(r'.*version "(?:1\.)?(\d+).*', result.stderr + result.stdout)
    if match is None or int(match[1]) < JAVA_AT_LEAST:
        line = "no version" if match is None else match[0]
        raise ConfigurationError(f"{java} is too old ({line}). {remedy}")
    return java


def kafka_jars(version: str, report: Report = to_stderr) -> Path:
    """Return the folder with the jars of a version of Apache Kafka; download them (45 MB) if the cache lacks them.

    Raises `ConfigurationError`: Java or PySpark is missing, or the version does not exist. `TransportError`: the
    repository is not reachable.
    """
    jars = [
        Jar("org.apache.kafka", "kafka_2.13", version),
        # Leave out its dependencies: half of Kafka Connect, which the tools used here do not need.
        Jar("org.apache.kafka", "kafka-tools", version, alone=True),
        # Writes the logs of every Kafka version to standard error; without it they are lost.
        Jar("org.slf4j", "slf4j-simple", "1.7.36"),
    ]
    if version_numbers(version) >= (4, 4):  # of the group tool's files; before, the broker itself needed it
        jars.append(Jar("com.fasterxml.jackson.dataformat", "jackson-dataformat-csv", "2.21.2", alone=True))
    return cached_jars(f"kafka-{version}", f"Apache Kafka {version}", jars, report)


def cached_jars(name: str, title: str, jars: Sequence[Jar], report: Report = to_stderr) -> Path:
    """Return the folder `name` of the cache with these jars and their dependencies; download them if it is missing.

    `title` is for lines of progress. Raises as `kafka_jars`.
    """
    folder = cache_folder() / name
    try:
        if folder.is_dir():
            return folder
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _locked(folder.with_name(f"{name}.lock"), report):
            if not folder.is_dir():
                for remains in folder.parent.glob(f"{name}.part-*"):
                    shutil.rmtree(remains, ignore_errors=True)
                part = Path(tempfile.mkdtemp(prefix=f"{name}.part-", dir=folder.parent))
                try:
                    _fetch(title, jars, part, folder, report)
                    part.chmod(0o755)
                    part.rename(folder)
                finally:
                    shutil.rmtree(part, ignore_errors=True)
    except OSError as error:
        raise ConfigurationError(
            f"{title}: the folder {folder.parent} cannot be written ({error}). Set {CACHE_VARIABLE} to another folder."
        ) from error
    return folder


def class_archive(jars: Path, java: str, make: Callable[[Path], None], report: Report = to_stderr) -> Path | None:
    """Return the JVM's archive of the classes of `jars` (AppCDS), which halves the processor time of a start.

    Each Java needs a separate archive, beside the jars. `make(path)` has a JVM write a missing one. Returns None if
    that fails: the brokers then start more slowly.
    """
    built = Path(java).resolve().parent.parent / "lib" / "modules"
    try:
        identity = f"{built} {built.stat().st_mtime_ns}"
        archive = jars.with_name(f"{jars.name}-classes-{zlib.crc32(identity.encode()):08x}.jsa")
        if not archive.exists():
            with _locked(archive.with_suffix(".lock"), report):
                if not archive.exists():
                    part = archive.with_suffix(".part")
                    part.unlink(missing_ok=True)
                    report("preparing Java's class archive (once; some seconds)")
                    make(part)
                    part.rename(archive)
    except (OSError, KafkaError) as error:
        report(f"continuing without Java's class archive: {error}")
        return None
    return archive


@contextlib.contextmanager
def _locked(path: Path, report: Report) -> Iterator[None]:
    """Hold a lock on a file; the system releases it if this process dies."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            report(f"waiting for another process that holds {path}")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _fetch(title: str, jars: Sequence[Jar], into: Path, folder: Path, report: Report) -> None:
    ivy_file = into / "ivy.xml"
    dependencies = "\n".join(_DEPENDENCY.format(jar, str(not jar.alone).lower()) for jar in jars)
    ivy_file.write_text(_IVY_FILE.format(dependencies=dependencies))
    command = [find_java(), "-jar", str(_find_ivy()), "-m2compatible", "-ivy", str(ivy_file), "-confs", "default"]
    command += ["-retrieve", f"{into}/[artifact]-[revision].[ext]"]
    settings = os.environ.get(IVY_SETTINGS_VARIABLE)
    if settings:
        command += ["-settings", settings]
    report(f"fetching {title} into {folder} (once; it takes a minute)")
    started_s = time.monotonic()
    code, output_lines = _run_ivy(command, report)
    if code != 0 or not all((into / f"{jar.name}-{jar.version}.jar").is_file() for jar in jars):
        raise _failure(title, folder, output_lines)
    ivy_file.unlink()
    report(f"fetched {len(list(into.glob('*.jar')))} jars in {time.monotonic() - started_s:.0f} s")


def _run_ivy(command: list[str], report: Report) -> tuple[int, list[str]]:
    """Run Ivy with reports of progress; return its exit code and output."""
    output_lines: list[str] = []
    fetched = 0
    reported_s = time.monotonic()
    # Ivy stays in this process group, so that Ctrl-C also ends it.
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            output_lines += printed_lines(line.rstrip())
            fetched += "[SUCCESSFUL ]" in line
            if time.monotonic() - reported_s >= _SECONDS_BETWEEN_PROGRESS_LINES:
                reported_s = time.monotonic()
                report(f"  {fetched} files fetched" if fetched else "  looking up what Kafka needs")
        return process.wait(), output_lines
    finally:
        process.kill()
        process.wait()


def _find_ivy() -> Path:
    """Return the Ivy jar of PySpark or Spark."""
    spark = importlib.util.find_spec("pyspark")
    homes = [*(spark.submodule_search_locations or [] if spark else []), os.environ.get("SPARK_HOME", "")]
    for home in filter(None, homes):
        for jar in sorted((Path(home) / "jars").glob("ivy-*.jar")):
            return jar
    raise ConfigurationError(
        "The download of a local Kafka needs the ivy jar of PySpark, which is not installed: "
        'pip install "spark-kafka-source[spark]", or set SPARK_HOME.'
    )


def _failure(title: str, folder: Path, output_lines: list[str]) -> KafkaError:
    """Return an error that distinguishes an unreachable repository from missing jars."""
    text = "\n".join(output_lines)
    missing = sorted(set(re.findall(r":: (\S+#\S+;\S+): not found", text)))
    if re.search(r"Server access error|Host \S+ not found|UnknownHost|SSLHandshake|timed out", text):
        return TransportError(
            f"{title}: cannot be fetched, the Maven repository cannot be reached from this machine. Behind a proxy set "
            f"JAVA_TOOL_OPTIONS='-Dhttps.proxyHost=HOST -Dhttps.proxyPort=PORT'. For a mirror set "
            f"{IVY_SETTINGS_VARIABLE} to an ivysettings.xml. Without a network copy the folder {folder} from another "
            f"machine. Output of Ivy:\n{_problems(output_lines)}"
        )
    if missing:
        return ConfigurationError(f"{title}: not published: {', '.join(missing)}. Check the version.")
    return ConfigurationError(f"{title}: cannot be fetched. Output of Ivy:\n{_problems(output_lines)}")


def _problems(output_lines: list[str]) -> str:
    """Return the last twelve lines of Ivy's output with an error, or the last twelve lines."""
    problems = [line.strip() for line in output_lines if re.search(r"error|exception|not found\.", line, re.IGNORECASE)]
    return "\n".join((problems or [line for line in output_lines if line.strip()])[-12:])

"""Java, and the jars of Apache Kafka: found, or fetched once into a cache folder by the Ivy that PySpark ships.

Called by `cluster`, and by tests that need other jars. Knows nothing of brokers. Python, Java 17 and PySpark are
all it needs: no Docker, no Maven. Two processes may ask at the same time (a file lock), and a fetch that was cut short
leaves nothing half done behind (a temporary folder, renamed when it is whole).

Environment: `SPARK_KAFKA_SOURCE_CACHE` is the cache folder (default: `spark-kafka-source` in the user's cache folder),
`SPARK_KAFKA_SOURCE_IVY_SETTINGS` an ivysettings.xml for those who fetch from a mirror.
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
    """A published jar; `alone` leaves out what it depends on."""

    group: str
    name: str
    version: str
    alone: bool = False


def to_stderr(line: str) -> None:
    """The usual `Report`: one line of progress on standard error."""
    print(line, file=sys.stderr, flush=True)


def cache_folder() -> Path:
    """Where jars are kept: `SPARK_KAFKA_SOURCE_CACHE`, else `spark-kafka-source` in the user's cache folder."""
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen:
        return Path(chosen).expanduser().absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "spark-kafka-source"


def find_java() -> str:
    """The `java` of `JAVA_HOME`, else the one on `PATH`. Raises `ConfigurationError` if it is missing or too old."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    remedy = (
        f"PySpark 4 and Apache Kafka need Java {JAVA_AT_LEAST} or later: install it "
        f"(Debian and Ubuntu: apt-get install openjdk-{JAVA_AT_LEAST}-jre-headless), or point JAVA_HOME at it."
    )
    if java is None:
        raise ConfigurationError(f"No java on PATH, and JAVA_HOME is not set. {remedy}")
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        where = "JAVA_HOME" if home else "PATH"
        raise ConfigurationError(f"The java of {where}, {java}, does not run ({error}). {remedy}") from error
    found = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    if found is None or int(found.group(1)) < JAVA_AT_LEAST:
        line = (answer.stderr.splitlines() or ["no version"])[0]
        raise ConfigurationError(f"{java} is too old ({line}). {remedy}")
    return java


def kafka_jars(version: str, report: Report = to_stderr) -> Path:
    """The folder with every jar that Apache Kafka `version` needs; fetched (some 45 MB) if the cache lacks it.

    Raises `ConfigurationError` (no Java, no PySpark, no such version) or `TransportError` (no network).
    """
    jars = [
        Jar("org.apache.kafka", "kafka_2.13", version),
        # What the tools depend on is half of Kafka Connect, and none that is of use here needs it.
        Jar("org.apache.kafka", "kafka-tools", version, alone=True),
        # Writes the logs of every Kafka version alike, to standard error; without it they are dropped.
        Jar("org.slf4j", "slf4j-simple", "1.7.36"),
    ]
    return cached_jars(f"kafka-{version}", f"Apache Kafka {version}", jars, report)


def cached_jars(name: str, title: str, jars: Sequence[Jar], report: Report = to_stderr) -> Path:
    """The folder `name` of the cache, with these jars and what they need in it; fetched if it is not there.

    `title` is for the progress lines. Raises as `kafka_jars` does.
    """
    folder = cache_folder() / name
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
    return folder


def class_archive(jars: Path, java: str, make: Callable[[Path], None], report: Report = to_stderr) -> Path | None:
    """The JVM's archive of the classes that it loads from `jars` (AppCDS); it halves the processor time of a start.

    It is kept beside the jars, one for each Java, since it fits no other. `make(path)` has a JVM write it, the first
    time. None if that does not work: then everything starts as it did, only slower.
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
                    report("preparing Java's class archive for it (once; some seconds)")
                    make(part)
                    part.rename(archive)
    except (OSError, KafkaError) as error:
        report(f"going on without Java's class archive: {error}")
        return None
    return archive


@contextlib.contextmanager
def _locked(path: Path, report: Report) -> Iterator[None]:
    """Holds the lock file; the system releases it when the holder dies, so it can never be stale."""
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
    code, said = _run_ivy(command, report)
    if code != 0 or not all((into / f"{jar.name}-{jar.version}.jar").is_file() for jar in jars):
        raise _failure(title, folder, said)
    ivy_file.unlink()
    report(f"fetched {len(list(into.glob('*.jar')))} jars in {time.monotonic() - started_s:.0f} s")


def _run_ivy(command: list[str], report: Report) -> tuple[int, list[str]]:
    """Runs Ivy; its exit code and what it said. Tells now and then how many files have come."""
    said: list[str] = []
    fetched = 0
    told_s = time.monotonic()
    # stdin closed, and our own process group kept: Ctrl-C ends the fetch as well.
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            said.append(line.rstrip())
            fetched += "[SUCCESSFUL ]" in line
            if time.monotonic() - told_s >= _SECONDS_BETWEEN_PROGRESS_LINES:
                told_s = time.monotonic()
                report(f"  {fetched} files fetched" if fetched else "  looking up what Kafka needs")
        return process.wait(), said
    finally:
        process.kill()
        process.wait()


def _find_ivy() -> Path:
    """The Ivy jar among PySpark's (or Spark's) own jars."""
    spark = importlib.util.find_spec("pyspark")
    homes = [*(spark.submodule_search_locations or [] if spark else []), os.environ.get("SPARK_HOME", "")]
    for home in filter(None, homes):
        for jar in sorted((Path(home) / "jars").glob("ivy-*.jar")):
            return jar
    raise ConfigurationError(
        "A local Kafka is fetched with the ivy jar that PySpark ships, and no PySpark is installed here: "
        'pip install "spark-kafka-source[spark]", or set SPARK_HOME.'
    )


def _failure(title: str, folder: Path, said: list[str]) -> KafkaError:
    """Tells a network that is not there from jars that are not there."""
    text = "\n".join(said)
    missing = sorted(set(re.findall(r":: (\S+#\S+;\S+): not found", text)))
    if re.search(r"Server access error|Host \S+ not found|UnknownHost|SSLHandshake|timed out", text):
        return TransportError(
            f"{title}: cannot be fetched, the Maven repository cannot be reached from this machine. Behind a proxy set "
            f"JAVA_TOOL_OPTIONS='-Dhttps.proxyHost=HOST -Dhttps.proxyPort=PORT'; for a mirror set "
            f"{IVY_SETTINGS_VARIABLE} to an ivysettings.xml; without any network copy the folder {folder} from a "
            f"machine that has it. Ivy said:\n{_problems(said)}"
        )
    if missing:
        return ConfigurationError(f"{title}: not published: {', '.join(missing)}. Is there such a version?")
    return ConfigurationError(f"{title}: cannot be fetched. Ivy said:\n{_problems(said)}")


def _problems(said: list[str]) -> str:
    """Ivy's own words, the last twelve that tell of something wrong (or just the last)."""
    wrong = [line.strip() for line in said if re.search(r"error|exception|not found\.", line, re.IGNORECASE)]
    return "\n".join((wrong or [line for line in said if line.strip()])[-12:])

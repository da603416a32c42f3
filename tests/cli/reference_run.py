"""One run of the reference's examples on a broker: their outputs with the names that the page shows."""

from __future__ import annotations

import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from click.testing import CliRunner

from protocol.testing.fake_kafka.server import FakeKafka
from spark_kafka_source.cli.pykafka import pykafka
from spark_kafka_source.local_kafka import LocalKafka
from tests.cli.reference_page import every_command, examples, shortened
from tests.support.background import background
from tests.support.documents import ROOT
from tests.support.wait_until import wait_until

PASSWORD = "secret-of-the-examples"
_SHELL = re.compile(r"[|>$]")
_FOLLOWS_S = 1.5


@dataclass
class Run:
    """A run of the examples.

    `kafka`, `test_cluster`: `broker-1` and `test-broker-1` of the examples.
    `folder`: has the files that the examples name.
    `opened`: producers that stay open until the end of the run.
    `outputs`: the last shown example and its output, by command.
    `tried`: the examples that have run.
    """

    kafka: LocalKafka
    test_cluster: FakeKafka
    folder: Path
    opened: ExitStack
    outputs: dict[str, tuple[str, str]] = field(default_factory=dict)
    tried: set[str] = field(default_factory=set)

    @property
    def properties(self) -> dict[str, str]:
        """Properties of a client."""
        return {"bootstrap.servers": self.kafka.bootstrap_servers}

    @property
    def places(self) -> Mapping[str, str]:
        """Replacements of the names in the examples. A name comes before the names that it contains."""
        return {
            "test-broker-1:9092": self.test_cluster.bootstrap_servers,
            "broker-1:9092": self.kafka.bootstrap_servers,
            "http://registry:8081": self.kafka.schema_registry_url,
            "--port 19092": "--port 0",
            "/checkpoints/": f"{self.folder}/checkpoints/",
            "/run/secrets/": f"{self.folder}/secrets/",
        }

    def examples_of(self, *paths: str, follows: bool = False) -> None:
        """Run all examples in the help of these commands, the first of each for the page."""
        commands = dict(every_command())
        for path in paths:
            for number, line in enumerate(examples(commands[path])):
                self.example(line, shown=number == 0, follows=follows)

    def shown_once(self, line: str, changed: str) -> None:
        """Run an example for the page once its output contains `changed`: brokers apply changes with a delay."""
        wait_until(lambda: changed in _output(line))
        self.example(line, shown=True)

    def until_gone(self, line: str, deleted: str) -> None:
        """Repeat a command until its output no longer contains `deleted`."""
        wait_until(lambda: deleted not in _output(line))

    def example(self, line: str, *, shown: bool = False, code: int = 0, typed: str = "", follows: bool = False) -> None:
        """Run an example as in the command's help, and check its exit code.

        `shown`: keep the output for the page.
        `typed`: standard input.
        `follows`: the command runs until Ctrl-C.
        """
        actual = line
        for name, place in self.places.items():
            actual = actual.replace(name, place)
        if _SHELL.search(re.sub(r"'[^']*'", "", actual)) or actual.startswith("echo"):
            ended = subprocess.run(
                ["bash", "-c", f'pykafka() {{ "{sys.executable}" -m spark_kafka_source.cli "$@"; }}; {actual}'],
                capture_output=True, text=True, timeout=60, input=typed,
            )  # fmt: skip
            exit_code, output = ended.returncode, ended.stdout + ended.stderr
        elif typed.startswith(PASSWORD):
            exit_code, output = on_terminal(shlex.split(actual)[1:], typed)
        else:
            with _interrupted() if follows else ExitStack():
                result = CliRunner().invoke(pykafka, shlex.split(actual)[1:], input=typed or None)
            exit_code, output = result.exit_code, result.output
        assert exit_code == code, f"{line}: {exit_code}\n{output}"
        assert PASSWORD not in output
        self.tried.add(line)
        if shown:
            self.outputs[_path(line)] = (line, shortened(self._with_names(output)))

    def _with_names(self, output: str) -> str:
        """Return an output with the names of the examples instead of addresses and folders, in aligned columns."""
        host, _, port = self.kafka.bootstrap_servers.partition(":")
        replaced = {
            **{place: name for name, place in self.places.items()},
            sys.executable: "/usr/bin/python3",
            str(ROOT): "/usr/lib/python3/site-packages",
            **dict.fromkeys(re.findall(r"/\S+(?=/broker-1/data)", output), "/var/lib/kafka"),
        }
        output = re.sub(rf"\b{re.escape(host)}( +){port}\b", r"broker-1 \g<1>9092 ", output)
        for place, name in replaced.items():
            output = re.sub(
                rf"{re.escape(place)}(  +)?",
                lambda result, name=name: name.ljust(len(result[0])) if result[1] else name,
                output,
            )
        return "\n".join(line.rstrip() for line in output.splitlines())


def _output(line: str) -> str:
    return CliRunner().invoke(pykafka, shlex.split(line)[1:]).output


def _path(line: str) -> str:
    """Return the command of an example: `topics create`, or `consume`."""
    first, second, *_ = line[line.index("pykafka") :].replace(")", " ").split()[1:]
    paths = {path for path, _ in every_command()}
    return next(path for path in (f"{first} {second}", first) if path in paths)


@contextmanager
def _interrupted() -> Iterator[None]:
    """Send SIGINT 1.5 s after the command has begun to handle it."""
    usual, ended = signal.getsignal(signal.SIGINT), threading.Event()

    def interrupt() -> None:
        wait_until(lambda: ended.is_set() or signal.getsignal(signal.SIGINT) is not usual)
        if not ended.wait(_FOLLOWS_S):
            os.kill(os.getpid(), signal.SIGINT)

    with background(interrupt):
        try:
            yield
        finally:
            ended.set()


def on_terminal(arguments: list[str], typed: str) -> tuple[int, str]:
    """Run `pykafka` on a terminal, type `typed`, and return the exit code and what the terminal shows."""
    number, terminal = pty.fork()
    if number == 0:
        os.execv(sys.executable, [sys.executable, "-m", "spark_kafka_source.cli", *arguments])
    shown = b""
    try:
        for line in typed.splitlines(keepends=True):
            prompt = b""
            while not prompt.endswith(b": "):
                prompt += os.read(terminal, 4096)
            os.write(terminal, line.encode())
            shown += prompt
        while chunk := os.read(terminal, 4096):
            shown += chunk
    except OSError:  # EIO: the process has closed the terminal
        pass
    _, status = os.waitpid(number, 0)
    os.close(terminal)
    return os.waitstatus_to_exitcode(status), shown.decode().replace("\r\n", "\n")

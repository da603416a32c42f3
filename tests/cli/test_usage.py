"""Usage of the command: arguments, sources of the broker address, exit codes, missing packages."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from protocol import Producer
from protocol.testing.fake_kafka.server import FakeKafka
from spark_kafka_source.cli.connection import Cluster
from spark_kafka_source.cli.pykafka import pykafka
from spark_kafka_source.cli.values import DURATION, TOPIC_PARTITIONS
from tests.cli.reference_page import every_command
from tests.cli.runs import NOWHERE, commit, invoke, invoke_at, process_at, refusal
from tests.protocol.fetch.consuming import client_of
from tests.support.documents import commands

# Commands that are refused before any request, with words of the error.
WRONG_USAGE = [
    ("groups list", "--bootstrap-server"),
    ("groups list --property no-equals", "NAME=VALUE"),
    ("groups list --output xml", "'xml' is not one of"),
    ("groups list --state Asleep", "'Asleep' is not one of"),
    ("groups list --timeout soon", "'soon': not a duration"),
    ("groups list --command-config no-such-file", "does not exist"),
    ("groups describe", "Missing argument"),
    ("groups describe g --members --state", "either --members or --state"),
    ("groups lag g --serve 9308x", "is not [HOST]:PORT"),
    ("groups lag g --serve :²", "is not [HOST]:PORT"),
    ("groups lag g --serve :1 --watch", "only one of --watch and --serve"),
    ("groups reset g --to-latest", "either --topic or --all-topics"),
    ("groups reset g --all-topics --topic t --to-latest", "either --topic or --all-topics"),
    ("groups reset g --all-topics", "exactly one of --by-duration, --from-file, --shift-by"),
    ("groups reset g --all-topics --to-latest --shift-by 0", "exactly one of"),
    ("groups reset g --topic t:0, --to-latest", "orders:0,1"),
    ("groups reset g --all-topics --to-datetime 2026-01-31T06:00:00", "time zone"),
    ("groups reset g --all-topics --to-datetime 1767225600", "append 000 to a time in seconds"),
    ("groups reset g --all-topics --to-offset -1", "x>=0"),
    ("topics create t --config retention.ms", "NAME=VALUE"),
    (f"topics create t --partitions {2**31}", "is not in the range"),
    (f"topics create t --replication-factor {2**15}", "is not in the range"),
    ("topics create t --partitions 2 --replica-assignment 0:1", "Give either --replica-assignment"),
    ("topics create t --replica-assignment 0:0", "a partition names a broker twice"),
    ("topics create t --replica-assignment 0:x", "0:x"),
    ("topics alter t --partitions 2 --replica-assignment 0", "the same number of partitions"),
    (
        "acls create --consumer --topic t --cluster --principal User:alice",
        "No operation is given for cluster kafka",
    ),
    ("consume t -o soon", "a position is earliest"),
    ("consume t -o 1 -o 2", "one position"),
    ("consume t -f %z", "not a field"),
    ("consume t -f %v -J", "only one of"),
    ("consume t --to records.txt", ".parquet, .arrow"),
    ("consume t -g g -p 0", "--group"),
    ("consume t -g g -o 5", "earliest or latest"),
    ("consume t --grep (", "--grep"),
    ("consume t -p x", "0,3"),
]


@pytest.mark.parametrize(("line", "says"), WRONG_USAGE)
def test_wrong_usage_fails_before_any_request(line: str, says: str) -> None:
    servers = None if says == "--bootstrap-server" else NOWHERE
    assert says in refusal(*line.split(), KAFKA_BOOTSTRAP_SERVERS=servers)


@pytest.mark.parametrize("way", ["--property=sasl.jaas.config=geheim", "--property=geheim", "--command-config={file}"])
def test_password_is_never_printed(way: str, tmp_path: Path) -> None:
    file = tmp_path / "admin.properties"
    file.write_text("sasl.jaas.config = x password=geheim\nmy.token=geheim\n")
    sasl = ("--property=security.protocol=SASL_SSL", "--property=sasl.mechanism=PLAIN")
    assert "geheim" not in refusal("groups", "list", *sasl, way.format(file=file))


def test_unreachable_broker_is_one_error_line_within_timeout() -> None:
    result = invoke("groups", "describe", "g", "--bootstrap-server", NOWHERE, "--timeout", "200ms", code=1)
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("Error: ")
    assert f"bootstrap.servers={NOWHERE}" in line


@pytest.mark.parametrize("missing", ["click", "rich"])
def test_missing_package_error_names_the_extra(missing: str, tmp_path: Path) -> None:
    # Only a terminal needs rich.
    program = (
        f"import sys; sys.modules[{missing!r}] = None; sys.stdout.isatty = lambda: True; "
        "from spark_kafka_source.cli.__main__ import main; sys.argv[1:] = ['profile', 'list']; main()"
    )
    env = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path)}
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, env=env)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == f"pykafka needs {missing}: pip install 'spark-kafka-source[cli]'\n"


HEAVY = "sorted(each for each in sys.modules if each in ('numpy', 'pandas', 'pyarrow', 'pyspark', 'rich'))"


@pytest.mark.parametrize(
    ("command", "imported"), [("--help", "[]"), ("profile --help", "[]"), ("consume --help", "['numpy', 'pyarrow']")]
)
def test_help_imports_only_modules_of_its_command(command: str, imported: str) -> None:
    program = (
        f"import sys; sys.argv[1:] = {command.split()}; from spark_kafka_source.cli.pykafka import pykafka\n"
        f"try: pykafka()\nexcept SystemExit: print({HEAVY}, 'protocol.cluster.client' in sys.modules)"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert ended.stderr == ""
    assert ended.stdout.splitlines()[-1] == f"{imported} {imported != '[]'}"


def test_summaries_of_commands_are_first_sentences_of_their_docstrings() -> None:
    context = click.Context(pykafka, info_name="pykafka")
    shown = {item.value: item.help for item in pykafka.shell_complete(context, "")}
    names = pykafka.list_commands(context)
    assert shown == {
        name: command.get_short_help_str(1000) for name in names if (command := pykafka.get_command(context, name))
    }
    assert len(shown) == len(names) >= 17


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("consume orders -b broker-1:9092", "No such option '-b'. Here it is --bootstrap-server."),
        ("groups list -b broker-1:9092", "Here it is --bootstrap-server."),
        ("consume orders --from-beginning", "Here it is --offset earliest."),
        ("consume -t orders", "Here it is TOPIC."),
        ("--bootstrap-server broker-1:9092 topics list", "Give --bootstrap-server after the command: pykafka topics"),
        ("groups -b broker-1:9092 list", "Give --bootstrap-server after the command"),
        ("groups list -c 5", "No such option '-c'.\n"),
        ("topic list", "No such command 'topic'"),
    ],
)
def test_option_or_command_of_another_tool_is_refused_with_the_one_here(line: str, says: str) -> None:
    result = invoke(*line.split(), code=2)
    assert result.stdout == ""
    assert says in result.stderr


@pytest.mark.parametrize("path", [path for path, _ in every_command()])
def test_help_of_every_command_has_two_examples_and_no_option_twice(path: str) -> None:
    with warnings.catch_warnings(record=True) as caught:
        result = invoke(*path.split(), "--help")
    assert caught == []
    examples = [line for line in result.stdout.splitlines() if f"pykafka {path}" in line and "Usage" not in line]
    assert len(examples) >= 2, result.stdout
    assert "--property" not in result.stdout


def test_commands_of_docs_are_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`test_reference_page` runs examples of each command; these may have other arguments."""
    monkeypatch.chdir(tmp_path)
    for name in ("order.avsc", "order.proto", "orders.csv", "orders.parquet", "prod.properties"):
        Path(name).touch()
    Path("offsets.csv").write_text("orders,0,5\n")
    context = click.Context(pykafka)
    lines = [line for line in commands() if not line.startswith("python")]
    matches = [match for line in lines if (match := re.search(r"(?<!for-)pykafka ([^|<>)]+)", line))]
    assert len(matches) > 100
    for match in matches:
        command: click.Command | None = pykafka
        words = shlex.split(match[1])
        while isinstance(command, click.Group):
            command = command.get_command(context, words.pop(0))
        assert command is not None, match[0]
        command.make_context(match[0], words, parent=context)


@pytest.fixture(scope="module")
def records() -> Iterator[FakeKafka]:
    with FakeKafka() as kafka:
        kafka.create_topic("orders", 1)
        kafka.create_topic("copies", 1)
        kafka.create_topic("wide", 3000)
        with Producer({"bootstrap.servers": kafka.bootstrap_servers}) as producer:
            for number in range(1000):
                producer.send("orders", b"%d" % number * 100)
        yield kafka


@pytest.mark.parametrize(
    "command",
    [
        ("consume", "orders", "-o", "earliest", "-e"),
        # Follows, and nothing arrives that could be written to the closed pipe.
        ("consume", "orders", "-o", "-1"),
        ("consume", "orders", "-o", "earliest", "-g", "orders-etl"),
        ("groups", "lag", "orders-etl", "--watch", "--interval", "100ms"),
        # More lines than a pipe holds.
        ("topics", "describe", "wide"),
        ("--help",),
        ("topics", "create", "--help"),
    ],
    ids=" ".join,
)
def test_closed_reader_ends_command_quietly_with_success(records: FakeKafka, command: tuple[str, ...]) -> None:
    commit(records, "orders-etl", {("orders", 0): 0})
    with process_at(records, *command, stderr=subprocess.PIPE) as process:
        assert process.stdout.read(1)
        process.stdout.close()
        assert (process.wait(60), process.stderr.read()) == (0, "")


@pytest.mark.parametrize(
    ("line", "code", "says"),
    [
        ("topics list > /dev/full", 1, "Error: [Errno 28] No space left on device\n"),
        ("consume orders -e > /dev/full", 1, "Error: [Errno 28] No space left on device\n"),
        ("consume orders -e --to /no/such/orders.parquet", 1, "No such file or directory\n"),
        ("groups reset g --topic orders --to-earliest --to-file /no/such/offsets.csv", 1, "No such file or directory"),
        ("topics list >&-", 0, ""),
        ("consume orders -e >&-", 0, ""),
        ("produce orders <&- >&-", 0, ""),
    ],
)
def test_files_and_streams_that_cannot_be_used_are_no_traceback(
    records: FakeKafka, line: str, code: int, says: str
) -> None:
    environment = {**os.environ, "KAFKA_BOOTSTRAP_SERVERS": records.bootstrap_servers}
    command = ["sh", "-c", f"exec {shlex.quote(sys.executable)} -m spark_kafka_source.cli {line}"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, says in ended.stderr, ended.stderr.count("\n")) == (code, True, code), ended.stderr


def test_lag_of_a_group_without_offsets_is_an_error(records: FakeKafka) -> None:
    result = invoke_at(records, "groups", "lag", "order-etl", code=1)
    assert result.stdout.count("\n") == 1
    assert result.stderr.startswith("Error: no lag of order-etl: the group does not exist")


@pytest.mark.parametrize("membership", ["group.id=g\ngroup.instance.id=worker-1\n", "group.protocol=consumer\n"])
@pytest.mark.parametrize(
    "command", ["groups lag g", "topics analyze orders", "consume orders -e", "copy orders copies"]
)
def test_properties_of_members_do_not_matter_to_commands_without_a_member(
    records: FakeKafka, tmp_path: Path, command: str, membership: str
) -> None:
    """They are in files for consumers, and in profiles for `consume --group`."""
    commit(records, "g", {("orders", 0): 1})
    file = tmp_path / "consumer.properties"
    file.write_text(membership)
    invoke_at(records, *command.split(), "--command-config", str(file))


def test_link_to_a_file_stays_one(records: FakeKafka, tmp_path: Path) -> None:
    file, link = tmp_path / "file.parquet", tmp_path / "link.parquet"
    file.write_text("old")
    link.symlink_to(file)
    invoke_at(records, "consume", "orders", "-e", "--to", str(link))
    assert (link.is_symlink(), file.read_bytes()[:4]) == (True, b"PAR1")
    assert {path.name for path in tmp_path.iterdir()} == {"file.parquet", "link.parquet"}


@pytest.mark.parametrize(
    ("password", "says"),
    [(b"", "The password of alice in file:password is empty."), (b"hunter2\xff", "file:password is not UTF-8.")],
)
def test_empty_or_undecodable_password_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, password: bytes, says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("password").write_bytes(password)
    assert says in refusal("users", "set", "alice", "--password-from", "file:password")
    variable = {"P": os.fsdecode(password)}
    assert says.replace("file:password", "env:P") in refusal(
        "users", "set", "alice", "--password-from", "env:P", **variable
    )


def test_repeated_requests_keep_the_timeout_of_the_command() -> None:
    with client_of(NOWHERE) as client:
        cluster = Cluster(client, client.deadline(500), {}, timeout_ms=500)
        assert cluster.restarted().left_ms <= 500


HOUR_MS = 3_600_000
DURATIONS = {"7d": 7 * 24 * HOUR_MS, "90s": 90_000, "250": 250, "p1d": 24 * HOUR_MS, "PT0S": 0, "pt1.5s": 1_500}
DURATIONS |= {"PT1H30M": HOUR_MS * 3 // 2, "P2DT3H4M5S": 51 * HOUR_MS + 245_000}
PARTITIONS = {"orders": ("orders", None), "orders:0": ("orders", (0,)), "orders:3,1,3": ("orders", (1, 3))}


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        *((DURATION, text, duration_ms) for text, duration_ms in DURATIONS.items()),
        *((TOPIC_PARTITIONS, text, partitions) for text, partitions in PARTITIONS.items()),
    ],
)
def test_value_of_an_option_is_parsed(kind: click.ParamType[Any], text: str, value: object) -> None:
    assert kind.convert(text, None, None) == value


@pytest.mark.parametrize(
    ("kind", "text", "says"),
    [
        *((DURATION, text, "not a duration") for text in ("P", "PT", "P1H", "P1DT", "", "soon", "-1s")),
        *((DURATION, text, "out of range") for text in ("999999999999999d", "P99999999999999999999D")),
        *(
            (TOPIC_PARTITIONS, text, "orders:0,1")
            for text in ("orders:", "orders:x", "orders:1,", "orders:0:1", "o:-1")
        ),
    ],
)
def test_malformed_value_of_an_option_is_refused(kind: click.ParamType[Any], text: str, says: str) -> None:
    with pytest.raises(click.BadParameter, match=says):
        kind.convert(text, None, None)

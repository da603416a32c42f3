"""`watch` on a query with given progress: its display, its picture and its end; tests/spark/ has real queries."""

from __future__ import annotations

import base64
import io
import json
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from matplotlib.cbook import is_math_text
from matplotlib.figure import Figure

from protocol.errors import ConfigurationError, UsageError
from protocol.testing.fake_kafka.clock import ManualClock
from protocol.testing.fake_kafka.server import FakeKafka
from spark_kafka_source import watch
from spark_kafka_source.lag.plot import lines
from spark_kafka_source.watching import QueryHistory
from spark_kafka_source.watching.figure import draw
from spark_kafka_source.watching.line import line


def progress(batch: int, *, rows: int = 100, ends: Sequence[int] = (10, 20), latest: Sequence[int] = (30, 20)) -> Any:
    """Return the progress of a trigger as an object of PySpark."""
    report = {
        "timestamp": f"2026-01-01T00:00:{batch:02}.000Z",
        "batchId": batch,
        "numInputRows": rows,
        "inputRowsPerSecond": None if batch == 0 else 50.0,
        "processedRowsPerSecond": 1234.5,
        "durationMs": {"triggerExecution": 1500},
        "sources": [
            {
                "endOffset": {"orders": {str(n): end for n, end in enumerate(ends)}, "@epochs": {"orders": {"0": 0}}},
                "latestOffset": {"orders": {str(n): end for n, end in enumerate(latest)}},
            }
        ],
    }
    return SimpleNamespace(json=json.dumps(report))


class Query:
    """A query that gets the next reports whenever its progress is read, and ends after the last ones."""

    def __init__(self, *steps: Sequence[Any], error: Exception | None = None) -> None:
        self.name, self.id = "orders-etl", "4711"
        self._steps = list(steps)
        self._error = error
        self.reports: list[Any] = []

    @property
    def isActive(self) -> bool:
        return bool(self._steps)

    @property
    def recentProgress(self) -> list[Any]:
        if self._steps:
            self.reports += self._steps.pop(0)
        return list(self.reports)

    def exception(self) -> Exception | None:
        return self._error


def polled(*reports: Any) -> QueryHistory:
    """Return the history of a query with these reports."""
    history = QueryHistory(Query(reports))
    history.poll()
    return history


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def test_line_has_the_offsets_of_a_batch_with_fewer_rows() -> None:
    filtered, whole = json.loads(progress(1, rows=3).json), json.loads(progress(2, rows=8).json)
    filtered["sources"][0]["startOffset"] = {"orders": {"0": 5, "1": 17}}
    whole["sources"][0]["startOffset"] = {"orders": {"0": 5, "1": 17}}
    history = polled(SimpleNamespace(json=json.dumps(filtered)))
    assert (history.samples[-1].rows, history.samples[-1].offsets) == (3, 8)
    assert "batch 1, 3 rows of 8 offsets, " in line(history.samples, "orders")
    history = polled(SimpleNamespace(json=json.dumps(whole)))
    assert "offsets" not in line(history.samples, "orders")


def test_history_has_each_trigger_once() -> None:
    history = QueryHistory(Query([progress(0)], [], [progress(1), progress(2)]))
    assert [history.poll() for _ in range(4)] == [True, False, True, False]
    assert [sample.batch for sample in history.samples] == [0, 1, 2]
    first, *_, last = history.samples
    assert (first.input_rows_per_s, last.input_rows_per_s) == (None, 50.0)
    assert (last.processed_rows_per_s, last.batch_s, last.rows) == (1234.5, 1.5, 100)
    assert last.lag is not None
    assert [row.offsets_behind for row in last.lag] == [20, 0]


def test_progress_that_spark_has_dropped_is_not_taken_twice() -> None:
    """Spark keeps the last hundred reports only."""
    query = Query([progress(0), progress(1)])
    history = QueryHistory(query)
    history.poll()
    query.reports = [progress(1), progress(2)]
    history.poll()
    query.reports = [progress(4)]
    history.poll()
    assert [sample.batch for sample in history.samples] == [0, 1, 2, 4]


def test_line_shows_newest_trigger() -> None:
    history = QueryHistory(Query([progress(0), progress(1)]))
    assert line(history.samples, history.name) == "orders-etl: no batch is complete yet"
    history.poll()
    assert line(history.samples, history.name) == (
        "orders-etl: batch 1, in 50 rows/s, processed 1,234 rows/s, 1.5 s, lag 20"
    )


def test_line_has_time_left_while_lag_falls() -> None:
    falling = [
        progress(0, ends=(10, 20)),
        progress(2, ends=(20, 20), latest=(50, 20)),
        progress(4, ends=(40, 20), latest=(50, 20)),
    ]
    query = Query(falling[:2], falling[2:])
    history = QueryHistory(query)
    history.poll()
    assert "left" not in line(history.samples, history.name), "20, then 30 behind"
    history.poll()
    assert line(history.samples, history.name).endswith("lag 10, 4 s left"), "20 behind, and 10 after four seconds"


def test_figure_has_rates_batch_time_and_lag_of_partitions() -> None:
    history = polled(progress(0), progress(1))
    rates, durations, records, seconds = draw(history.samples, history.name).axes
    assert [sample.get_label() for sample in rates.lines] == ["in", "processed"]
    assert list(durations.lines[0].get_ydata()) == [1.5, 1.5]
    assert {record.get_label(): list(record.get_ydata()) for record in records.lines} == {
        "orders-0": [20, 20],
        "orders-1": [0, 0],
    }
    assert "options=" in seconds.texts[0].get_text()


def test_legend_names_partitions_of_a_topic_that_begins_with_an_underscore() -> None:
    history = polled(SimpleNamespace(json=progress(0).json.replace("orders", "_orders")))
    legend = draw(history.samples, history.name).axes[2].get_legend()
    assert legend is not None
    assert [text.get_text().strip() for text in legend.get_texts()] == ["_orders-0", "_orders-1"]


def test_name_with_dollar_signs_is_no_formula_in_a_picture() -> None:
    """matplotlib shows the first name as a formula, and fails for the second."""
    history = polled(progress(0))
    for name in ("a $x$ b", "in $ and {$"):
        picture = draw(history.samples, name)
        axes = lines({name: [(history.samples[0].time, 1)]}, Figure().subplots())
        legend = axes.get_legend()
        assert legend is not None
        for figure, text in (picture, picture.get_suptitle()), (axes.figure, legend.get_texts()[0].get_text()):
            figure.savefig(io.BytesIO())
            assert not is_math_text(text)


def test_figure_has_the_larger_lag_of_two_sources_with_the_same_partition() -> None:
    report = json.loads(progress(0, latest=(90, 20)).json)
    report["sources"] += json.loads(progress(0, latest=(30, 20)).json)["sources"]
    history = polled(SimpleNamespace(json=json.dumps(report)))
    record = draw(history.samples, history.name).axes[2].lines[0]
    assert (record.get_label(), list(record.get_ydata())) == ("orders-0", [80])


def test_figure_of_many_partitions_has_those_with_largest_lag() -> None:
    history = polled(progress(0, ends=[0] * 20, latest=range(20)))
    records = draw(history.samples, history.name).axes[2]
    assert {record.get_label() for record in records.lines} == {f"orders-{n}" for n in range(12, 20)}
    assert records.get_title(loc="right") == "the 8 of 20 partitions with the largest lag"


def test_watch_prints_a_line_for_each_change_until_query_ends(
    clock: ManualClock, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    picture = tmp_path / "lag.svg"
    history = watch(Query([progress(0)], [], [progress(1)]), clock=clock, picture=picture)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(",")[0] for line in lines] == [
        "orders-etl: no batch is complete yet",
        "orders-etl: batch 0",
        "orders-etl: batch 1",
    ]
    assert len(history.samples) == 2
    assert picture.read_text().count("<svg") == 1


def test_terminal_overwrites_the_line(monkeypatch: pytest.MonkeyPatch, clock: ManualClock) -> None:
    out = io.StringIO()
    out.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stdout", out)
    watch(Query([progress(0)], [progress(1)]), clock=clock)
    assert out.getvalue().count("\r\x1b[K") == 3
    assert out.getvalue().count("\n") == 1


def test_watch_ends_at_timeout_while_query_runs(clock: ManualClock) -> None:
    query = Query(*([progress(n)] if n < 3 else [] for n in range(1_000)))
    history = watch(query, timeout_s=20, clock=clock)
    assert query.isActive
    assert len(history.samples) == 3


def test_ctrl_c_ends_the_display_and_keeps_the_picture(clock: ManualClock, tmp_path: Path) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    clock.sleep_s = lambda seconds: interrupt()  # type: ignore[method-assign]
    query = Query([progress(0)], [], [])
    history = watch(query, clock=clock, picture=tmp_path / "lag.png")
    assert query.isActive
    assert len(history.samples) == 1
    assert (tmp_path / "lag.png").read_bytes().startswith(b"\x89PNG")


def test_failed_query_raises_after_the_picture(clock: ManualClock, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="lost records"):
        watch(Query([progress(0)], error=RuntimeError("lost records")), clock=clock, picture=tmp_path / "lag.png")
    assert (tmp_path / "lag.png").exists()


def test_wrong_options_are_refused_before_the_first_display(clock: ManualClock) -> None:
    with pytest.raises(ConfigurationError, match=r"security\.protocol"):
        watch(Query(), options={"kafka.bootstrap.servers": "a:1", "kafka.security.protocol": "none"}, clock=clock)


@pytest.mark.parametrize(
    ("picture", "error"),
    [("lag.png", UsageError), ("lag.png.tmp", ValueError), ("missing/lag.png", FileNotFoundError)],
)
def test_picture_that_cannot_be_written_is_refused_before_the_first_display(
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    picture: str,
    error: type[Exception],
) -> None:
    """At the end, the refusal would hide the error of the query."""
    if error is UsageError:
        monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(error):
        watch(Query([progress(0)], error=RuntimeError("lost records")), clock=clock, picture=tmp_path / picture)
    assert capsys.readouterr().out == ""


def hide_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    place = "spark_kafka_source.watching.loop.find_spec"
    monkeypatch.setattr(place, lambda name: None if name == "matplotlib" else find_spec(name))


def test_options_add_seconds_and_state_of_the_group(clock: ManualClock) -> None:
    with FakeKafka() as kafka:
        kafka.create_topic("orders", 2)
        kafka.produce("orders", *[b"x"] * 3, partition=0)
        options = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "Kafka.Group.Id": "etl"}
        query = Query([progress(0, ends=[0, 0], latest=[3, 0])])
        (sample,) = watch(query, options=options, clock=clock).samples
    assert sample.lag is not None
    assert sample.lag.seconds_behind is not None
    assert sample.group == "etl: Dead, 0 members"


def test_brokers_that_do_not_answer_leave_the_lag_out(clock: ManualClock) -> None:
    options = {"kafka.bootstrap.servers": "127.0.0.1:1", "kafka.group.id": "etl"}
    (sample,) = watch(Query([progress(0)]), options=options, clock=clock).samples
    assert sample.group is None
    assert sample.processed_rows_per_s == 1234.5


class Cell:
    """The output of a notebook's cell, as `IPython.display.display` makes it."""

    def __init__(self) -> None:
        self.shown: list[dict[str, Any]] = []

    def display(self, content: dict[str, Any], **named: Any) -> Cell:
        assert named["raw"]
        assert named["display_id"]
        self.shown.append(content)
        return self

    def update(self, content: dict[str, Any], **named: Any) -> None:
        assert named["raw"]
        self.shown.append(content)


@pytest.mark.parametrize("pictures", [True, False])
def test_notebook_gets_one_output_that_is_replaced(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch, pictures: bool
) -> None:
    cell = Cell()
    if not pictures:
        hide_matplotlib(monkeypatch)
    kernel = SimpleNamespace(kernel=None)
    ipython = SimpleNamespace(get_ipython=lambda: kernel, version_info=(9, 0))  # which matplotlib looks at
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=cell.display))
    watch(Query([progress(0)], [progress(1)]), clock=clock)
    assert len(cell.shown) == 3
    assert cell.shown[-1]["text/plain"].startswith("orders-etl: batch 1")
    if pictures:
        assert base64.b64decode(cell.shown[-1]["image/png"]).startswith(b"\x89PNG")
    else:
        assert set(cell.shown[-1]) == {"text/plain"}

"""The simulated world: its processes, clocks, signals, network and schedules."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("greenlet")

from protocol.testing.simulation import Outcome, SimulationFailed, Worker, command, simulate
from protocol.testing.simulation.shrink import shrink
from tests.simulation.same_seed import PYTHON, Repetition, different, repeat


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker() as worker:
        yield worker


def run(worker: Worker, probe: str, *arguments: Any, seed: int = 1, **options: Any) -> Outcome:
    return worker.run(f"tests.simulation.probes:{probe}", seed, *arguments, **options)


def result(worker: Worker, probe: str, *arguments: Any, **options: Any) -> Any:
    outcome = run(worker, probe, *arguments, **options)
    assert outcome.error is None, outcome.traceback
    return outcome.result


def test_killed_process_runs_no_line_and_closes_connections(worker: Worker) -> None:
    """Slow as the first of its module: the worker prepares a world."""
    assert result(worker, "killed") == [[], "b''", False]


def test_kills_are_counted_of_running_processes_under_faults(worker: Worker) -> None:
    outcome = run(worker, "kills")
    assert outcome.error is None, outcome.traceback
    assert sum(fault.startswith("kill") for fault in outcome.faults) == 2
    assert outcome.kills == 1


def test_wait_fails_when_process_fails(worker: Worker) -> None:
    outcome = run(worker, "wait_for_failed")
    assert outcome.error == "SimulationFailed: failing ended with ValueError('broken')"
    assert outcome.virtual_s < 2


def test_process_has_own_module_state(worker: Worker) -> None:
    assert result(worker, "own_state") == [["main"], ["a"], ["b"]]


def test_prepared_processes_run_as_those_that_import_during_the_run() -> None:
    """Slow: a new worker, which has prepared nothing, prepares a world."""
    with Worker() as worker:  # prepares processes after the first run
        runs = [run(worker, "own_state") for _ in range(2)]
    assert [outcome.processes for outcome in runs] == [2, 2]
    assert len({outcome.digest for outcome in runs}) == 1


def test_random_generator_without_seed_repeats_with_world_seed(worker: Worker) -> None:
    assert result(worker, "unseeded") == result(worker, "unseeded") != result(worker, "unseeded", seed=2)


def test_paused_process_stops_until_resumed(worker: Worker) -> None:
    assert result(worker, "paused") == [5, 5, 8]


def test_process_killed_during_pause_does_not_continue(worker: Worker) -> None:
    assert result(worker, "killed_while_paused") == 3


def test_clock_jumps_end_waits_sooner_and_move_wall_clock(worker: Worker) -> None:
    assert result(worker, "clocks") == [40, 100, -960]


def test_signal_ends_wait_of_main_thread(worker: Worker) -> None:
    assert result(worker, "interrupted_wait") == ["interrupted", "interrupted"]


@pytest.mark.parametrize("after_lines", [0, 1, 2, 7])
def test_signal_arrives_before_chosen_line(worker: Worker, after_lines: int) -> None:
    """Slow if it is the first of a worker, which prepares a world."""
    assert result(worker, "interrupted_line", after_lines) == [True, "KeyboardInterrupt"]


def test_condition_interrupted_at_any_line_leaves_no_lock_held(worker: Worker) -> None:
    waits, interrupts = result(worker, "interrupted_condition")
    assert waits > 100
    assert interrupts > 100


def test_preemption_between_statements_finds_race(worker: Worker) -> None:
    failed = [run(worker, "lost_update", seed=seed, preempt=["tests.simulation.probes"]).error for seed in range(8)]
    assert any("additions are lost" in str(error) for error in failed)
    assert run(worker, "lost_update").error is None


def test_deadlock_fails_with_stacks(worker: Worker) -> None:
    error = str(run(worker, "dead_locked").error)
    assert "deadlock" in error
    assert "dead_locked" in error


def test_log_records_are_in_trace(worker: Worker) -> None:
    outcome = run(worker, "logged")
    assert outcome.error is None
    assert any("warning shop: closed at 6" in line for line in outcome.trace)


def test_set_order_follows_seed_alone(worker: Worker) -> None:
    first, again, second = (result(worker, "set_order", seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first != second


def test_shrink_keeps_only_needed_fault(worker: Worker) -> None:
    scenario = "tests.simulation.probes:needs_fault_three"
    failed = worker.run(scenario, 1)
    assert len(failed.faults) == 8
    text = shrink(worker, scenario, failed)
    assert "with 1 of 8 faults, and with 0 of" in text
    assert "--faults 3 --switches\n" in text
    assert "fault 3: fault 3" in text


def test_scenario_that_exits_fails_with_digest_and_faults(worker: Worker) -> None:
    outcome = run(worker, "exits")
    assert outcome.error == "SystemExit: 3"
    assert outcome.faults == ["exit"]
    assert outcome.digest


def test_shrink_refuses_run_without_outcome(worker: Worker) -> None:
    scenario = "tests.simulation.probes:ends_real_process"
    failed = worker.run(scenario, 1)
    assert failed.error is not None
    assert "cannot be shrunk" in shrink(worker, scenario, failed)


def test_failure_names_seed_and_command() -> None:
    """Slow: a new worker prepares a world."""
    with pytest.raises(SimulationFailed, match=r"failed with seed 5(.|\n)*simulation \S+ --seed 5"):
        simulate("tests.simulation.probes:needs_fault_three", 5)


@pytest.mark.parametrize(
    ("fault", "least_s"),
    [
        ("cut", 6),
        ("half-open", 6),
        ("lost request", 6),
        ("lost reply", 6),
        ("half a request", 7),
        ("half a reply", 7),
        ("partition", 9),
        ("deaf", 6),
        ("redirect", 6),
        ("slow", 9),
    ],
)
def test_producer_on_faulty_network_writes_each_record_once(worker: Worker, fault: str, least_s: int) -> None:
    numbers, took_s = result(worker, "faulty_network", fault)
    assert numbers == list(range(20))
    assert took_s >= least_s


def test_same_seed_has_same_digest_with_other_hash_seeds() -> None:
    """Slow: four processes prepare a world and run 15 virtual minutes each."""
    scenarios = ("interrupted_notebook", "spark_query")
    ended = repeat([Repetition(PYTHON, name, 1, 900.0, number) for number in (1, 2) for name in scenarios], jobs=2)
    assert [repetition.error for repetition in ended] == [None] * 4
    assert different(ended) == {}


def test_different_digests_of_a_seed_are_reported() -> None:
    runs = [Repetition("3.11", "writes", 1, 3.0, number, f"digest {number // 2}") for number in (1, 2, 3)]
    assert different(runs) == {("3.11", "writes", 1, 3.0): {"digest 0": 1, "digest 1": 2}}


def test_command_continues_with_seeds_after_those_of_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[tuple[str, int]] = []

    def run_all(runs: Any, jobs: int, report: Any, **options: Any) -> None:
        for scenario, seed in runs:
            ran.append((scenario, seed))
            report(scenario, Outcome(seed, "late" if seed == 11 else None, real_s=0.5))
            if len(ran) == 5:
                raise KeyboardInterrupt

    monkeypatch.setattr(command, "run_all", run_all)
    arguments = ["json:a", "json:b", "--first", "10", "--log", str(tmp_path / "log.jsonl")]
    assert command.main([*arguments, "--seeds", "4"]) == 130
    assert command.main([*arguments, "--seeds", "5"]) == 1
    assert sorted(ran) == [(name, seed) for name in ("json:a", "json:b") for seed in range(10, 15)]
    assert "5              120.0  json:a: 1 failed, 11" in capsys.readouterr().out


def test_scenario_with_too_few_events_fails(capsys: pytest.CaptureFixture[str]) -> None:
    """Slow: two runs of the command, each with a process that prepares a world."""
    scenario = "tests.simulation.probes:counted"
    arguments = [scenario, "--first", "1", "--seeds", "5", "--jobs", "1"]
    assert command.main(arguments, least_events={scenario: {"commits": 10, "faults": 5}}) == 0
    assert command.main(arguments, least_events={scenario: {"commits": 11, "kills": 1}}) == 1
    output = capsys.readouterr().out
    assert f"{scenario}: commits 10, faults 5\n" in output
    assert f"{scenario} is idle: commits 10 in 5 runs, at least 11 expected" in output


def test_worker_ends_quietly_when_its_command_was_stopped(capfd: pytest.CaptureFixture[str]) -> None:
    """Slow: a new worker imports its packages."""
    with Worker() as worker:
        assert worker._process.stdout is not None
        worker._process.stdout.close()
        with pytest.raises(ValueError, match="closed file"):
            run(worker, "own_state")
    assert capfd.readouterr().err == ""
    assert worker._process.returncode == 0


def test_stopped_shrink_ends_without_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(*_: object, **__: object) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(Worker, "run", lambda *_, **__: Outcome(7, "late"))
    monkeypatch.setattr(command, "shrink", stopped)
    assert command.main(["json:a", "--seed", "7", "--shrink"]) == 130
    assert capsys.readouterr().err.strip() == "stopped"

"""Small scenarios for tests of the world itself."""

from __future__ import annotations

import logging
import os
import random
import signal
import socket
import threading
import time

from protocol import KafkaError, Producer
from protocol.base.condition import Condition
from protocol.testing import FakeKafka
from protocol.testing.simulation import Simulation

PORT = 7_000
STATE: list[str] = []


# -- processes --------------------------------------------------------------------------------


class Finalized:
    def __init__(self, ends: list[str]) -> None:
        self.ends = ends

    def __del__(self) -> None:
        self.ends.append("__del__")


def sleeper(ends: list[str]) -> None:
    finalized = Finalized(ends)
    try:
        connection = socket.create_connection(("host", PORT))
        connection.sendall(b"hello")
        time.sleep(1_000)
    finally:
        ends.append(f"finally {finalized}")


def killed(world: Simulation) -> tuple[list[str], str, bool]:
    """A killed process runs no more line, and its connections end."""
    server = socket.create_server(("", PORT))
    ends: list[str] = []
    process = world.start(sleeper, ends)
    connection, _ = server.accept()
    assert connection.recv(5) == b"hello"
    process.kill()
    connection.settimeout(5)
    return ends, repr(connection.recv(5)), process.alive


def remember(text: str) -> list[str]:
    STATE.append(text)
    return list(STATE)


def own_state(world: Simulation) -> list[list[str]]:
    """Each process has its own variables of modules, and its own main thread."""
    STATE.append("main")
    processes = [world.start(remember, "a"), world.start(remember, "b")]
    return [STATE, *(process.join() for process in processes)]


def unseeded(world: Simulation) -> float:
    """A generator without a seed depends on the world's seed alone."""
    return random.Random().random()


def counted(world: Simulation) -> dict[str, object]:
    """A run that reports events."""
    world.fault("nothing", lambda: None)
    return {"commits": 2, "protocol": "consumer"}


def ticker(ticks: list[float]) -> None:
    while True:
        ticks.append(time.monotonic())
        time.sleep(1)


def paused(world: Simulation) -> list[int]:
    """A paused process does not run until it continues."""
    ticks: list[float] = []
    process = world.start(ticker, ticks)
    counts = []
    for _ in range(3):
        world.sleep(5)
        counts.append(len(ticks))
        if len(counts) == 1:
            process.pause(7.5)
    return counts


def killed_while_paused(world: Simulation) -> int:
    """A process that is killed during a pause does not continue after it."""
    ticks: list[float] = []
    process = world.start(ticker, ticks)
    world.sleep(2.5)
    process.pause(5)
    world.sleep(2)
    process.kill()
    world.sleep(10)
    return len(ticks)


def clock_reader(readings: dict[str, float]) -> None:
    from_s, wall_s = time.monotonic(), time.time()
    time.sleep(100)
    readings["monotonic"], readings["wall"] = time.monotonic() - from_s, time.time() - wall_s


def clocks(world: Simulation) -> tuple[int, int, int]:
    """A jump of the monotonic clock ends waits sooner; the wall clock may go backwards."""
    readings: dict[str, float] = {}
    process = world.start(clock_reader, readings)
    world.sleep(10)
    process.jump_monotonic(60)
    process.jump_wall(-1_000)
    process.join()
    return round(world.now_s), round(readings["monotonic"]), round(readings["wall"])


# -- signals ----------------------------------------------------------------------------------


def waiter(condition_of_ours: bool) -> str:
    condition = Condition() if condition_of_ours else threading.Condition()
    try:
        with condition:
            condition.wait()
    except KeyboardInterrupt:
        with condition:
            return "interrupted"
    return "woken"


def interrupted_wait(world: Simulation) -> list[str]:
    """A signal ends the wait of the main thread by its handler's exception."""
    processes = [world.start(waiter, True), world.start(waiter, False)]
    world.sleep(1)
    for process in processes:
        process.interrupt()
    return [process.join(5) for process in processes]


def counter(counts: list[int]) -> None:
    signal.signal(signal.SIGTERM, lambda number, frame: counts.append(-frame.f_lineno))
    total = 0
    while True:
        total += 1
        counts[0] = total
        time.sleep(0.001)


def interrupted_line(world: Simulation, after_lines: int) -> tuple[bool, str]:
    """A signal arrives before a line that the seed may choose."""
    counts = [0]
    process = world.start(counter, counts)
    world.sleep(0.1)
    process.interrupt(signal.SIGTERM, after_lines)
    world.sleep(0.1)
    handled = len(counts) == 2
    process.interrupt(signal.SIGINT, after_lines)
    process.wait(5)
    process.error, error = None, process.error
    return handled, type(error).__name__


def locker(rounds: list[int]) -> None:
    condition = Condition()
    thread = threading.Thread(target=notify_forever, args=(condition,), daemon=True)
    thread.start()
    while True:
        try:
            wait_forever(condition, rounds)
        except KeyboardInterrupt:
            assert condition.acquire(timeout=1), "the lock stays held"
            condition.release()
            rounds[1] += 1


def wait_forever(condition: Condition, rounds: list[int]) -> None:
    while True:
        with condition:
            condition.wait(0.01)
        rounds[0] += 1


def notify_forever(condition: Condition) -> None:
    while True:
        with condition:
            condition.notify_all()
        time.sleep(0.003)


def interrupted_condition(world: Simulation) -> list[int]:
    """Interrupts at any line leave no lock held."""
    rounds = [0, 0]
    process = world.start(locker, rounds)
    for number in range(200):
        world.sleep(0.02)
        process.interrupt(after_lines=world.random.randrange(60))
        world.wait_until(lambda number=number: rounds[1] > number or not process.alive, 5)
        assert process.alive, repr(process.error)
    return rounds


# -- threads ----------------------------------------------------------------------------------


def lost_update(world: Simulation) -> int:
    """Two threads add to one number, with a race between two statements; returns how many additions were lost."""
    total = [0]

    def add() -> None:
        for _ in range(20):
            value = total[0]
            total[0] = value + 1

    threads = [threading.Thread(target=add) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert total[0] == 40, f"{40 - total[0]} additions are lost"
    return 0


def dead_locked(world: Simulation) -> None:
    """The run ends with the stacks of all threads."""
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def logged(world: Simulation) -> None:
    """Records of loggers are lines of the trace."""
    logging.getLogger("shop").warning("closed at %d", 6)


def set_order(world: Simulation) -> list[str]:
    """A set of strings has an order that the seed decides."""
    names = {f"name-{number}" for number in range(20)}
    return list(names)


def needs_fault_three(world: Simulation) -> None:
    """Fails after its third fault, whatever else happens."""
    happened = []
    for number in range(1, 9):
        world.fault(f"fault {number}", happened.append, number)
        world.sleep(random.random())
    assert 3 not in happened


def exits(world: Simulation) -> None:
    """Fails after its fault with an exception that is no `Exception`."""
    world.fault("exit", lambda: None)
    raise SystemExit(3)


def ends_real_process(world: Simulation) -> None:
    """Ends the process of the run after a fault."""
    world.fault("exit", lambda: None)
    os._exit(3)


def kills(world: Simulation) -> None:
    """A kill of a process that runs, one after its end, and one after the faults."""
    running, ended = (world.start(wait, seconds, name=f"for {seconds} s") for seconds in (100, 1))
    faults = world.start_faults([("nothing", lambda: None)])
    world.sleep(2)
    last = world.start(wait, 100, name="to the end")
    for process in (running, ended):
        world.fault(f"kill {process.name}", process.kill)
    faults.stop()
    last.kill()


def wait(seconds: float) -> None:
    time.sleep(seconds)


def wait_for_failed(world: Simulation) -> None:
    """Wait for a result that a process cannot give any more."""
    world.start(fail, name="failing")
    world.wait_until(lambda: False, 60)


def fail() -> None:
    time.sleep(1)
    raise ValueError("broken")


# -- network ----------------------------------------------------------------------------------


def send_until_acknowledged(servers: str, options: dict[str, str]) -> int:
    with Producer({"bootstrap.servers": servers, **options}) as producer:
        for number in range(20):
            try:
                producer.send_and_wait("t", str(number), partition=0)
            except KafkaError:
                raise
            time.sleep(0.3)
    return 20


def faulty_network(world: Simulation, fault: str) -> tuple[list[int], int]:
    """A producer writes each record once, whatever the network does."""
    kafka = FakeKafka(3, record_requests=False)
    kafka.create_topic("t", 1, 3)
    process = world.start(send_until_acknowledged, kafka.bootstrap_servers, {"request.timeout.ms": "2000"})
    network = world.network
    world.sleep(0.7)
    for number, (_, port) in enumerate(kafka.addresses.values()):
        match fault:
            case "cut":
                network.cut(port=port)
            case "half-open":
                network.half_open(port=port)
            case "lost request" | "lost reply":
                network.lose_next(to_server=fault == "lost request", port=port)
            case "half a request" | "half a reply":
                network.halve_next(to_server=fault == "half a request", port=port)
            case "partition":
                network.block(process, port)
                world.later(5, lambda port=port: network.unblock(process, port))
            case "deaf":
                network.link(port=port).deaf = number == 0
            case "redirect":
                ports = [second for _, second in kafka.addresses.values()]
                network.redirects = {ports[0]: ports[1], ports[1]: ports[0]}
            case "slow":
                network.link(process).bytes_per_s = 2_000
                network.link(process).latency_s = (0.05, 0.3)
    if fault == "deaf":
        world.later(5, network.heal)
        world.later(5, network.cut)
    if fault == "redirect":
        network.cut()
        world.later(5, network.heal)
    process.join(200)
    return [int(message.value) for message in kafka.records("t")], round(world.now_s)

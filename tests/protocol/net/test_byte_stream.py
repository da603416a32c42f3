"""Guarantees of the stream below a `Connection`, over plain TCP and over TLS."""

from __future__ import annotations

import random
import select
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from functools import partial

import pytest

from protocol.base.clock import SYSTEM_CLOCK, Deadline
from protocol.errors import ConnectionLost, FrameTooLarge, RequestTimedOut
from protocol.net import byte_stream
from protocol.net.byte_stream import Buffer, ByteStream
from protocol.net.connection import Connection, Reply
from protocol.net.readiness import ready
from protocol.net.tls_stream import TLSStream
from protocol.wire import frame
from protocol.wire.messages.m03_metadata import METADATA
from tests.support.tls_ends import Ends, make_ends
from tests.support.wait_until import wait_until

Pair = Callable[[], tuple[ByteStream, ByteStream]]

MIB = 1024 * 1024
TLS_VERSIONS = {"TLS 1.2": ssl.TLSVersion.TLSv1_2, "TLS 1.3": ssl.TLSVersion.TLSv1_3}


def after(milliseconds: float) -> Deadline:
    return Deadline.after_ms(milliseconds)


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> Ends:
    return make_ends(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(params=["plain", *TLS_VERSIONS])
def pair(request: pytest.FixtureRequest, ends: Ends) -> Iterator[Pair]:
    """Return a function that creates two connected streams: ours, and the peer's."""
    with ExitStack() as open_streams, ThreadPoolExecutor() as threads:

        def connected() -> tuple[ByteStream, ByteStream]:
            with socket.create_server(("127.0.0.1", 0)) as server:
                near, far = socket.create_connection(server.getsockname()), server.accept()[0]
            for sock in (near, far):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if request.param == "plain":
                ours, peers = ByteStream(near, "peer:9092"), ByteStream(far, "us:1234")
            else:
                ours, peers = over_tls(near, far, TLS_VERSIONS[request.param])
            for stream in (ours, peers):
                open_streams.enter_context(closing(stream))
            # As ApiVersions does: a server that speaks TLS 1.3 sends session tickets before its first bytes.
            peers.send([b"hello"], after(10_000))
            received(ours, 5)
            return ours, peers

        def over_tls(near: socket.socket, far: socket.socket, version: ssl.TLSVersion) -> tuple[ByteStream, ByteStream]:
            context = ends.client_context()
            context.minimum_version = context.maximum_version = version
            ours = TLSStream(near, "peer:9092", context, server_hostname="localhost")
            peers = TLSStream(far, "us:1234", ends.server_context(), server_side=True)
            answered = threads.submit(peers.handshake, after(10_000))
            ours.handshake(after(10_000))
            answered.result()
            return ours, peers

        yield connected


def received(stream: ByteStream, count: int, deadline: Deadline | None = None) -> bytes:
    buffer = bytearray(count)
    remaining = memoryview(buffer)
    while remaining:
        got = stream.receive_some(remaining)
        remaining = remaining[got:]
        if remaining and not got:
            stream.wait_readable(deadline or after(20_000))
    return bytes(buffer)


def readable(stream: ByteStream, timeout_s: float = 0.0) -> bool:
    """Return whether the socket itself is readable."""
    poll = select.poll()
    poll.register(stream.fileno(), select.POLLIN)
    return bool(poll.poll(timeout_s * 1000))


class TestBytes:
    def test_buffers_of_any_size_arrive_in_order(self, pair: Pair) -> None:
        ours, peers = pair()
        rng = random.Random(7)
        sizes = [0, 1, 4, 0, 70_000, 16_384, 300_000, 1, *(rng.randrange(40) for _ in range(2_000)), 0]
        buffers: list[Buffer] = [rng.randbytes(size) for size in sizes]
        buffers[3], buffers[4] = bytearray(buffers[3]), memoryview(buffers[4])
        with ThreadPoolExecutor() as threads:
            sent = threads.submit(ours.send, buffers, after(20_000))
            assert received(peers, sum(sizes)) == b"".join(buffers)
            sent.result()

    def test_threads_send_and_receive_concurrently(self, pair: Pair) -> None:
        """As in a connection: small requests and larger replies, many in flight."""
        ours, peers = pair()
        rng = random.Random(3)
        requests = [rng.randbytes(rng.choice([5, 60, 20_000])) for _ in range(1_500)]

        def answer() -> None:
            for request in requests:
                assert received(peers, len(request)) == request
                peers.send([request[::-1], request], after(20_000))

        def ask() -> None:
            for request in requests:
                ours.send([request[:3], request[3:]], after(20_000))

        with ThreadPoolExecutor() as threads:
            running = [threads.submit(answer), threads.submit(ask)]
            for request in requests:
                assert received(ours, 2 * len(request)) == request[::-1] + request
            for future in running:
                future.result()


class TestDeadlines:
    @pytest.mark.parametrize(
        ("words", "wait"),
        [
            ("did not come", lambda stream, deadline: received(stream, 8, deadline)),
            ("could not be sent", lambda stream, deadline: stream.send([bytes(64 * MIB)], deadline)),
        ],
        ids=["receive", "send"],
    )
    def test_call_times_out_at_its_deadline(
        self, pair: Pair, words: str, wait: Callable[[ByteStream, Deadline], object]
    ) -> None:
        ours, peers = pair()
        peers.send([b"half"], after(5_000))
        started_s = time.monotonic()
        with pytest.raises(RequestTimedOut, match=f"peer:9092: the bytes {words} before the deadline"):
            wait(ours, after(300))
        assert 0.25 < time.monotonic() - started_s < 15

    def test_silence_calls_the_handler_of_the_stream(self, pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("protocol.net.byte_stream.SILENCE_MS", 20)
        ours, _ = pair()
        handler_deadlines: list[Deadline] = []

        def give_up_the_third_time(deadline: Deadline) -> None:
            handler_deadlines.append(deadline)
            if len(handler_deadlines) == 3:
                ours.close()

        ours.on_silence = give_up_the_third_time
        deadline = after(20_000)
        with pytest.raises(ConnectionLost):
            received(ours, 1, deadline)
        assert handler_deadlines == [deadline] * 3


class TestClose:
    def test_peer_closing_midway_is_a_lost_connection(self, pair: Pair) -> None:
        ours, peers = pair()
        peers.send([b"half"], after(5_000))
        peers.close()
        with pytest.raises(ConnectionLost, match="peer:9092: the broker closed the connection"):
            received(ours, 8)
        with pytest.raises(ConnectionLost):
            ours.send([bytes(64 * MIB)], after(20_000))

    @pytest.mark.parametrize("waiting_for", ["bytes", "room"])
    def test_waiting_thread_is_woken_by_close_in_another_thread(
        self, pair: Pair, waiting_for: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(byte_stream, "SILENCE_MS", 10)
        ours, peers = pair()
        silent = threading.Event()
        ours.on_silence = lambda deadline: silent.set()
        if waiting_for == "bytes":
            peers.send([b"1"], after(5_000))
            work = partial(received, ours, 2, after(60_000))
        else:
            work = partial(ours.send, [bytes(64 * MIB)], after(60_000))
        with ThreadPoolExecutor() as threads:
            waiting = threads.submit(work)
            assert silent.wait(20)
            started_s = time.monotonic()
            ours.close()
            with pytest.raises(ConnectionLost):
                waiting.result(20)
            assert time.monotonic() - started_s < 15
        assert ours.fileno() == -1

    def test_closed_stream_neither_sends_nor_receives(self, pair: Pair) -> None:
        ours, peers = pair()
        peers.send([b"there"], after(5_000))
        assert readable(ours, 5)
        ours.close()
        ours.close()
        with pytest.raises(ConnectionLost):
            received(ours, 5, after(1_000))
        with pytest.raises(ConnectionLost):
            ours.send([b"x"], after(1_000))


class TestReplies:
    def test_two_replies_that_arrive_together_are_both_ready(self, pair: Pair) -> None:
        """Over TLS the second reply leaves the socket with the first: no poll would ever report it."""
        ours, peers = pair()
        replies = asked(ours, peers, times=2)
        peers.send([b"".join(metadata(reply) for reply in replies)], after(5_000))
        for reply in replies:
            assert ready([reply], 5.0) == [reply]
            assert reply.result(after(5_000))["cluster_id"] == f"c{reply.correlation_id}"

    @pytest.mark.parametrize("part_bytes", [1, 4, 10, -1])
    def test_part_of_a_reply_is_not_ready(self, pair: Pair, part_bytes: int) -> None:
        """Over TLS this is part of a TLS record, which cannot be decrypted yet."""
        ours, peers = pair()
        (reply,) = asked(ours, peers)
        sent = raw_bytes(peers, metadata(reply))
        peers.socket.sendall(sent[:part_bytes])
        assert readable(ours, 5)
        for _ in range(2):
            assert ready([reply], 0.02) == []
        assert not readable(ours)
        peers.socket.sendall(sent[part_bytes:])
        wait_until(lambda: ready([reply], 0.02) == [reply])
        assert reply.result(after(0))["cluster_id"] == "c0"

    def test_failure_in_the_middle_of_a_reply_is_ready_and_raised(self, pair: Pair) -> None:
        ours, peers = pair()
        (reply,) = asked(ours, peers)
        peers.send([(2 * MIB).to_bytes(4, "big")], after(5_000))
        wait_until(lambda: ready([reply], 0.02) == [reply])
        with pytest.raises(FrameTooLarge, match="announces 2097152 bytes"):
            reply.result(after(0))


def test_receive_answers_a_tls_key_update(ends: Ends) -> None:
    """A peer that updates its TLS keys asks us to do the same: OpenSSL answers in the middle of a read."""
    if not subprocess.run(["openssl", "version"], capture_output=True, text=True).stdout.startswith("OpenSSL"):
        pytest.skip("the command openssl is another implementation, which cannot update its keys")
    command = ["openssl", "s_server", "-accept", "127.0.0.1:0", "-tls1_3", "-msg", "-cert", ends.certificate]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as server:
        assert server.stdin
        assert server.stdout
        try:
            address = next(line for line in server.stdout if line.startswith("ACCEPT "))
            sock = socket.create_connection(("127.0.0.1", int(address.rsplit(":", 1)[1])))
            with closing(TLSStream(sock, "peer", ends.client_context(), server_hostname="localhost")) as ours:
                ours.handshake(after(20_000))
                for number in range(3):
                    server.stdin.write("K\n")
                    assert any(line.startswith(">>>") and "KeyUpdate" in line for line in server.stdout)
                    server.stdin.write("hello\n")
                    assert received(ours, 6) == b"hello\n"
                    ours.send([f"thanks {number}\n".encode()], after(20_000))
                    assert any(line.startswith("<<<") and "KeyUpdate" in line for line in server.stdout)
                    assert any(line == f"thanks {number}\n" for line in server.stdout)
        finally:
            server.terminate()


def asked(ours: ByteStream, peers: ByteStream, times: int = 1) -> list[Reply]:
    """Send Metadata requests, which the peer receives."""
    connection = Connection(ours, "test", clock=SYSTEM_CLOCK, max_response_bytes=MIB)
    replies = [connection.send(METADATA, 9, {"topics": []}, after(5_000)) for _ in range(times)]
    for _ in replies:
        received(peers, int.from_bytes(received(peers, 4), "big"))
    return replies


def raw_bytes(stream: ByteStream, data: bytes) -> bytes:
    """Return what the stream would put on the wire."""
    if not isinstance(stream, TLSStream):
        return data
    stream._tls.write(data)
    return stream._encrypted_out.read()


def metadata(reply: Reply) -> bytes:
    body = {"brokers": [], "cluster_id": f"c{reply.correlation_id}", "controller_id": 0, "topics": []}
    return b"".join(frame.encode_response(reply.api, reply.version, reply.correlation_id, body))

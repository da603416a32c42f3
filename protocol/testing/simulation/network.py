"""The simulated network: how long bytes travel, and which connections fail, by seed and by rule.

An address is (host name, port). All names resolve to the loopback address, unless `names` has other addresses. A server
is known by its port alone, a client by its process.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from protocol.testing.simulation.host import Host
from protocol.testing.simulation.scheduler import Scheduler

Address = tuple[str, int]
LOOPBACK = "127.0.0.1"
_FIRST_PORT = 20_000


class Endpoint(Protocol):
    """One end of a connection, or a listener: a simulated socket."""

    process: Host
    outgoing: Channel | None
    peer: Any
    connected: bool
    closed: bool
    listening: bool
    was_reset: bool

    def changed(self) -> None:
        """Wake the threads that wait for it."""

    def deliver(self, data: bytes) -> None:
        """Receive bytes of the other end."""

    def ended(self) -> None:
        """Receive the end of the stream."""

    def reset(self) -> None:
        """Receive a reset."""

    def attempt_ended(self, error: int) -> None:
        """End the connection attempt with an error number, or 0."""

    def accepted(self, address: Address) -> Endpoint:
        """Return the server's end of a new connection."""


@dataclass
class Link:
    """How the network treats the bytes between processes and ports; `Network.link` finds or makes one.

    Attributes
    ----------
    latency_s : (float, float)
        Range of the time that a message travels, in each direction.
    slow_rate, slow_s : float
        Probability that a message takes `slow_s` longer.
    bytes_per_s : float
        Bandwidth of one direction of a connection.
    blocked : bool
        Partition: nothing arrives before its end, in either direction, and connection attempts get no answer.
    refused : bool
        Connection attempts are refused.
    deaf : bool
        Connections are accepted, but requests never arrive: a host that accepts and never answers.
    """

    latency_s: tuple[float, float] = (0.0002, 0.002)
    slow_rate: float = 0.01
    slow_s: float = 0.05
    bytes_per_s: float = 100e6
    blocked: bool = False
    refused: bool = False
    deaf: bool = False


@dataclass
class Rule:
    """A fault of the next message on a connection that matches; it happens once."""

    port: int | None
    client: Host | None
    to_server: bool
    apply: Callable[[Channel, bytes], None]


@dataclass
class Channel:
    """One direction of a connection.

    The last byte so far arrives at `free_s`: bytes stay in order. `in_flight`: bytes sent and not yet arrived. `held`:
    deliveries that wait for the end of a partition. `silent`: nothing arrives any more, without an end of the
    connection.
    """

    link: Link
    source: Endpoint
    target: Endpoint
    to_server: bool
    port: int
    free_s: float = 0.0
    in_flight: int = 0
    held: list[Callable[[], None]] = field(default_factory=list)
    silent: bool = False


class Network:
    """All connections of a world.

    Attributes
    ----------
    default : Link
        For processes and ports without a rule.
    names : dict of str to list of str
        Addresses that a host name resolves to; an empty list: the name is unknown.
    redirects : dict of int to int
        A connection to the port reaches another port, as when a name resolves to another broker.
    heals : int
        Number of calls of `heal`.
    balancers : dict of int to callable
        A connection to the port reaches the port that the function returns, as behind a load balancer.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.random = random.Random()
        self.default = Link()
        self.names: dict[str, list[str]] = {}
        self.redirects: dict[int, int] = {}
        self.balancers: dict[int, Callable[[], int]] = {}
        self.listeners: dict[int, Endpoint] = {}
        self.channels: list[Channel] = []
        self.rules: list[Rule] = []
        self.heals = 0
        self._links: dict[tuple[Host | None, int | None], Link] = {}
        self._next_port = _FIRST_PORT

    def port(self) -> int:
        """Return a port that was never used."""
        self._next_port += 1
        return self._next_port

    # -- links --------------------------------------------------------------------------------

    def link(self, client: Host | None = None, port: int | None = None) -> Link:
        """Return the link between a process and a server's port, with separate settings; None: all."""
        if client is None and port is None:
            return self.default
        key = (client, port)
        if key not in self._links:
            self._links[key] = Link(**vars(self.default))
            for channel in self.channels:
                channel.link = self.link_of(self._client(channel).process, channel.port)
        return self._links[key]

    def link_of(self, client: Host, port: int) -> Link:
        """Return the most specific link for a connection."""
        links = self._links
        return links.get((client, port)) or links.get((client, None)) or links.get((None, port)) or self.default

    @staticmethod
    def _client(channel: Channel) -> Endpoint:
        return channel.source if channel.to_server else channel.target

    def heal(self) -> None:
        """End partitions, refusals and deafness of all links, redirects and pending rules; held bytes arrive.

        Connections that were deaf are reset: a request that has not arrived would have no reply.
        """
        self.heals += 1
        for channel in self.connections():
            if channel.link.deaf:
                self._reset(channel)
        for link in (self.default, *self._links.values()):
            link.blocked = link.refused = link.deaf = False
        for port in list(self.redirects):
            self.end_redirect(port)
        self.rules.clear()
        self.release_held()

    def end_redirect(self, port: int) -> None:
        """Resolve a name rightly again, and reset what was connected meanwhile.

        Before Kafka 4.4 (KIP-1242), no client notices that such a connection leads to another broker.
        """
        if self.redirects.pop(port, None) is not None:
            self.cut(port=port)

    def block(self, client: Host | None = None, port: int | None = None) -> None:
        """Begin a partition between a process and a port."""
        self.link(client, port).blocked = True

    def unblock(self, client: Host | None = None, port: int | None = None) -> None:
        """End a partition; held bytes arrive."""
        self.link(client, port).blocked = False
        self.release_held()

    def release_held(self) -> None:
        """Deliver the bytes of links that are no longer blocked."""
        for channel in self.channels:
            if channel.held and not channel.link.blocked:
                held_deliveries, channel.held = channel.held, []
                for deliver in held_deliveries:
                    self._schedule(channel, 0, deliver)

    # -- faults of connections ----------------------------------------------------------------

    def connections(self, client: Host | None = None, port: int | None = None) -> list[Channel]:
        """Return the channels to servers of open connections of a process, to a port."""
        return [
            channel
            for channel in self.channels
            if channel.to_server
            and client in (None, channel.source.process)
            and port in (None, channel.port)
            and not channel.source.closed
        ]

    def cut(self, client: Host | None = None, port: int | None = None) -> int:
        """Reset connections at both ends; return their number."""
        channels = self.connections(client, port)
        for channel in channels:
            self._reset(channel)
        return len(channels)

    @staticmethod
    def _reset(channel: Channel) -> None:
        channel.source.reset()
        channel.target.reset()

    def half_open(self, client: Host | None = None, port: int | None = None) -> int:
        """Make the servers forget connections; clients get no word, and a reset when they send. Return the number."""
        channels = self.connections(client, port)
        for channel in channels:
            channel.target.reset()
        return len(channels)

    def lose_next(self, *, to_server: bool, client: Host | None = None, port: int | None = None) -> None:
        """Reset the connection instead of delivering the next message: a request is lost, or a reply."""

        def apply(channel: Channel, data: bytes) -> None:
            self._schedule(channel, 0, channel.source.reset)
            self._schedule(channel, 0, channel.target.reset)

        self.rules.append(Rule(port, client, to_server, apply))

    def halve_next(
        self, *, to_server: bool, client: Host | None = None, port: int | None = None, reset: bool = False
    ) -> None:
        """Deliver a part of the next message, then nothing more, or a reset."""

        def apply(channel: Channel, data: bytes) -> None:
            part = data[: self.random.randrange(len(data))] if len(data) > 1 else b""
            self._schedule(channel, len(part), lambda: channel.target.deliver(part))
            channel.silent = True
            if reset:
                self._schedule(channel, 0, channel.source.reset)
                self._schedule(channel, 0, channel.target.reset)

        self.rules.append(Rule(port, client, to_server, apply))

    # -- bytes --------------------------------------------------------------------------------

    def connect(self, client: Endpoint, address: Address) -> None:
        """Begin a connection attempt; it ends in `client.attempt_ended`."""
        link = self.link_of(client.process, address[1])
        delay_s = self._latency_s(link) * 2

        def arrive() -> None:
            if client.closed:
                return
            if link.blocked:
                self.scheduler.after(1.0, arrive)  # SYN is sent again
                return
            # An attempt that outlives the redirect would lead to the wrong broker for good.
            port = self.redirects.get(address[1], address[1])
            listener = self.listeners.get(self.balancers[port]() if port in self.balancers else port)
            if link.refused or listener is None or not listener.listening:
                client.attempt_ended(errno.ECONNREFUSED)
                return
            server = listener.accepted(address)
            self._pair(client, server, link, address[1])
            client.attempt_ended(0)
            listener.changed()

        self.scheduler.after(delay_s, arrive)

    def _pair(self, client: Endpoint, server: Endpoint, link: Link, port: int) -> None:
        client.outgoing = Channel(link, client, server, True, port)
        server.outgoing = Channel(link, server, client, False, port)
        client.peer, server.peer = server, client
        server.connected = True
        self.channels += [client.outgoing, server.outgoing]

    def pair_locally(self, first: Endpoint, second: Endpoint) -> None:
        """Connect the ends of a socket pair, which no fault concerns."""
        self._pair(first, second, Link((0.0, 1e-5), 0.0), 0)
        del self.channels[-2:]

    def forget(self, socket: Endpoint) -> None:
        """Drop the channels of a connection of which both ends are closed."""
        peer = socket.peer
        if peer is not None and peer.closed:
            self.channels = [channel for channel in self.channels if channel.source not in (socket, peer)]

    def send(self, channel: Channel, data: bytes) -> None:
        """Send bytes; they arrive later, or never."""
        self.scheduler.note(channel.port + (0 if channel.to_server else 1 << 20), len(data))
        channel.in_flight += len(data)
        if channel.silent or (channel.link.deaf and channel.to_server):
            return
        for rule in self.rules:
            if self._matches(rule, channel):
                self.rules.remove(rule)
                rule.apply(channel, data)
                return
        self._schedule(channel, len(data), lambda: self._arrive(channel, data))

    def _matches(self, rule: Rule, channel: Channel) -> bool:
        return (
            rule.to_server is channel.to_server
            and rule.port in (None, channel.port)
            and rule.client in (None, self._client(channel).process)
        )

    def _arrive(self, channel: Channel, data: bytes) -> None:
        channel.in_flight -= len(data)
        if channel.silent:
            return
        if channel.target.closed or channel.target.was_reset:
            channel.source.reset()
            return
        channel.target.deliver(data)
        channel.source.changed()

    def finish(self, channel: Channel) -> None:
        """Tell the other end that no more bytes come."""
        if not channel.silent:
            self._schedule(channel, 0, channel.target.ended)

    def abort(self, channel: Channel) -> None:
        """Reset the other end, after the bytes in flight."""
        if not channel.silent:
            self._schedule(channel, 0, channel.target.reset)

    def _schedule(self, channel: Channel, count: int, deliver: Callable[[], None]) -> None:
        link = channel.link
        now_s = self.scheduler.now_s

        def arrive() -> None:
            if link.blocked or channel.held:
                channel.held.append(deliver)
            else:
                deliver()

        when_s = max(channel.free_s, now_s + self._latency_s(link)) + count / link.bytes_per_s
        channel.free_s = when_s
        self.scheduler.at(when_s, arrive)

    def _latency_s(self, link: Link) -> float:
        low_s, high_s = link.latency_s
        chance = self.random.random
        return low_s + (high_s - low_s) * chance() + (link.slow_s if chance() < link.slow_rate else 0.0)

    # -- names --------------------------------------------------------------------------------

    def resolve(self, host: str) -> Iterator[str]:
        """Yield the addresses of a host name."""
        yield from self.names.get(host, [LOOPBACK])

"""Generate random orders, send them to Kafka in a thread, and sum them, so that Spark's sums can be checked.

Called by the demo's `__main__`; does not import Spark. Sends a batch of orders every 0.1 s, and waits until Kafka has
acknowledged it before the next one. So all orders counted by `OrderStream.sent` are in the log.
"""

from __future__ import annotations

import json
import random
import threading
from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import NamedTuple

import pyarrow as pa

from protocol.base.clock import SYSTEM_CLOCK
from protocol.base.condition import Event
from protocol.cluster.client import Client
from protocol.config import ProducerConfig
from protocol.producer.producer import Producer

_INTERVAL_S = 0.1
# Orders arrive with a delay: event times are up to 1.5 s old and slightly out of order.
_MAX_DELAY_MS = 1_500
_CUSTOMERS = 2_000
_PRICES_CENTS = {
    "coffee beans 1 kg": 18_90,
    "espresso cups": 24_50,
    "french press": 34_99,
    "grinder": 89_00,
    "kettle": 59_95,
    "milk frother": 27_99,
    "paper filters": 3_49,
    "scales": 42_50,
    "tea sampler": 15_99,
}
_COUNTRIES = {"DE": 30, "FR": 22, "IT": 16, "ES": 12, "NL": 9, "PL": 7, "SE": 4}


@dataclass(frozen=True)
class Order:
    """One order; `event_ms` is its event time in milliseconds since 1970."""

    order_id: int
    customer: str
    product: str
    quantity: int
    country: str
    event_ms: int

    @property
    def cents(self) -> int:
        """Price times quantity, in cents."""
        return self.quantity * _PRICES_CENTS[self.product]

    def to_json(self) -> str:
        """Return the value of the Kafka record."""
        fields = {
            "order_id": self.order_id,
            "customer": self.customer,
            "product": self.product,
            "quantity": self.quantity,
            "price": _PRICES_CENTS[self.product] / 100,
            "country": self.country,
            "event_time": _iso(self.event_ms),
        }
        return json.dumps(fields)


class SumKey(NamedTuple):
    """Country and window; `start_s` is the start of the window in seconds since 1970."""

    start_s: int
    country: str


@dataclass
class Sum:
    """Number and total price of the orders of one country in one window."""

    orders: int = 0
    cents: int = 0


class OrderStream:
    """Sends orders to a topic at a constant rate, keyed by customer, from `start` until `stop`.

    `sent`: number of acknowledged orders.
    `sums`: sums of the orders sent, by window and country; complete after `stop`.
    """

    def __init__(self, client: Client, topic: str, per_second: float, window_s: int) -> None:
        self.topic = topic
        self.sent = 0
        self.sums: dict[SumKey, Sum] = defaultdict(Sum)
        self._producer = Producer(client, ProducerConfig(compression_type="lz4"))
        self._per_second = per_second
        self._window_s = window_s
        self._ended = Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="orders", daemon=True)

    def start(self) -> None:
        """Start the thread that sends."""
        self._thread.start()

    @property
    def failed(self) -> bool:
        """True if the thread has failed; `stop` raises the error."""
        return self._failure is not None

    def stop(self) -> None:
        """Wait until every order is acknowledged; raise the error of the thread if it has failed."""
        self._ended.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        began_s = SYSTEM_CLOCK.now_s()
        try:
            while not self._ended.wait(_INTERVAL_S):
                self._send(int((SYSTEM_CLOCK.now_s() - began_s) * self._per_second) - self.sent)
            self._producer.close()
        except Exception as error:  # `stop` raises it
            self._failure = error

    def _send(self, count: int) -> None:
        now_ms = SYSTEM_CLOCK.wall_ms()
        orders = [make_order(self.sent + number, now_ms) for number in range(1, count + 1)]
        columns = {
            "key": pa.array([order.customer for order in orders], pa.string()).cast(pa.binary()),
            "value": pa.array([order.to_json() for order in orders], pa.string()).cast(pa.binary()),
        }
        self._producer.send_columns(self.topic, pa.record_batch(columns))
        self._producer.flush()
        self.sent += count
        for order in orders:
            total = self.sums[SumKey(order.event_ms // 1000 // self._window_s * self._window_s, order.country)]
            total.orders += 1
            total.cents += order.cents


def make_order(order_id: int, now_ms: int) -> Order:
    """Return a random order with an event time shortly before `now_ms`."""
    (country,) = random.choices(list(_COUNTRIES), list(_COUNTRIES.values()))  # noqa: S311
    return Order(
        order_id=order_id,
        customer=f"customer-{random.randrange(_CUSTOMERS):04}",  # noqa: S311
        product=random.choice(list(_PRICES_CENTS)),  # noqa: S311
        quantity=min(5, 1 + int(random.expovariate(0.8))),
        country=country,
        event_ms=now_ms - random.randrange(_MAX_DELAY_MS),  # noqa: S311
    )


def _iso(ms: int) -> str:
    moment = datetime.fromtimestamp(ms // 1000, timezone.utc)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{ms % 1000:03}Z"

"""Test doubles for code that uses Kafka: an in-memory cluster that listens on ports, and clients with expectations.

    from protocol.testing import FakeKafka

    with FakeKafka() as kafka:
        kafka.create_topic("orders")
        kafka.produce("orders", b"1", b"2")

The names in `__all__` are the public API. The package also installs a plugin for pytest with fixtures.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocol.base.lazy_names import attach

if TYPE_CHECKING:
    from protocol.testing.fake_kafka.clock import ManualClock
    from protocol.testing.fake_kafka.requests import Refused
    from protocol.testing.fake_kafka.server import FakeKafka
    from protocol.testing.mock_consumer import MockConsumer
    from protocol.testing.mock_producer import MockProducer
    from protocol.testing.real_kafka import RealKafka
    from protocol.testing.schema_registry import FakeSchemaRegistry

_MODULES = {
    "protocol.testing.fake_kafka.clock": "ManualClock",
    "protocol.testing.fake_kafka.requests": "Refused",
    "protocol.testing.fake_kafka.server": "FakeKafka",
    "protocol.testing.mock_consumer": "MockConsumer",
    "protocol.testing.mock_producer": "MockProducer",
    "protocol.testing.real_kafka": "RealKafka",
    "protocol.testing.schema_registry": "FakeSchemaRegistry",
}

__all__ = ["FakeKafka", "FakeSchemaRegistry", "ManualClock", "MockConsumer", "MockProducer", "RealKafka", "Refused"]

__getattr__, __dir__ = attach(__name__, _MODULES)

"""A plugin for pytest: the fixtures `kafka`, `kafka_fake`, `kafka_local`, `simulation`, the option `--kafka-real`.

Nothing but pytest is imported before a test uses a fixture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from protocol.testing import FakeKafka, RealKafka
    from protocol.testing.simulation import Outcome
    from spark_kafka_source.local_kafka import LocalKafka

_FAKE, _REAL = "fake", "real"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option `--kafka-real`."""
    group = parser.getgroup("kafka")
    group.addoption(
        "--kafka-real",
        action="store_true",
        help="run tests with the fixture `kafka` on a real local Kafka, too (needs Java)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the fixture `kafka`, which runs a test once or twice."""
    config.pluginmanager.register(_kafka_fixture(both=config.getoption("kafka_real")), "kafka-on-fake-or-real")


@pytest.fixture
def kafka_fake() -> Iterator[FakeKafka]:
    """Yield an empty in-memory cluster of one broker."""
    from protocol.testing import FakeKafka

    with FakeKafka() as kafka:
        yield kafka


@pytest.fixture(scope="session")
def kafka_local() -> Iterator[LocalKafka]:
    """Yield a real broker on this machine, a `LocalKafka`, shared by all tests of the session.

    The first use downloads Kafka's jars (45 MB) unless they are in the cache. The test is skipped without Java.
    """
    from protocol.errors import ConfigurationError
    from spark_kafka_source.local_kafka import LocalKafka

    try:
        running = LocalKafka(1)
    except ConfigurationError as error:
        pytest.skip(f"kafka_local needs a real Kafka: {error}")
    with running:
        yield running


@pytest.fixture(scope="session")
def simulation() -> Iterator[Callable[..., Outcome]]:
    """Yield a function that runs one seed of a scenario in a simulated world: `protocol.testing.simulation.simulate`.

    All runs are forks of one process, so nothing that a world replaces reaches the tests.
    """
    from protocol.testing.simulation import Worker, simulate

    with Worker() as worker:
        yield partial(simulate, worker=worker)


def _kafka_fixture(*, both: bool) -> object:
    """Return a plugin with the fixture `kafka`, on the in-memory cluster or on both."""

    class KafkaOnFakeOrReal:
        @pytest.fixture(params=[_FAKE, _REAL] if both else None)
        def kafka(self, request: pytest.FixtureRequest) -> Iterator[FakeKafka | RealKafka]:
            """Yield an empty in-memory cluster; with `--kafka-real` run the test on a real cluster, too.

            Use only methods that `FakeKafka` and `RealKafka` share: `bootstrap_servers`, `create_topic`, `produce`,
            `records`, `committed_offsets`. Topics and groups of the real cluster are deleted after the test.
            """
            if getattr(request, "param", _FAKE) == _FAKE:
                yield request.getfixturevalue("kafka_fake")
                return
            from protocol.testing import RealKafka

            with RealKafka(request.getfixturevalue("kafka_local").bootstrap_servers, exclusive=True) as real:
                yield real

    return KafkaOnFakeOrReal()

"""Every Kafka property marked as applied has an observable effect: a request, a socket, a time.

The test fails for a property of the table without a row here, and for a row whose two values make no difference.
"""

from __future__ import annotations

import itertools

import pytest

from protocol.properties import PROPERTIES
from protocol.property import Effect
from tests.options.client_seen import CLIENT_SEEN
from tests.options.consumer_seen import CONSUMER_SEEN
from tests.options.producer_seen import PRODUCER_SEEN
from tests.options.sasl_seen import SASL_SEEN
from tests.options.seeing import DIFFER
from tests.options.tls_seen import TLS_SEEN
from tests.ten_records import TenRecords

SEEN = {**CLIENT_SEEN, **CONSUMER_SEEN, **PRODUCER_SEEN, **TLS_SEEN, **SASL_SEEN}


def test_property_table_is_observed_completely() -> None:
    assert set(SEEN) == {row.name for row in PROPERTIES if row.effect is Effect.APPLIES}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", SEEN)
def test_property_has_an_observable_effect(name: str) -> None:
    observe, expected = SEEN[name]
    seen = {}
    for value in expected:
        with TenRecords() as cluster:
            seen[value] = observe(cluster, {name: value})
    if DIFFER not in expected.values():
        assert seen == expected
    assert all(one != other for one, other in itertools.combinations(seen.values(), 2))

"""Each Kafka property of the table that applies has an observable effect on requests, sockets or times.

Fails for a property without an entry in the tables of observers, and for an entry whose values have equal effects.
"""

from __future__ import annotations

import pytest

from protocol.properties import PROPERTIES
from protocol.settings.property_kinds import Effect
from tests.options.client_observers import CLIENT_OBSERVERS
from tests.options.consumer_observers import CONSUMER_OBSERVERS
from tests.options.observe import assert_effects
from tests.options.producer_observers import PRODUCER_OBSERVERS
from tests.options.sasl_observers import SASL_OBSERVERS
from tests.options.tls_observers import TLS_OBSERVERS

OBSERVERS = {**CLIENT_OBSERVERS, **CONSUMER_OBSERVERS, **PRODUCER_OBSERVERS, **TLS_OBSERVERS, **SASL_OBSERVERS}


def test_property_table_is_observed_completely() -> None:
    applying = {row.name for row in PROPERTIES if row.effect is Effect.APPLIES}
    assert set(OBSERVERS) == applying, "each property needs a case in OBSERVERS: docs/code-map.md#a-new-option"


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", OBSERVERS)
def test_property_has_an_observable_effect(name: str) -> None:
    assert_effects(name, OBSERVERS)

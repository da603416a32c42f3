"""Compare whole frames with those of Kafka's own Java classes for the same values, for every API and version."""

from __future__ import annotations

from itertools import product

import pytest

from protocol.wire.frame import decode_request
from protocol.wire.registry import API_BY_KEY
from protocol.wire.schema import Api
from tests.protocol.wire import kafka_facts
from tests.protocol.wire.kafka_facts import FLAVOURS, KINDS, case_id, sample_of

FRAMES = {tuple(case): frame for *case, frame in kafka_facts.kafka_frames()}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("api", API_BY_KEY.values(), ids=case_id)
def test_messages_are_encoded_and_decoded_as_by_kafka(api: Api, kind: str) -> None:
    for version, flavour in product(range(api.first, api.last + 1), FLAVOURS):
        value, frame = sample_of(api, version, kind, flavour), FRAMES[api, version, kind, flavour]
        encoded = kafka_facts.encode(api, version, kind, value)
        assert encoded == len(frame).to_bytes(4, "big") + frame, f"version {version}, {flavour}"
        if kind == "request":
            assert decode_request(frame)[:4] == (api, version, kafka_facts.CORRELATION_ID, kafka_facts.CLIENT_ID)
        decoded = kafka_facts.decode(api, version, kind, frame)
        assert kafka_facts.common(value, decoded) == value, f"version {version}, {flavour}"

"""Fake brokers of earlier Kafka releases."""

from __future__ import annotations

from typing import Any

from protocol.testing.fake_kafka.server import FakeKafka
from protocol.wire.messages.m18_api_versions import API_VERSIONS
from protocol.wire.schema import Api


def limit_version(fake: FakeKafka, api: Api, last: int) -> None:
    """Let the brokers offer versions of `api` up to `last` only."""

    def edit(body: dict[str, Any]) -> dict[str, Any]:
        for row in body["api_keys"]:
            if row["api_key"] == api.key:
                row.update(min_version=min(row["min_version"], last), max_version=last)
        return body

    fake.edit_replies(API_VERSIONS, edit)

"""Fake brokers of earlier Kafka releases."""

from __future__ import annotations

from typing import Any

from protocol.broker_errors import ErrorCode
from protocol.testing.fake_kafka.server import FakeKafka
from protocol.wire.messages.m03_metadata import METADATA
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


def limit_handshake(fake: FakeKafka, last: int, *, names_versions: bool = True) -> None:
    """Let the brokers refuse ApiVersions after version `last`; without naming their versions, as before Kafka 2.4."""
    row = {"api_key": API_VERSIONS.key, "min_version": 0, "max_version": last}
    apis = [row, {"api_key": METADATA.key, "min_version": METADATA.first, "max_version": METADATA.last}]
    refused = {"error_code": ErrorCode.UNSUPPORTED_VERSION, "api_keys": [row] if names_versions else []}

    def answer(body: dict[str, Any], version: int) -> dict[str, Any]:
        features = [{"name": "group.version", "max_version_level": 1, "min_version_level": 1}] if version >= 3 else []
        return {"api_keys": apis, "finalized_features": features} if version <= last else refused

    fake.handlers[API_VERSIONS] = answer

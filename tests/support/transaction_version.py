"""Set `transaction.version` of a real cluster with UpdateFeatures, which starts no JVM."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from protocol.admin.admin import Admin
from protocol.admin.cluster import FeatureUpdate, UpgradeType
from protocol.cluster.client import Client
from protocol.config import parse_client
from protocol.transaction.coordinator import FEATURE, speaks_v2
from spark_kafka_source.local_kafka import LocalKafka


@contextmanager
def transactions_before_kip_890(kafka: LocalKafka) -> Iterator[None]:
    """Set `transaction.version` 1 in the block. Connected clients do not notice."""
    _set_version(kafka, FeatureUpdate(1, UpgradeType.SAFE_DOWNGRADE))
    try:
        yield
    finally:
        _set_version(kafka, FeatureUpdate(2))


def _set_version(kafka: LocalKafka, update: FeatureUpdate) -> None:
    address = {"bootstrap.servers": kafka.bootstrap_servers}
    with Admin(address) as admin:
        admin.update_features({FEATURE: update})
    while True:
        # A new connection for each request, since clients request features once per connection.
        with Client(parse_client(address)) as client:
            if speaks_v2(client, "any", client.deadline()) is (update.max_version_level == 2):
                return

"""Set `transaction.version` of a real cluster with UpdateFeatures, which starts no JVM."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from protocol.cluster.call import call
from protocol.cluster.client import Client
from protocol.config import parse_client
from protocol.transaction.coordinator import FEATURE, speaks_v2
from protocol.wire.schema import Api, Array, Field, Route, Struct
from spark_kafka_source.local_kafka import LocalKafka

_UPDATE = Struct(Field("feature", "string"), Field("max_version_level", "int16"), Field("upgrade_type", "int8"))
UPDATE_FEATURES = Api(
    key=57,
    name="UpdateFeatures",
    request=Struct(
        Field("timeout_ms", "int32"), Field("feature_updates", Array(_UPDATE)), Field("validate_only", "bool")
    ),
    response=Struct(
        Field("throttle_time_ms", "int32"),
        Field("error_code", "int16"),
        Field("error_message", "string", nullable_since=0),
        Field(
            "results",
            Array(
                Struct(
                    Field("feature", "string"),
                    Field("error_code", "int16"),
                    Field("error_message", "string", nullable_since=0),
                )
            ),
            until=1,
        ),
    ),
    first=1,
    last=1,
    flexible_since=0,
    route=Route.CONTROLLER,
)
_UPGRADE, _SAFE_DOWNGRADE = 1, 2


@contextmanager
def transactions_before_kip_890(kafka: LocalKafka) -> Iterator[None]:
    """Set `transaction.version` 1 in the block. Connected clients do not notice."""
    set_version(kafka, 1)
    try:
        yield
    finally:
        set_version(kafka, 2)


def set_version(kafka: LocalKafka, version: int) -> None:
    update = {
        "feature": FEATURE,
        "max_version_level": version,
        "upgrade_type": _SAFE_DOWNGRADE if version < 2 else _UPGRADE,
    }
    address = {"bootstrap.servers": kafka.bootstrap_servers}
    with Client(parse_client(address)) as client:
        call(client, UPDATE_FEATURES, {"feature_updates": [update]}, client.deadline())
    while True:
        # A new connection for each request, since clients request features once per connection.
        with Client(parse_client(address)) as client:
            if speaks_v2(client, "any", client.deadline()) is (version == 2):
                return

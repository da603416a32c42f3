"""Convert a refused transaction timeout to an error with the brokers' maximum. Runs in tasks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from protocol.broker_errors import ErrorCode
from protocol.cluster.call import call
from protocol.cluster.client import Client
from protocol.errors import BrokerError, ConfigurationError, KafkaError
from protocol.wire.messages.m32_describe_configs import DESCRIBE_CONFIGS

_MAXIMUM = "transaction.max.timeout.ms"
_BROKER = 4


@contextmanager
def allowed_timeout(client: Client, transaction_timeout_ms: int) -> Iterator[None]:
    """Raise `ConfigurationError` for INVALID_TRANSACTION_TIMEOUT in this block."""
    try:
        yield
    except BrokerError as error:
        if error.code != ErrorCode.INVALID_TRANSACTION_TIMEOUT:
            raise
        raise ConfigurationError(
            f"transaction.timeout.ms is {transaction_timeout_ms}, and brokers allow at most {_maximum_ms(client)} "
            f"({_MAXIMUM}). Lower the one or raise the other; it must be longer than a batch takes.",
            settings=("transaction.timeout.ms",),
        ) from error


def _maximum_ms(client: Client) -> str:
    """Return the maximum of the first broker, if this user may read its configuration."""
    try:
        broker = next(iter(client.brokers().values()))
        resource = {"resource_type": _BROKER, "resource_name": str(broker.node_id), "configuration_keys": [_MAXIMUM]}
        (found,) = call(client, DESCRIBE_CONFIGS, {"resources": [resource]}, client.deadline(), to=broker)["results"]
        return str(found["configs"][0]["value"])
    except (KafkaError, LookupError):
        return "the value in their configuration"

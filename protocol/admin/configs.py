"""Describe and change the configuration of topics, brokers, broker loggers, groups and client metrics.

Runs in the caller's thread. A broker's own configuration is requested from that broker, all others from any broker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, TypeVar

from protocol.admin.resources import Operations, Row, RowsByResource, ask_each, results_or_raise, shares
from protocol.base.clock import Deadline
from protocol.broker_errors import ErrorCode
from protocol.errors import BrokerError, KafkaError, UsageError
from protocol.wire.messages.m32_describe_configs import DESCRIBE_CONFIGS
from protocol.wire.messages.m33_alter_configs import ALTER_CONFIGS, INCREMENTAL_ALTER_CONFIGS
from protocol.wire.messages.m74_list_config_resources import LIST_CONFIG_RESOURCES
from protocol.wire.schema import Api, Body

V = TypeVar("V")


class ConfigResourceType(IntEnum):
    """Kafka's resource types with a configuration, and their numbers on the wire."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigSource(IntEnum):
    """The origin of a configuration value, by Kafka's names and numbers."""

    UNKNOWN = 0
    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6
    DYNAMIC_CLIENT_METRICS_CONFIG = 7
    DYNAMIC_GROUP_CONFIG = 8

    @classmethod
    def _missing_(cls, value: object) -> ConfigSource:
        return cls.UNKNOWN


class AlterConfigOpType(IntEnum):
    """Operations of an incremental change (KIP-339)."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True)
class ConfigResource:
    """A resource with a configuration; the name of a broker is its id, "" for the default of all brokers."""

    type: ConfigResourceType
    name: str

    def __str__(self) -> str:
        return f"{self.type.name.lower().replace('_', ' ')} {self.name or '(default)'}"

    @property
    def broker_id(self) -> int | None:
        """Node id of the broker whose configuration it is, which must receive the request; None for any broker."""
        own = self.type in (ConfigResourceType.BROKER, ConfigResourceType.BROKER_LOGGER) and self.name
        if not own:
            return None
        try:
            return int(self.name)
        except ValueError:
            raise UsageError(f"broker {self.name!r}: pass the node id as a number") from None


@dataclass(frozen=True)
class ConfigEntry:
    """One setting of a resource.

    Attributes
    ----------
    value
        None for a sensitive setting.
    source
        Origin of the value.
    synonyms
        `(name, value, source)` of the settings that could provide the value, in order of precedence; empty unless
        requested.
    type
        Kafka's name of the value's type, such as "LONG"; "" before Kafka 2.6.
    documentation
        None unless requested, and before Kafka 2.6.
    """

    name: str
    value: str | None
    source: ConfigSource
    is_read_only: bool
    is_sensitive: bool
    synonyms: tuple[tuple[str, str | None, ConfigSource], ...] = ()
    type: str = ""
    documentation: str | None = None

    @property
    def is_default(self) -> bool:
        """Return True if no setting overrides Kafka's default."""
        return self.source is ConfigSource.DEFAULT_CONFIG


@dataclass(frozen=True)
class AlterConfigOp:
    """A change of one setting; `value` is the new value, or the list elements to append or subtract."""

    name: str
    value: str | None = None
    operation: AlterConfigOpType = AlterConfigOpType.SET


def topic_resource(name: str) -> ConfigResource:
    """Return the resource of a topic."""
    return ConfigResource(ConfigResourceType.TOPIC, name)


def broker_resource(node_id: int | None = None) -> ConfigResource:
    """Return the resource of a broker; None for the default of all brokers."""
    return ConfigResource(ConfigResourceType.BROKER, "" if node_id is None else str(node_id))


class ConfigOperations(Operations):
    """Configurations of a cluster's resources."""

    def describe_configs(
        self,
        resources: Iterable[ConfigResource],
        *,
        names: Iterable[str] | None = None,
        synonyms: bool = False,
        documentation: bool = False,
        timeout_ms: float | None = None,
    ) -> dict[ConfigResource, dict[str, ConfigEntry]]:
        """Return the settings of resources.

        Parameters
        ----------
        resources
            Topics, brokers, broker loggers, groups or client metrics.
        names
            Settings to return; None for all.
        synonyms
            Also return the settings that could provide each value, in order of precedence.
        documentation
            Also return Kafka's documentation of each setting (since Kafka 2.6).

        Returns
        -------
        dict of ConfigResource to dict of str to ConfigEntry
            The entries by name.

        Raises
        ------
        AdminFailed
            Some resources are unknown or must not be described.
        """
        keys = None if names is None else list(names)
        return self._describe_configs(
            list(resources), self._deadline(timeout_ms), keys, synonyms=synonyms, documentation=documentation
        )

    def _describe_configs(
        self,
        resources: Sequence[ConfigResource],
        deadline: Deadline,
        names: list[str] | None = None,
        *,
        synonyms: bool = False,
        documentation: bool = False,
    ) -> dict[ConfigResource, dict[str, ConfigEntry]]:
        def body(pending: list[ConfigResource]) -> Body:
            fields = {
                "resources": [{**_resource(resource), "configuration_keys": names} for resource in pending],
                "include_synonyms": synonyms,
            }
            return lambda version: {**fields, "include_documentation": documentation} if version >= 3 else fields

        return self._request_by_broker(DESCRIBE_CONFIGS, "results", resources, body, _entries, deadline)

    def incremental_alter_configs(
        self,
        changes: Mapping[ConfigResource, Iterable[AlterConfigOp]],
        *,
        validate_only: bool = False,
        timeout_ms: float | None = None,
    ) -> None:
        """Change single settings: set, delete, append to and subtract from lists (KIP-339, since Kafka 2.3).

        Parameters
        ----------
        validate_only
            Check the request without changing anything.

        Raises
        ------
        AdminFailed
            Some resources were not changed (INVALID_CONFIG, …).
        """
        operations = {resource: list(ops) for resource, ops in changes.items()}

        def body(pending: list[ConfigResource]) -> Body:
            rows = [
                {**_resource(resource), "configs": [_operation(op) for op in operations[resource]]}
                for resource in pending
            ]
            return {"resources": rows, "validate_only": validate_only}

        deadline = self._deadline(timeout_ms)
        self._request_by_broker(
            INCREMENTAL_ALTER_CONFIGS, "responses", operations, body, lambda key, row: None, deadline
        )

    def alter_configs(
        self,
        configs: Mapping[ConfigResource, Mapping[str, str | None]],
        *,
        validate_only: bool = False,
        timeout_ms: float | None = None,
    ) -> None:
        """Replace all settings of resources; settings that are not named return to their defaults.

        Kafka has deprecated this operation. Use `incremental_alter_configs` for single settings.

        Parameters
        ----------
        configs
            The complete settings of each resource.
        validate_only
            Check the request without changing anything.

        Raises
        ------
        AdminFailed
            Some resources were not changed (INVALID_CONFIG, …).
        """

        def body(pending: list[ConfigResource]) -> Body:
            rows = [
                {**_resource(resource), "configs": [{"name": k, "value": v} for k, v in configs[resource].items()]}
                for resource in pending
            ]
            return {"resources": rows, "validate_only": validate_only}

        self._request_by_broker(
            ALTER_CONFIGS, "responses", configs, body, lambda key, row: None, self._deadline(timeout_ms)
        )

    def list_config_resources(
        self, types: Iterable[ConfigResourceType] = (), *, timeout_ms: float | None = None
    ) -> list[ConfigResource]:
        """Return the resources that have a configuration (KIP-1142, since Kafka 4.1), sorted by type and name.

        Parameters
        ----------
        types
            Types to include; empty for all.

        Raises
        ------
        UnsupportedVersion
            The broker is older than Kafka 4.1.
        """
        body = {"resource_types": [int(kind) for kind in types]}
        reply = self._ask(LIST_CONFIG_RESOURCES, body, self._deadline(timeout_ms), at_least=1)
        resources = [
            ConfigResource(ConfigResourceType(row["resource_type"]), row["resource_name"])
            for row in reply["config_resources"]
        ]
        return sorted(resources, key=lambda resource: (resource.type, resource.name))

    def _request_by_broker(
        self,
        api: Api,
        rows: str,
        resources: Iterable[ConfigResource],
        body: Callable[[list[ConfigResource]], Body],
        result: Callable[[ConfigResource, Row], V],
        deadline: Deadline,
    ) -> dict[ConfigResource, V]:
        """Send one request per broker that has to handle some of the resources."""
        by_broker: dict[int | None, list[ConfigResource]] = {}
        for resource in resources:
            by_broker.setdefault(resource.broker_id, []).append(resource)
        node_ids = [node_id for node_id in by_broker if node_id is not None]
        brokers = {broker.node_id: broker for broker in self._brokers(node_ids, deadline)} if node_ids else {}
        results: dict[ConfigResource, V] = {}
        errors: dict[ConfigResource, KafkaError] = {}
        for node_id, share in shares(by_broker, deadline):
            try:
                done: RowsByResource[ConfigResource] = ask_each(
                    self._client,
                    api,
                    by_broker[node_id],
                    body,
                    lambda reply, _: ((_resource_of(row), row) for row in reply[rows]),
                    share,
                    to=None if node_id is None else brokers[node_id],
                    error_context=_error_context,
                )
            except KafkaError as error:
                if len(by_broker) == 1:
                    raise
                errors.update(dict.fromkeys(by_broker[node_id], error))
            else:
                results.update({key: result(key, row) for key, row in done.items()})
                errors.update((key, _with_version(key, error)) for key, error in done.errors.items())
        return results_or_raise(api.name, results, errors)


def _resource(resource: ConfigResource) -> dict[str, Any]:
    return {"resource_type": int(resource.type), "resource_name": resource.name}


def _resource_of(row: Row) -> ConfigResource:
    return ConfigResource(ConfigResourceType(row["resource_type"]), row["resource_name"])


def _error_context(resource: ConfigResource) -> dict[str, Any]:
    return {"topic" if resource.type is ConfigResourceType.TOPIC else "resource": resource.name}


def _with_version(resource: ConfigResource, error: KafkaError) -> KafkaError:
    """Name the first version with settings of this type: older brokers call the request malformed."""
    since = _SINCE.get(resource.type)
    if since is None or not isinstance(error, BrokerError) or error.code != ErrorCode.INVALID_REQUEST:
        return error
    return type(error)(f"{error}. Kafka has settings of this type of resource since {since}", **error.context)


def _operation(change: AlterConfigOp) -> dict[str, Any]:
    return {"name": change.name, "config_operation": int(change.operation), "value": change.value}


def _entries(resource: ConfigResource, row: Row) -> dict[str, ConfigEntry]:
    return {
        config["name"]: ConfigEntry(
            config["name"],
            config["value"],
            ConfigSource(config["config_source"]),
            config["read_only"],
            config["is_sensitive"],
            tuple(
                (synonym["name"], synonym["value"], ConfigSource(synonym["source"])) for synonym in config["synonyms"]
            ),
            _TYPES.get(config["config_type"], ""),
            config["documentation"] or None,
        )
        for config in row["configs"]
    }


_SINCE = {ConfigResourceType.CLIENT_METRICS: "3.7", ConfigResourceType.GROUP: "4.0"}
_TYPES = {1: "BOOLEAN", 2: "STRING", 3: "INT", 4: "SHORT", 5: "LONG", 6: "DOUBLE", 7: "LIST", 8: "CLASS", 9: "PASSWORD"}

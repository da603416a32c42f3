"""A client of a schema registry: the REST interface of Confluent's registry, which Apicurio and Redpanda have, too.

Schemas never change under their id, so each is fetched once per process. Runs on the driver (a subject's version) and
on executors (the schemas of records).

Source: Confluent's Schema Registry API reference.
"""

from __future__ import annotations

import base64
import copy
import json
import logging
import ssl
import urllib.parse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from protocol.base.clock import SYSTEM_CLOCK, Backoff, Clock, Deadline
from protocol.base.condition import Event, Lock, locked
from protocol.errors import AuthenticationFailed, ConfigurationError, ConnectFailed, KafkaError, RegistryFailed
from protocol.net.http_exchange import TRANSIENT_STATUS, exchange
from protocol.net.tls_context import TLSContext
from protocol.net.token_endpoint import ask_endpoint
from protocol.sasl.config import NO_SASL
from protocol.sasl.credentials import TokenEndpoint
from protocol.schemas.registry_config import OAUTH, PREFIX, RegistryConfig
from protocol.schemas.rules import Rule, parse_rules
from protocol.settings.config_providers import resolve_references
from protocol.settings.property_kinds import parse_url, shown_url
from protocol.settings.secret import Secret, hide_variables

log = logging.getLogger(__name__)

T = TypeVar("T")

_MEDIA_TYPE = "application/vnd.schemaregistry.v1+json"
_MAX_BYTES = 16 << 20
_MAX_REFERENCES = 1_000
_MAX_REFERENCE_DEPTH = 50
# An unknown id is requested again after this time: the registry may lag behind a producer that has just registered it.
_UNKNOWN_S = 10.0
# Hostile values may name any number of ids.
_MAX_UNKNOWN = 1_000
_TOKEN_SHARE = 0.8
_TOKEN_S = 300.0
NOT_FOUND = 404
# Error codes of Confluent's registry: no such subject, version of it, or schema. AWS Glue's errors have them, too.
NO_SUBJECT, NO_VERSION, NO_SCHEMA = 40401, 40402, 40403


@dataclass(frozen=True)
class SchemaReference:
    """Another schema that a schema uses: `name` as written in it, registered as a version of a subject."""

    name: str
    subject: str
    version: int


@dataclass(frozen=True)
class RegisteredSchema:
    """A schema in a registry.

    `text`: the schema; for Protobuf a `.proto` file.
    `kind`: "AVRO", "PROTOBUF" or "JSON"; empty if it is not known.
    `guid`: Confluent's globally unique id, if the registry has it, or AWS Glue's id of the version.
    `version`: set if the schema was requested by subject.
    `rules`: the enabled rules of its data contract.
    """

    text: str
    kind: str = "AVRO"
    schema_id: int | None = None
    guid: str | None = None
    subject: str | None = None
    version: int | None = None
    references: tuple[SchemaReference, ...] = ()
    rules: tuple[Rule, ...] = ()


@dataclass
class _Token:
    text: Secret
    renew_at_s: float


@dataclass
class _Unknown:
    error: RegistryFailed
    until_s: float


@dataclass
class _Pending:
    """A request for a schema by one thread. Other threads wait for `done`, then for its result in the cache."""

    done: Event = field(default_factory=Event)
    error: KafkaError | None = None


class SchemaRegistry:
    """A client of one registry. Thread-safe: one request per schema at a time; no lock is held during a request."""

    def __init__(self, config: RegistryConfig, clock: Clock = SYSTEM_CLOCK) -> None:
        self.config = config
        self._clock = clock
        self._tls = TLSContext(config.tls)
        self._lock = Lock()
        self._schemas: dict[int | str, RegisteredSchema] = {}  # by id or GUID
        self._unknown: dict[int | str, _Unknown] = {}  # by the same
        self._pending: dict[int | str, _Pending] = {}  # by the same
        self._token_lock = Lock()
        self._versions: dict[tuple[str, int], RegisteredSchema] = {}
        self._token: _Token | None = None

    # -- schemas ------------------------------------------------------------------------------

    def by_id(self, schema_id: int) -> RegisteredSchema:
        """Return the schema with an id.

        Raises `RegistryFailed`: there is none, or the registry refused or did not respond.
        """
        subject = f"the schema with the id {schema_id}"
        path = f"/schemas/ids/{schema_id}"
        return self._cached(schema_id, subject, lambda: _schema(self._request("GET", path, subject), schema_id))

    def by_guid(self, guid: str) -> RegisteredSchema:
        """Return the schema with a globally unique id. Raises `RegistryFailed`."""
        subject = f"the schema {guid}"
        path = f"/schemas/guids/{urllib.parse.quote(guid)}"
        return self._cached(guid, subject, lambda: _schema(self._request("GET", path, subject)))

    def version(self, subject: str, version: int | None = None, *, deleted: bool = False) -> RegisteredSchema:
        """Return a version of a subject; None: the latest one, which is always requested. Raises `RegistryFailed`.

        `deleted`: also one that is soft-deleted.
        """
        if version is not None and (cached := self._versions.get((subject, version))):
            return cached
        schema = self._version(subject, version, deleted=deleted)
        if schema.version is not None:
            self._versions[subject, schema.version] = schema
        return schema

    def _version(self, subject: str, version: int | None, *, deleted: bool) -> RegisteredSchema:
        number = "latest" if version is None else version
        path = f"/subjects/{_quoted(subject)}/versions/{number}{'?deleted=true' if deleted else ''}"
        return _schema(self._request("GET", path, f"version {number} of the subject {subject}"))

    def references(self, schema: RegisteredSchema) -> dict[str, RegisteredSchema]:
        """Return the schemas that a schema uses, by name, in the order of their dependencies."""
        schemas: dict[str, RegisteredSchema] = {}
        begun: set[str] = set()

        def add(references: tuple[SchemaReference, ...], depth: int) -> None:
            for reference in references:
                if reference.name in begun:
                    continue
                begun.add(reference.name)
                if len(begun) > _MAX_REFERENCES or depth > _MAX_REFERENCE_DEPTH:
                    limits = f"{_MAX_REFERENCES} others, or {_MAX_REFERENCE_DEPTH} inside each other"
                    raise RegistryFailed(f"a schema uses more than {limits}")
                # The schema of an old record may refer to a version that is deleted since.
                schema = self.version(reference.subject, reference.version, deleted=True)
                add(schema.references, depth + 1)
                schemas[reference.name] = schema

        add(schema.references, 1)
        return schemas

    def subjects(self) -> list[str]:
        """Return the names of all subjects. Raises `RegistryFailed`."""
        return _list_of(str, self._request("GET", "/subjects", "the subjects"), "the subjects")

    def versions(self, subject: str) -> list[int]:
        """Return the versions of a subject. Raises `RegistryFailed`."""
        requested = f"the subject {subject}"
        return _list_of(int, self._request("GET", f"/subjects/{_quoted(subject)}/versions", requested), requested)

    def lookup(self, subject: str, schema: RegisteredSchema, *, normalize: bool = False) -> RegisteredSchema:
        """Return the registered version of a schema. Raises `RegistryFailed` if the subject does not have it."""
        path = f"/subjects/{_quoted(subject)}{'?normalize=true' if normalize else ''}"
        return _schema(self._request("POST", path, f"the schema in the subject {subject}", _body(schema)))

    def register(self, subject: str, schema: RegisteredSchema, *, normalize: bool = False) -> int:
        """Register a schema as the next version of a subject, if the subject does not have it; return its id.

        Raises `RegistryFailed`: the schema is not compatible with the versions before, or the registry refused or did
        not respond.
        """
        path = f"/subjects/{_quoted(subject)}/versions{'?normalize=true' if normalize else ''}"
        requested = f"a new version of the subject {subject}"
        return _field(int, self._request("POST", path, requested, _body(schema)), "id", requested)

    def compatible(self, subject: str, schema: RegisteredSchema) -> tuple[bool, list[str]]:
        """Return whether a schema may be registered as the next version of a subject, and the reasons if not."""
        path = f"/compatibility/subjects/{_quoted(subject)}/versions?verbose=true"
        requested = f"the compatibility with the subject {subject}"
        response = self._request("POST", path, requested, _body(schema))
        is_compatible = _field(bool, response, "is_compatible", requested)
        messages = response.get("messages")
        if not isinstance(messages, list):
            messages = [response["reason"]] if response.get("reason") else []  # of Apicurio
        return is_compatible, [str(message) for message in messages]

    def _cached(self, key: int | str, subject: str, request: Callable[[], RegisteredSchema]) -> RegisteredSchema:
        deadline = Deadline.after_ms(self._longest_request_ms())
        while True:
            with self._lock:
                cached = self._schemas.get(key)
                if cached is not None:
                    return cached
                unknown = self._unknown.get(key)
                if unknown is not None and unknown.until_s > self._clock.now_s():
                    raise copy.copy(unknown.error)
                pending = self._pending.get(key)
                if pending is None:
                    own_pending = self._pending[key] = _Pending()
                    break
            if not pending.done.wait(deadline.remaining_s()):
                raise self._no_response(subject, "another thread is still waiting for it")
            if pending.error is not None:
                raise copy.copy(pending.error)
        try:
            schema = request()
            with self._lock:
                self._schemas[key] = schema
                self._unknown.pop(key, None)
            return schema
        except KafkaError as error:
            # A copy has no traceback, whose frames would keep the callers' batches.
            own_pending.error = copy.copy(error)
            if isinstance(error, RegistryFailed) and is_unknown(error):
                with self._lock:
                    self._unknown.pop(key, None)
                    while len(self._unknown) >= _MAX_UNKNOWN:
                        del self._unknown[next(iter(self._unknown))]
                    self._unknown[key] = _Unknown(copy.copy(error), self._clock.now_s() + _UNKNOWN_S)
            raise
        finally:
            with self._lock:
                del self._pending[key]
            own_pending.done.set()

    def _longest_request_ms(self) -> int:
        """Return the time after which `_request` has failed at all addresses."""
        config = self.config
        tries = (config.max_retries + 1) * max(1, len(config.url)) * config.request_timeout_ms
        return tries + 2 * config.max_retries * config.retries_max_wait_ms  # twice: more than the jitter

    # -- requests -----------------------------------------------------------------------------

    def _request(self, method: str, path: str, subject: str, body: Mapping[str, Any] | None = None) -> Any:
        """Send a request to the first address that responds; repeat it after a passing failure."""
        backoff = Backoff(self.config.retries_wait_ms, self.config.retries_max_wait_ms)
        text = None if body is None else json.dumps(body)
        for attempt in range(self.config.max_retries + 1):
            if attempt:
                self._clock.sleep_s(backoff.next_s())
            failure = "no address"
            for address in self.config.url:
                url = parse_url(address + path)
                if url is None:
                    raise ConfigurationError(f"{PREFIX}url has an invalid address", settings=(f"{PREFIX}url",))
                try:
                    status, received = self._exchange(url, method, text)
                except ConnectFailed as error:
                    reason = str(error)
                    failure = reason if reason.startswith(url.netloc) else f"{shown_url(url)}: {reason}"
                    continue
                if status not in TRANSIENT_STATUS:
                    return self._parse_response(url, status, received, subject)
                failure = f"{shown_url(url)}: status {status}"
            if attempt < self.config.max_retries:
                log.warning("the schema registry does not respond, the request will be repeated: %s", failure)
        raise self._no_response(subject, failure)

    def _no_response(self, subject: str, reason: str) -> RegistryFailed:
        names = f"{PREFIX}url", f"{PREFIX}request.timeout.ms"
        return RegistryFailed(
            f"the schema registry does not respond to the request for {subject}: {reason}. Check {names[0]}; a "
            f"registry that is slow may need a higher {names[1]}, which is {self.config.request_timeout_ms}",
            settings=names,
        )

    @hide_variables
    def _exchange(self, url: urllib.parse.SplitResult, method: str, text: str | None) -> tuple[int, bytes]:
        deadline = Deadline.after_ms(self.config.request_timeout_ms, self._clock)
        headers = {"Accept": f"{_MEDIA_TYPE}, application/json", **self._authorization(deadline)}
        if text is not None:
            headers["Content-Type"] = _MEDIA_TYPE
        try:
            return exchange(url, method, headers, text, deadline, context=self._tls.current, max_bytes=_MAX_BYTES)
        except ssl.SSLCertVerificationError as error:
            raise RegistryFailed(
                f"the certificate of the schema registry {shown_url(url)} is not trusted: {error.verify_message}",
                settings=(f"{PREFIX}ssl.truststore.location",),
            ) from error

    def _parse_response(self, url: urllib.parse.SplitResult, status: int, received: bytes, subject: str) -> Any:
        try:
            body = json.loads(received)
        except (ValueError, RecursionError):
            body = None
        if status in (200, 201) and body is not None:
            return body
        code, message = (body.get("error_code"), body.get("message")) if isinstance(body, dict) else (None, None)
        detail = f": {str(message)[:500].rstrip('.')}" if message else ""
        hint = f"; check {PREFIX}basic.auth.user.info or the token" if status in (401, 403) else ""
        if (code is None or code == status == NOT_FOUND) and not hint:
            # An error of HTTP, not of a registry.
            hint = f"; check the address in {PREFIX}url"
        raise RegistryFailed(
            f"the schema registry {shown_url(url)} refuses the request for {subject} with the status {status}"
            f"{f' (error code {code})' if code not in (None, status) else ''}{detail}{hint}",
            status=status,
            error_code=code,
        )

    @hide_variables
    def _authorization(self, deadline: Deadline) -> dict[str, str]:
        config = self.config
        if config.basic_auth_user_info is not None:
            pair = _resolved("basic.auth.user.info", config.basic_auth_user_info).encode()
            return {"Authorization": f"Basic {base64.b64encode(pair).decode()}"}
        values: dict[str, tuple[str | None, str]] = {
            "target-sr-cluster": (config.bearer_auth_logical_cluster, "bearer.auth.logical.cluster"),
            "Confluent-Identity-Pool-Id": (config.bearer_auth_identity_pool_id, "bearer.auth.identity.pool.id"),
        }
        if config.bearer_auth_source == "OAUTHBEARER":
            token = self._oauth_token(deadline).reveal()
            values["Authorization"] = f"Bearer {token}", "bearer.auth.issuer.endpoint.url"
        elif config.bearer_auth_token is not None:
            name = "bearer.auth.token"
            values["Authorization"] = f"Bearer {_resolved(name, config.bearer_auth_token).strip()}", name
        headers = {header: value for header, (value, _) in values.items() if value is not None}
        for header, value in headers.items():
            if not (value.isascii() and value.isprintable()):  # `http.client` would show it in its error
                name = PREFIX + values[header][1]
                raise ConfigurationError(
                    f"{name} gives a value that has a line break or another character that a header of HTTP cannot "
                    "have; the value is not shown",
                    settings=(name,),
                )
        return headers

    @hide_variables
    def _oauth_token(self, deadline: Deadline) -> Secret:
        cached = self._token
        if cached is not None and cached.renew_at_s > self._clock.now_s():
            return cached.text

        def renewed(free: bool) -> _Token:
            if not free:
                raise ConnectFailed("the token endpoint has not yet responded to another thread")
            token = self._token
            if token is None or token is cached:
                token = self._token = self._new_token(deadline)
            return token

        return locked(self._token_lock, deadline.remaining_s(), renewed).text

    @hide_variables
    def _new_token(self, deadline: Deadline) -> _Token:
        config = self.config
        assert config.bearer_auth_issuer_endpoint_url
        assert config.bearer_auth_client_id
        assert config.bearer_auth_client_secret is not None
        settings = tuple(PREFIX + name for name in OAUTH)
        url = resolve_references(config.bearer_auth_issuer_endpoint_url)
        if parse_url(url) is None:
            raise ConfigurationError(f"{settings[0]} is neither http://… nor https://….", settings=settings)
        source = TokenEndpoint(
            url,
            Secret(resolve_references(config.bearer_auth_client_id)),
            Secret(_resolved("bearer.auth.client.secret", config.bearer_auth_client_secret)),
            config.bearer_auth_scope,
        )
        now_s = self._clock.now_s()
        try:
            text, lifetime_s = ask_endpoint(source, NO_SASL, deadline)
        except AuthenticationFailed as error:  # with the names of Kafka's properties
            raise RegistryFailed(f"{settings[0]}: {error.message}", settings=settings) from None
        return _Token(Secret(text), now_s + _TOKEN_SHARE * (lifetime_s or _TOKEN_S))


def is_unknown(error: RegistryFailed) -> bool:
    """Return True if the registry does not have the schema or subject; False for a 404 of another server."""
    status, code = error.context.get("status"), error.context.get("error_code")
    return status == NOT_FOUND and code not in (None, NOT_FOUND)


@hide_variables
def _resolved(name: str, secret: Secret) -> str:
    try:
        return resolve_references(secret.reveal())
    except ConfigurationError as error:
        raise ConfigurationError(f"{PREFIX}{name}: {error}", settings=(f"{PREFIX}{name}",)) from None


def _quoted(subject: str) -> str:
    return urllib.parse.quote(subject, safe="")


def _body(schema: RegisteredSchema) -> dict[str, Any]:
    references = [
        {"name": reference.name, "subject": reference.subject, "version": reference.version}
        for reference in schema.references
    ]
    kind = {} if schema.kind == "AVRO" else {"schemaType": schema.kind}
    return {"schema": schema.text, **kind, **({"references": references} if references else {})}


def _list_of(kind: type[T], document: Any, requested: str) -> list[T]:
    if not isinstance(document, list) or any(type(member) is not kind for member in document):
        raise _unexpected(requested)
    return document


def _field(kind: type[T], document: Any, name: str, requested: str) -> T:
    value = document.get(name) if isinstance(document, dict) else None
    if type(value) is not kind:
        raise _unexpected(requested)
    return value


def _unexpected(requested: str) -> RegistryFailed:
    return RegistryFailed(
        f"the response to the request for {requested} is not one of a schema registry; check {PREFIX}url",
        settings=(f"{PREFIX}url",),
    )


def _number(document: Any, name: str) -> int | None:
    number = document.get(name)
    if number is not None and type(number) is not int:
        raise ValueError(name)
    return number


def _text(document: Any, name: str) -> str | None:
    text = document.get(name)
    return None if text is None else str(text)


def _schema(document: Any, schema_id: int | None = None) -> RegisteredSchema:
    try:
        references = tuple(
            SchemaReference(str(reference["name"]), str(reference["subject"]), int(reference["version"]))
            for reference in document.get("references") or ()
        )
        return RegisteredSchema(
            str(document["schema"]),
            str(document.get("schemaType") or "AVRO").upper(),
            _number(document, "id") if schema_id is None else schema_id,
            _text(document, "guid"),
            _text(document, "subject"),
            _number(document, "version"),
            references,
            parse_rules(document.get("ruleSet")),
        )
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError):
        raise RegistryFailed("the response of the schema registry has no schema") from None

"""A schema registry in this process, for tests and trials: the REST interface of Confluent's registry over HTTP.

It keeps schemas in memory, checks their compatibility, and can be stopped, or refuse requests, on demand.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import threading
import urllib.parse
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from protocol.errors import ConfigurationError
from protocol.schemas.registry import NO_SCHEMA, NO_SUBJECT, NO_VERSION
from protocol.testing.schema_compatibility import KINDS, Texts, check_valid, differences

_INVALID_SCHEMA, _INCOMPATIBLE = 42201, 409
_LEVELS = ("NONE", "BACKWARD", "BACKWARD_TRANSITIVE", "FORWARD", "FORWARD_TRANSITIVE", "FULL", "FULL_TRANSITIVE")


@dataclass
class _Stored:
    schema_id: int
    body: dict[str, Any]
    guid: str


@dataclass
class _Subject:
    versions: dict[int, _Stored] = field(default_factory=dict)
    compatibility: str | None = None


class _Refused(Exception):
    def __init__(self, status: int, code: int, message: str) -> None:
        self.status = status
        self.body = {"error_code": code, "message": message}


class FakeSchemaRegistry:
    """A schema registry on the loopback address.

    A new version is refused if this project's readers could not read values across the versions; see docs/testing.md.

    Parameters
    ----------
    compatibility : str
        The level for subjects without their own, such as "BACKWARD".
    user_info : str, optional
        `user:password` that requests must have.
    port : int
        0: a free one.
    compare : callable, optional
        Another comparison. It gets the type (AVRO, PROTOBUF or JSON), the schema of the values and the schema to read
        them with, and returns the reasons why they cannot be read. Each schema is its text and the texts that it refers
        to, by name. For FORWARD the two are exchanged.

    Attributes
    ----------
    requests : list of str
        Method and path of each request that was received.

    Examples
    --------
    >>> with FakeSchemaRegistry() as registry:
    ...     registry.register("orders-value", '"string"')
    1
    """

    def __init__(
        self,
        compatibility: str = "BACKWARD",
        user_info: str | None = None,
        *,
        port: int = 0,
        compare: Callable[[str, Texts, Texts], Sequence[str]] = differences,
    ) -> None:
        self.requests: list[str] = []
        self._compatibility = compatibility
        self._compare = compare
        self._authorization = None if user_info is None else "Basic " + base64.b64encode(user_info.encode()).decode()
        self._lock = threading.RLock()
        self._subjects: dict[str, _Subject] = {}
        self._schemas: dict[str, _Stored] = {}
        self._refusals: list[int] = []
        self._port = port
        self._server: ThreadingHTTPServer | None = None
        self.start()

    def __enter__(self) -> FakeSchemaRegistry:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """The address for `schema.registry.url`."""
        return f"http://127.0.0.1:{self._port}"

    # -- controls -----------------------------------------------------------------------------

    def start(self) -> None:
        """Listen; after `stop` on the same port, with the same schemas."""
        if self._server is not None:
            return
        registry = self

        class Handler(_Handler):
            def do_any(self) -> tuple[int, Any]:
                return registry._handle(self)

        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), Handler)
        self._server.daemon_threads = True
        self._port = self._server.server_port
        serve = self._server.serve_forever
        threading.Thread(target=serve, kwargs={"poll_interval": 0.01}, name="schema registry", daemon=True).start()

    def stop(self) -> None:
        """Stop listening: clients cannot connect. The schemas stay."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def fail_next(self, status: int, times: int = 1) -> None:
        """Answer the next requests with this HTTP status."""
        self._refusals += [status] * times

    def register(
        self,
        subject: str,
        schema: str,
        kind: str = "AVRO",
        references: list[dict[str, Any]] | None = None,
        rule_set: dict[str, Any] | None = None,
    ) -> int:
        """Register a schema as `POST /subjects/SUBJECT/versions` does, without a check; return its id.

        `rule_set` is the `ruleSet` of a data contract. None: the rules of the latest version; {}: no rules.
        """
        body = {"schema": schema, "schemaType": kind, "references": references or [], "ruleSet": rule_set}
        with self._lock:
            return self._register(subject, body)[1].schema_id

    # -- requests -----------------------------------------------------------------------------

    def _handle(self, request: _Handler) -> tuple[int, Any]:
        url = urllib.parse.urlsplit(request.path)
        path = [urllib.parse.unquote(part) for part in url.path.strip("/").split("/")]
        query = dict(urllib.parse.parse_qsl(url.query))
        self.requests.append(f"{request.command} {request.path}")
        if self._refusals:
            status = self._refusals.pop(0)
            return status, {"error_code": status, "message": "told to fail"}
        if self._authorization is not None and request.headers.get("Authorization") != self._authorization:
            return 401, {"error_code": 401, "message": "Unauthorized"}
        with self._lock:
            try:
                return 200, self._route(request.command, path, query, request.body)
            except _Refused as refused:
                return refused.status, refused.body

    def _route(self, method: str, path: list[str], query: dict[str, str], body: dict[str, Any]) -> Any:
        routes: dict[tuple[Any, ...], Callable[..., Any]] = {
            ("GET", "subjects"): lambda: sorted(name for name, subject in self._subjects.items() if subject.versions),
            ("GET", "subjects", None, "versions"): lambda name: sorted(self._subject(name).versions),
            ("GET", "subjects", None, "versions", None): lambda name, at: self._version(name, at, query),
            ("GET", "subjects", None, "versions", None, "schema"): lambda name, at: self._text(name, at),
            ("POST", "subjects", None): lambda name: self._lookup(name, body),
            ("POST", "subjects", None, "versions"): lambda name: self._register_checked(name, body),
            ("DELETE", "subjects", None): self._delete,
            ("GET", "schemas", "ids", None): lambda number: self._by("schema_id", number, query),
            ("GET", "schemas", "guids", None): lambda guid: self._by("guid", guid, query),
            ("GET", "schemas", "ids", None, "versions"): self._places,
            ("POST", "compatibility", "subjects", None, "versions"): lambda name: self._compatible(name, "", body),
            ("POST", "compatibility", "subjects", None, "versions", None): lambda name, at: self._compatible(
                name, at, body
            ),
            ("GET", "config"): lambda: {"compatibilityLevel": self._compatibility},
            ("GET", "config", None): lambda name: {"compatibilityLevel": self._level(name)},
            ("PUT", "config", None): lambda name: self._set_level(name, body),
        }
        for (verb, *pattern), handle in routes.items():
            if (
                verb == method
                and len(pattern) == len(path)
                and all(a in (None, b) for a, b in zip(pattern, path, strict=True))
            ):
                return handle(*(b for a, b in zip(pattern, path, strict=True) if a is None))
        raise _Refused(404, 404, "HTTP 404 Not Found")

    def _subject(self, name: str) -> _Subject:
        subject = self._subjects.get(name)
        if subject is None or not subject.versions:  # it may have a level of compatibility alone
            raise _Refused(404, NO_SUBJECT, f"Subject '{name}' not found.")
        return subject

    def _delete(self, name: str) -> list[int]:
        versions = sorted(self._subject(name).versions)
        del self._subjects[name]
        return versions

    def _version(self, name: str, version: str, query: dict[str, str]) -> dict[str, Any]:
        versions = self._subject(name).versions
        number = max(versions) if version in ("latest", "-1") else int(version) if version.isdigit() else 0
        if number not in versions:
            raise _Refused(404, NO_VERSION, f"Version {version} not found.")
        stored = versions[number]
        return {"subject": name, "version": number, "id": stored.schema_id, **_body_of(stored, query)}

    def _text(self, name: str, version: str) -> Any:
        text = self._version(name, version, {})["schema"]
        try:
            return json.loads(text)
        except ValueError:
            return text

    def _by(self, field: str, text: str, query: dict[str, str]) -> dict[str, Any]:
        for stored in self._schemas.values():
            if str(getattr(stored, field)) == text:
                return _body_of(stored, query)
        raise _Refused(404, NO_SCHEMA, f"Schema {text} not found")

    def _places(self, number: str) -> list[dict[str, Any]]:
        return [
            {"subject": name, "version": version}
            for name, subject in self._subjects.items()
            for version, stored in subject.versions.items()
            if str(stored.schema_id) == number
        ]

    def _lookup(self, name: str, body: dict[str, Any]) -> dict[str, Any]:
        versions = self._subject(name).versions
        for same in (_key(body), _key(self._with_rules(name, body))):
            for version, stored in versions.items():
                if _key(stored.body) == same:
                    return self._version(name, str(version), {})
        raise _Refused(404, NO_SCHEMA, "Schema not found")

    def _register_checked(self, name: str, body: dict[str, Any]) -> dict[str, Any]:
        versions = self._subjects.get(name, _Subject()).versions
        if self._schemas.get(_key(self._with_rules(name, body))) not in versions.values():
            answer = self._compatible(name, "", body)
            if not answer["is_compatible"]:
                reasons = "; ".join(map(str, answer["messages"]))
                raise _Refused(
                    409, _INCOMPATIBLE, f"Schema being registered is incompatible with an earlier schema: {reasons}"
                )
        version, stored = self._register(name, body)
        return {"id": stored.schema_id, "version": version, "guid": stored.guid, **stored.body}

    def _with_rules(self, name: str, body: dict[str, Any]) -> dict[str, Any]:
        """Return a schema with the rules of the subject's latest version, unless it has a `ruleSet`."""
        versions = self._subjects.get(name, _Subject()).versions
        if body.get("ruleSet") is not None or not versions:
            return body
        return {**body, "ruleSet": versions[max(versions)].body.get("ruleSet")}

    def _register(self, name: str, body: dict[str, Any]) -> tuple[int, _Stored]:
        body = self._with_rules(name, body)
        key = _key(body)
        if key not in self._schemas:
            guid = str(uuid.UUID(bytes=hashlib.md5(key.encode(), usedforsecurity=False).digest()))
            self._schemas[key] = _Stored(len(self._schemas) + 1, body, guid)
        stored = self._schemas[key]
        versions = self._subjects.setdefault(name, _Subject()).versions
        for version, former in versions.items():
            if former is stored:
                return version, stored
        version = max(versions, default=0) + 1
        versions[version] = stored
        return version, stored

    # -- compatibility ------------------------------------------------------------------------

    def _level(self, name: str) -> str:
        return (self._subjects.get(name) or _Subject()).compatibility or self._compatibility

    def _set_level(self, name: str, body: dict[str, Any]) -> dict[str, Any]:
        level = body.get("compatibility")
        if level not in _LEVELS:
            raise _Refused(422, 42203, "Invalid compatibility level.")
        self._subjects.setdefault(name, _Subject()).compatibility = level
        return {"compatibility": level}

    def _valid(self, body: dict[str, Any]) -> None:
        if _kind(body) not in KINDS:
            raise _Refused(422, _INVALID_SCHEMA, f"Invalid schema type {_kind(body)}")
        try:
            check_valid(_kind(body), self._texts(body))
        except (ConfigurationError, KeyError) as error:
            raise _Refused(422, _INVALID_SCHEMA, f"Invalid schema: {error}") from None

    def _compatible(self, name: str, at: str, body: dict[str, Any]) -> dict[str, Any]:
        """Compare a schema with the version `at` alone; with "", with those that the level says."""
        level, versions = self._level(name), self._subjects.get(name, _Subject()).versions
        self._valid(body)
        at = str(max(versions, default="")) if at in ("latest", "-1") else at
        if at and at not in map(str, versions):
            raise _Refused(404, NO_VERSION, f"Version {at} not found.")
        if level == "NONE" or not versions:
            return {"is_compatible": True, "messages": []}
        every = level.endswith("TRANSITIVE") and not at
        checked = list(versions.values()) if every else [versions[int(at or max(versions))]]
        messages: list[str] = []
        new = self._texts(body)
        for stored in checked:
            if _kind(stored.body) != _kind(body):
                messages.append(f"the type of the schema changes from {_kind(stored.body)} to {_kind(body)}")
                continue
            old = self._texts(stored.body)
            pairs = {"B": [(old, new)], "F": [(new, old)] if level.startswith("FO") else [(old, new), (new, old)]}
            for writer, reader in pairs[level[0]]:
                messages += self._compare(_kind(body), writer, reader)
        return {"is_compatible": not messages, "messages": messages}

    def _texts(self, body: dict[str, Any]) -> Texts:
        """Return the text of a schema, and the schemas that it refers to."""
        texts: dict[str, str] = {}

        def add(references: list[dict[str, Any]]) -> None:
            for reference in references:
                version = self._version(reference["subject"], str(reference["version"]), {})
                add(version.get("references") or [])
                texts.setdefault(reference["name"], version["schema"])

        add(body.get("references") or [])
        return str(body["schema"]), texts


def _kind(body: dict[str, Any]) -> str:
    return str(body.get("schemaType") or "AVRO").upper()


def _key(body: dict[str, Any]) -> str:
    text = str(body.get("schema"))
    with contextlib.suppress(ValueError):
        text = json.dumps(json.loads(text)) if _kind(body) != "PROTOBUF" else text
    rules = {name: value for name, value in (body.get("ruleSet") or {}).items() if value}
    return json.dumps([_kind(body), text, body.get("references") or [], rules], sort_keys=True)


def _body_of(stored: _Stored, query: dict[str, str]) -> dict[str, Any]:
    kind, text = _kind(stored.body), str(stored.body["schema"])
    if kind == "PROTOBUF" and query.get("format") == "serialized" and not _is_base64(text):
        raise _Refused(
            422, _INVALID_SCHEMA, "this registry serves a Protobuf descriptor only if it was registered as one"
        )
    references, rule_set = stored.body.get("references"), stored.body.get("ruleSet")
    return {
        "schema": text,
        "guid": stored.guid,
        **({"schemaType": kind} if kind != "AVRO" else {}),
        **({"references": references} if references else {}),
        **({"ruleSet": rule_set} if rule_set else {}),
    }


def _is_base64(text: str) -> bool:
    try:
        return bool(base64.b64decode(text, validate=True))
    except ValueError:
        return False


class _Handler(BaseHTTPRequestHandler):
    """One request; `do_any` returns the status and the body of the response."""

    body: dict[str, Any]
    timeout = 30

    def do_any(self) -> tuple[int, Any]:
        raise NotImplementedError

    def _serve(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        try:
            self.body = json.loads(self.rfile.read(length) or b"{}")
        except ValueError:
            self.body = {}
        status, answer = self.do_any()
        encoded = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        self.send_header("Content-Length", str(len(encoded)))
        self.end_headers()
        with contextlib.suppress(ConnectionError):  # a client that no longer waits
            self.wfile.write(encoded)

    do_GET = do_POST = do_PUT = do_DELETE = _serve  # noqa: N815

    def log_message(self, *_: object) -> None:
        """Print nothing."""

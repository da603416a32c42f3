"""AWS Glue's schema registry: the header of its values, and its client.

A value has a byte 3, a byte for its compression, the 16 bytes of its schema's version id, and the payload.

Source: `SerializationDataEncoder` of AWS's serialisers for Java, and the API reference of AWS Glue.
"""

from __future__ import annotations

import uuid
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from protocol.base.clock import SYSTEM_CLOCK, Clock
from protocol.errors import ConfigurationError, ConnectFailed, KafkaError, RegistryFailed
from protocol.records.arrow_numpy import to_numpy
from protocol.records.varints import Bytes, Positions
from protocol.schemas.registry import NO_SCHEMA, NO_SUBJECT, NO_VERSION, NOT_FOUND, RegisteredSchema, SchemaRegistry
from protocol.schemas.registry_config import PREFIX, RegistryConfig
from protocol.settings.secret import hide_variables

HEADER_BYTES = 18
_VERSION, _PLAIN, _ZLIB = 3, 0, 5
_VERSION_ID_AT, _VERSION_ID_BYTES = 2, 16
# As max.decompressed.batch.bytes by default.
_MAX_VALUE_BYTES = 128 << 20
# Bytes of values that are decompressed together, whatever the size of the column: as the source's batches have.
_PART_BYTES = 16 << 20
# Every payload may be 16 times as large as its value. The bytes beyond that have one limit for all values of a part, so
# that a hostile value cannot make ordinary ones behind it invalid.
_SURE_GROWTH = 16
_MAX_EXCESS_BYTES = 256 << 20
# Schema version ids of a part. Each may be requested: more are garbage, whose requests Glue would throttle.
_MAX_VERSION_IDS = 1_000
# More than the number of a message or of a branch has.
_HEAD_BYTES = 64
_NO_HEADER = (
    "it does not begin with a byte 3 and the rest of AWS Glue's header; use a format such as confluent-avro for values "
    "that begin with a zero byte and an id, one such as avro for values without a header"
)
_NOT_ZLIB = "its payload is not compressed by zlib, as its header says"
# For the import of botocore, which also looks for credentials.
_START_S = 10.0
_GLUE = tuple(f"{PREFIX}glue.{name}" for name in ("region", "endpoint", "registry.name"))
_TIMEOUT, _RETRIES = f"{PREFIX}request.timeout.ms", f"{PREFIX}max.retries"
_SETTINGS = (*_GLUE, _TIMEOUT, _RETRIES)
# botocore waits up to 1, 2, 4, 8, 16 s before it repeats a request, then up to 20 s each time.
_DOUBLED_WAITS, _LONGEST_WAIT_S = 5, 20


# -- the header of values -------------------------------------------------------------------------


def header(version_id: str) -> bytes:
    """Return the header of a value that is not compressed."""
    return bytes((_VERSION, _PLAIN)) + uuid.UUID(version_id).bytes


def parts(at: Positions, ends: Positions, rows: Positions) -> list[Positions]:
    """Return the rows in parts to decompress together, each of 16 MiB and a value at most."""
    part_of_row = np.cumsum(ends[rows] - at[rows]) // _PART_BYTES
    return np.split(rows, np.flatnonzero(np.diff(part_of_row)) + 1)


def decompressed_values(
    data: Bytes, at: Positions, ends: Positions, rows: Positions, *, only_heads: bool = False
) -> tuple[Bytes, Positions, Positions, Mapping[str, Positions]]:
    """Return values with decompressed payloads behind their headers.

    `data`, `at`, `ends`: the values `data[at[i]:ends[i]]`, which ascend.
    `rows`: the numbers of the values to return, at least one; places of the others are undefined in the results.
    `only_heads`: decompress only the first bytes of payloads, which tell their types.
    Returns the same for the results, and rows without a valid header or payload by the reason.
    """
    refused: dict[str, Positions] = {}
    is_framed = ends[rows] - at[rows] >= HEADER_BYTES
    is_framed[is_framed] = data[at[rows[is_framed]]] == _VERSION
    first, last = rows[0], rows[-1]
    if not is_framed.all():
        refused[_NO_HEADER] = rows[~is_framed]
        rows = rows[is_framed]
    compression = data[at[rows] + 1]
    is_known = (compression == _PLAIN) | (compression == _ZLIB)
    if not is_known.all():
        refused["the compression in its header of AWS Glue is neither 0 (none) nor 5 (zlib)"] = rows[~is_known]
        rows, compression = rows[is_known], compression[is_known]
    if (is_rare := _with_rare_id(data, at[rows])).any():
        reason = f"it and the values near it have more than {_MAX_VERSION_IDS} schema version ids, and its id is rare"
        refused[reason] = rows[is_rare]
        rows, compression = rows[~is_rare], compression[~is_rare]
    packed = rows[compression == _ZLIB]
    if not len(packed):
        return data, at, ends, refused
    view = data.data
    # Grows in place: a list of payloads, and their join, would need the memory twice.
    copy = bytearray()
    copied, free_bytes = int(at[first]), _MAX_EXCESS_BYTES
    growth = np.zeros(len(at), np.int64)
    failures: dict[str, list[int]] = {}
    for row, begin, end in zip(
        packed.tolist(), (at[packed] + HEADER_BYTES).tolist(), ends[packed].tolist(), strict=True
    ):
        sure_bytes = _SURE_GROWTH * (end - begin)
        if only_heads:
            payload, reason = _decompressed_head(view[begin:end])
        else:
            payload, reason = _decompress(view[begin:end], sure_bytes, min(sure_bytes + free_bytes, _MAX_VALUE_BYTES))
        payload_bytes = sum(map(len, payload))
        # Also for a payload that is refused, which took as long.
        free_bytes -= min(free_bytes, max(0, payload_bytes - sure_bytes))
        if reason:
            failures.setdefault(reason, []).append(row)
            continue
        copy += view[copied:begin]
        for piece in payload:
            copy += piece
        copied = end
        growth[row] = payload_bytes - (end - begin)
    copy += view[copied : int(ends[last])]
    refused |= {reason: np.array(of_reason, np.int64) for reason, of_reason in failures.items()}
    shift = np.cumsum(growth) - at[first]
    return np.frombuffer(copy, np.uint8), at + shift - growth, ends + shift, refused


def _decompress(packed: memoryview, sure_bytes: int, max_bytes: int) -> tuple[list[bytes], str]:
    """Return a payload in pieces, and the reason if it is invalid or has more than `max_bytes`: then its beginning.

    `sure_bytes`: the size of the first piece. The next ones double the whole, so that the piece in which zlib finds an
    error, and which is not returned, is no larger than the others together.
    """
    stream, payload, payload_bytes = zlib.decompressobj(), list[bytes](), 0
    unread: memoryview | bytes = packed
    piece_bytes = min(sure_bytes, max_bytes) + 1
    try:
        while True:
            payload.append(stream.decompress(unread, piece_bytes))
            payload_bytes += len(payload[-1])
            unread = stream.unconsumed_tail
            if payload_bytes > max_bytes:
                return payload, (
                    f"its payload exceeds {_MAX_VALUE_BYTES >> 20} MiB decompressed, or those that are more than "
                    f"{_SURE_GROWTH} times as large as their values exceed {_MAX_EXCESS_BYTES >> 20} MiB together"
                )
            if stream.eof:
                return payload, ""
            if not unread:
                return payload, "its compressed payload is truncated"
            piece_bytes = min(payload_bytes, max_bytes + 1 - payload_bytes)
    except zlib.error:
        return payload, _NOT_ZLIB


def _decompressed_head(packed: memoryview) -> tuple[list[bytes], str]:
    try:
        return [zlib.decompressobj().decompress(packed, _HEAD_BYTES)], ""
    except zlib.error:
        return [], _NOT_ZLIB


def version_ids(data: Bytes, at: Positions) -> Iterator[tuple[str, Positions]]:
    """Yield the schema version ids of the headers that begin at these places, each with the numbers of its places."""
    ids = _ids(data, at)
    numbers = to_numpy(ids.indices)
    order = np.argsort(numbers, kind="stable")
    of_ids = np.split(order, np.flatnonzero(np.diff(numbers[order])) + 1)
    for version_id, places in zip(ids.dictionary.to_pylist(), of_ids, strict=True):
        yield str(uuid.UUID(bytes=version_id)), places


def _with_rare_id(data: Bytes, at: Positions) -> npt.NDArray[np.bool_]:
    """Return a mask of the headers whose version id is none of the `_MAX_VERSION_IDS` that most of them have."""
    if len(at) <= _MAX_VERSION_IDS or len((ids := _ids(data, at)).dictionary) <= _MAX_VERSION_IDS:
        return np.zeros(len(at), np.bool_)
    numbers = to_numpy(ids.indices)
    by_count = np.argsort(-np.bincount(numbers), kind="stable")
    return np.isin(numbers, by_count[_MAX_VERSION_IDS:])


def _ids(data: Bytes, at: Positions) -> pa.DictionaryArray:
    count = len(data) - HEADER_BYTES + 1
    raw = np.ndarray((count,), f"V{_VERSION_ID_BYTES}", np.ascontiguousarray(data[_VERSION_ID_AT:]), 0, (1,))[at]
    buffers = [None, pa.py_buffer(raw.view(np.uint8))]
    return pa.Array.from_buffers(pa.binary(_VERSION_ID_BYTES), len(at), buffers).dictionary_encode()


# -- the client -----------------------------------------------------------------------------------


class GlueRegistry(SchemaRegistry):
    """A client of one of AWS Glue's registries, or the schemas of `schema.registry.glue.schemas`. Thread-safe.

    A subject is the name of a schema. Registers nothing. botocore is imported by the first request.
    """

    def __init__(self, config: RegistryConfig, clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__(config, clock)
        self._fixed = dict(config.glue_schemas)
        self._glue: Any = None

    def by_guid(self, guid: str) -> RegisteredSchema:
        """Return the schema with a version id. Raises `RegistryFailed`."""
        if not self._fixed:
            subject = f"the schema version {guid}"
            return self._cached(guid, subject, lambda: self._get(subject, NO_SCHEMA, SchemaVersionId=guid))
        if guid not in self._fixed:
            message = f"{PREFIX}glue.schemas does not have the schema version {guid}"
            raise RegistryFailed(message, status=NOT_FOUND, error_code=NO_SCHEMA)
        return RegisteredSchema(self._fixed[guid], kind="", guid=guid)

    def _version(self, subject: str, version: int | None, *, deleted: bool) -> RegisteredSchema:
        number = {"LatestVersion": True} if version is None else {"VersionNumber": version}
        return self._get(
            f"version {version or 'latest'} of the schema {subject}",
            NO_SUBJECT if version is None else NO_VERSION,
            subject,
            SchemaId=self._schema_id(subject),
            SchemaVersionNumber=number,
        )

    def lookup(self, subject: str, schema: RegisteredSchema, *, normalize: bool = False) -> RegisteredSchema:
        """Return the version of a schema that has this text. Raises `RegistryFailed` if there is none."""
        requested, schema_id = f"the version with this text of the schema {subject}", self._schema_id(subject)
        request = {"SchemaId": schema_id, "SchemaDefinition": schema.text}
        reply = self._call("get_schema_by_definition", requested, NO_SCHEMA, request)
        return _registered({"SchemaDefinition": schema.text, **reply}, requested, subject)

    def _get(self, requested: str, code: int, subject: str | None = None, **request: Any) -> RegisteredSchema:
        return _registered(self._call("get_schema_version", requested, code, request), requested, subject)

    def _schema_id(self, subject: str) -> dict[str, str]:
        return {"SchemaName": subject, "RegistryName": self.config.glue_registry_name}

    def _longest_request_ms(self) -> int:
        tries, doubled = self.config.max_retries + 1, min(self.config.max_retries, _DOUBLED_WAITS)
        waits_s = (1 << doubled) - 1 + _LONGEST_WAIT_S * (self.config.max_retries - doubled)
        return tries * self.config.request_timeout_ms + 1_000 * waits_s

    def _no_response(self, subject: str, reason: str) -> RegistryFailed:
        slow = f"an endpoint that is slow may need a higher {_TIMEOUT}, which is {self.config.request_timeout_ms}"
        return self._failed(subject, reason, f"check {_GLUE[0]} and {_GLUE[1]}; {slow}")

    def _failed(self, subject: str, reason: str, remedy: str, **context: object) -> RegistryFailed:
        message = f"AWS Glue in {self.config.glue_region} has not returned {subject}: {reason}; {remedy}"
        return RegistryFailed(message, settings=_SETTINGS, **context)

    def _failure(self, error: Exception, requested: str, operation: str, code: int) -> RegistryFailed:
        """Return the error for an exception of botocore; `code` is its error code if Glue has no such schema."""
        from protocol.clouds.aws import CREDENTIALS_REMEDY, is_transient
        from protocol.clouds.library_call import error_text

        response = getattr(error, "response", None) or {}  # None: Glue has not responded
        kind, reason = response.get("Error", {}).get("Code"), error_text(error)
        names = {base.__name__ for base in type(error).__mro__}
        if kind == "EntityNotFoundException":
            remedy = f"check {_GLUE[2]}, which is {self.config.glue_registry_name}"
            return self._failed(requested, reason, remedy, status=NOT_FOUND, error_code=code)
        if kind == "AccessDeniedException":
            action = operation.title().replace("_", "")
            return self._failed(requested, reason, f"allow glue:{action} to the role of this process")
        if "ResponseParserError" in names or type(error).__module__.partition(".")[0] != "botocore":
            # Such as JSON of another type, in which botocore searches for the fields of a response.
            reason = f"the response is not one of AWS Glue ({type(error).__name__})"
            return self._failed(requested, reason, f"check {_GLUE[1]}")
        if names & {"ConnectionError", "HTTPClientError"}:
            return self._no_response(requested, reason)
        if is_transient(error):
            more = f"a higher {_RETRIES}, which is {self.config.max_retries}, repeats the request more often"
            return self._failed(
                requested, reason, f"AWS Glue is overloaded, or limits the requests of this account: {more}"
            )
        return self._failed(requested, reason, f"check {_GLUE[0]} and {_GLUE[1]}, and {CREDENTIALS_REMEDY}")

    def _request(self, method: str, path: str, subject: str, body: Mapping[str, Any] | None = None) -> Any:
        raise ConfigurationError(f"this client does not request {subject} from AWS Glue; use the aws command: aws glue")

    @hide_variables
    def _call(self, operation: str, requested: str, code: int, request: Mapping[str, Any]) -> dict[str, Any]:
        """Call an operation of Glue. Raises `RegistryFailed`; `code` is its error code if Glue has no such schema."""
        if self._fixed:
            raise ConfigurationError(
                f"{PREFIX}glue.schemas has schemas by version id only, not {requested}; give the schema to read with: "
                "valueSchema or keySchema, value_schema of protocol.read, --value-schema of pykafka"
            )
        from protocol.clouds.aws import is_of_credentials, is_transient
        from protocol.clouds.library_call import call_library

        def ask() -> dict[str, Any]:
            is_new = self._glue is None
            try:
                try:
                    return self._ask(operation, request)
                except Exception as error:
                    if is_new or not is_of_credentials(error):
                        raise
                # A client looks for credentials once. They may be others now, such as those of a file.
                self._glue = None
                return self._ask(operation, request)
            except KafkaError:
                raise
            except Exception as error:
                raise self._failure(error, requested, operation, code) from None

        key, timeout_s = ("glue", id(self), operation, str(request)), self._longest_request_ms() / 1_000
        timeout_s += _START_S if self._glue is None else 0
        try:
            return call_library(key, ask, timeout_s, source="AWS Glue", remedy="", transient=is_transient)
        except ConnectFailed:
            raise self._no_response(requested, f"no response within {timeout_s:.1f} s") from None

    def _ask(self, operation: str, request: Mapping[str, Any]) -> dict[str, Any]:
        reply: dict[str, Any] = getattr(self._client(), operation)(**request)
        return reply

    def _client(self) -> Any:
        """Return botocore's client, which may be used by several threads."""
        client = self._glue
        if client is None:
            from protocol.clouds.library_call import import_library

            purpose = "valueFormat or keyFormat glue-avro, glue-json or glue-protobuf"
            session = import_library("botocore.session", "boto3", "aws", purpose, _SETTINGS).Session()
            wait_s = self.config.request_timeout_ms / 1000
            options = import_library("botocore.config", "boto3", "aws", purpose, _SETTINGS).Config(
                connect_timeout=wait_s,
                read_timeout=wait_s,
                retries={"total_max_attempts": self.config.max_retries + 1, "mode": "standard"},
            )
            client = self._glue = session.create_client(
                "glue", region_name=self.config.glue_region, endpoint_url=self.config.glue_endpoint, config=options
            )
        return client


def open_registry(config: RegistryConfig) -> SchemaRegistry:
    """Return the client of a registry."""
    return GlueRegistry(config) if config.kind == "glue" else SchemaRegistry(config)


def _registered(reply: Mapping[str, Any], requested: str, subject: str | None) -> RegisteredSchema:
    status = reply.get("Status", "AVAILABLE")
    # A version that is being deleted was valid when values were written with it.
    if status != "AVAILABLE" and subject is not None:
        raise RegistryFailed(f"AWS Glue has {requested} with the status {status}, not AVAILABLE")
    try:
        return RegisteredSchema(
            str(reply["SchemaDefinition"]),
            str(reply["DataFormat"]),
            guid=str(uuid.UUID(reply["SchemaVersionId"])),
            subject=subject,
            version=reply.get("VersionNumber"),
        )
    except (KeyError, TypeError, ValueError):
        message = f"the response of AWS Glue for {requested} has no schema; check {_GLUE[1]}"
        raise RegistryFailed(message, settings=_SETTINGS) from None

"""Encode and decode whole frames: size, request or response header, and body.

A client uses `encode_request`, `correlation_id` and `decode_response`; a broker (tests and fakes) uses
`decode_request` and `encode_response`. Called by `protocol.net`. Sans-IO.
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct as Layout
from typing import Any

from protocol.errors import KafkaError, UnsupportedVersion
from protocol.wire.codec import Value, decoder, encoder, require_end
from protocol.wire.primitives import BytesLike, Reader, Writer
from protocol.wire.schema import Api

_INT32 = Layout(">i")
_SIZE_BYTES = 4
_API_VERSIONS_KEY = 18
_UNSUPPORTED_VERSION = 35


def encode_request(
    api: Api, version: int, correlation_id: int, client_id: str | None, body: Mapping[str, Any]
) -> list[BytesLike]:
    """Encode a request as buffers to send in order; the first starts with the size of the rest (int32).

    Byte fields of 4 KiB and more are referenced, not copied: do not change them until the buffers are sent.

    Raises `UsageError`: the body does not fit the schema. `UnsupportedVersion`: the version is outside
    `api.first..api.last`.
    """
    _check_version(api, version)
    writer = Writer()
    writer.int32(0)
    writer.int16(api.key)
    writer.int16(version)
    writer.int32(correlation_id)
    writer.string(client_id)  # never compact: the broker reads it before it knows the client's versions
    flexible = api.flexible(version)
    if flexible:
        writer.uvarint(0)
    _in_context(f"{api.name} v{version} request", encoder(api.request, version, flexible), writer, body)
    return _sized(writer)


def size_bytes(buffers: list[BytesLike]) -> int:
    """Return the size of an encoded request, from its first field."""
    size: int = _INT32.unpack_from(buffers[0])[0]
    return size + _SIZE_BYTES


def encode_response(api: Api, version: int, correlation_id: int, body: Mapping[str, Any]) -> list[BytesLike]:
    """Encode a response, as `encode_request` encodes a request."""
    _check_version(api, version)
    writer = Writer()
    writer.int32(0)
    writer.int32(correlation_id)
    flexible = api.flexible(version)
    if _tagged_response_header(api, flexible):
        writer.uvarint(0)
    _in_context(f"{api.name} v{version} response", encoder(api.response, version, flexible), writer, body)
    return _sized(writer)


def correlation_id(frame: BytesLike) -> int:
    """Return the correlation id of a response frame, given without its size."""
    return Reader(frame).int32()


def decode_response(api: Api, version: int, frame: BytesLike) -> Value:
    """Decode the body of a response.

    A broker that does not support the client's version of ApiVersions replies with error 35 in the layout of
    version 0. The reply is decoded as version 0.

    `api`, `version`: API and version of the request.
    `frame`: the response without its size.
    Returns every field of the schema; byte fields are views of `frame`.
    Raises `Truncated` or `Corrupt`: the bytes are invalid.
    """
    _check_version(api, version)
    return _in_context(f"{api.name} v{version} response", _decode_response, api, version, frame)  # type: ignore[no-any-return]


def _decode_response(api: Api, version: int, frame: BytesLike) -> Value:
    reader = Reader(frame)
    reader.int32()
    if api.key == _API_VERSIONS_KEY and _refused(reader):
        version = 0
    flexible = api.flexible(version)
    if _tagged_response_header(api, flexible):
        reader.skip_tagged_fields()
    return _whole_body(decoder(api.response, version, flexible), reader)


def _refused(reader: Reader) -> bool:
    error_code = reader.int16()
    reader.position -= 2
    return error_code == _UNSUPPORTED_VERSION


def decode_request(frame: BytesLike, *, exact: bool = True) -> tuple[Api, int, int, str | None, Value]:
    """Decode a request.

    `frame`: the request without its size.
    `exact`: raise `Corrupt` for bytes after the body. Brokers ignore them, and librdkafka's Metadata v13 has some.
    Returns `(api, version, correlation_id, client_id, body)`.
    Raises `UnsupportedVersion`: the API or version is not supported here; a broker replies to such an ApiVersions
    request with error 35. The error's context has `api_key`, `version` and `correlation_id`. `Truncated` or `Corrupt`:
    the bytes are invalid.
    """
    from protocol.wire.registry import API_BY_KEY  # local, so that a client imports only the messages it uses

    reader = Reader(frame)
    key, version, correlation, client_id = reader.int16(), reader.int16(), reader.int32(), reader.string(nullable=True)
    api = API_BY_KEY.get(key)
    if api is None or not api.first <= version <= api.last:
        raise UnsupportedVersion(
            f"request of API {api or key} in version {version} is not supported",
            api_key=key,
            version=version,
            correlation_id=correlation,
        )
    flexible = api.flexible(version)
    if flexible:
        reader.skip_tagged_fields()
    subject = f"{api.name} v{version} request"
    return (
        api,
        version,
        correlation,
        client_id,
        _in_context(subject, _whole_body if exact else _body, decoder(api.request, version, flexible), reader),
    )


def _body(decode: Any, reader: Reader) -> Value:
    value: Value = decode(reader)
    return value


def _whole_body(decode: Any, reader: Reader) -> Value:
    value = _body(decode, reader)
    require_end(reader)
    return value


def _tagged_response_header(api: Api, flexible: bool) -> bool:
    """Return True if the response header is flexible; ApiVersions has the old header in every version."""
    return flexible and api.key != _API_VERSIONS_KEY


def _check_version(api: Api, version: int) -> None:
    if not api.first <= version <= api.last:
        raise UnsupportedVersion(f"{api.name} v{version} is not supported here, only v{api.first} to v{api.last}")


def _sized(writer: Writer) -> list[BytesLike]:
    parts = writer.parts()
    _INT32.pack_into(parts[0], 0, writer.size_bytes - _SIZE_BYTES)
    return parts


def _in_context(subject: str, function: Any, *arguments: Any) -> Any:
    """Call `function`; prefix the message of a `KafkaError` with the API and version."""
    try:
        return function(*arguments)
    except KafkaError as error:
        raise type(error)(f"{subject}: {error.message}", **error.context) from error

"""Whole frames: request and response headers, the size in front, and the body between them.

The client's side is `encode_request`, `correlation_id` and `decode_response`; the broker's side, for tests and
fakes, is `decode_request` and `encode_response`. Called by `protocol.net`. Knows no socket: bytes in, values out.
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
    """One request as buffers to be sent in order; the first starts with the size of the rest (int32).

    Byte fields of 4 KiB and more are referenced, not copied: leave them unchanged until the buffers are sent.
    Raises `UsageError` for a wrong body and `UnsupportedVersion` for a version outside `api.first..api.last`.
    """
    _check_version(api, version)
    writer = Writer()
    writer.int32(0)
    writer.int16(api.key)
    writer.int16(version)
    writer.int32(correlation_id)
    writer.string(client_id)  # never compact: a broker must read it before it knows our versions
    flexible = api.flexible(version)
    if flexible:
        writer.uvarint(0)
    _in_context(f"{api.name} v{version} request", encoder(api.request, version, flexible), writer, body)
    return _sized(writer)


def encode_response(api: Api, version: int, correlation_id: int, body: Mapping[str, Any]) -> list[BytesLike]:
    """One response, as `encode_request` does it for a request."""
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
    """The number of the request that this response answers. `frame` is without its size."""
    return Reader(frame).int32()


def decode_response(api: Api, version: int, frame: BytesLike) -> Value:
    """The body of a response, every field in it. `frame` is without its size; byte fields are views of it.

    A broker that does not know our version of ApiVersions answers with error 35 in the layout of version 0,
    whatever was asked; it is decoded as such. Raises `Truncated` or `Corrupt`.
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


def decode_request(frame: BytesLike) -> tuple[Api, int, int, str | None, Value]:
    """`(api, version, correlation_id, client_id, body)` of a request. `frame` is without its size.

    Raises `UnsupportedVersion` with `api_key`, `version` and `correlation_id` in its context for an API or a version
    not spoken here (a broker answers ApiVersions with error 35 then), and `Truncated` or `Corrupt`.
    """
    from protocol.wire.registry import API_BY_KEY  # here, so that a client imports only the messages it uses

    reader = Reader(frame)
    key, version, correlation, client_id = reader.int16(), reader.int16(), reader.int32(), reader.string(nullable=True)
    api = API_BY_KEY.get(key)
    if api is None or not api.first <= version <= api.last:
        raise UnsupportedVersion(
            f"request of API {api or key} in version {version} is not spoken here",
            api_key=key,
            version=version,
            correlation_id=correlation,
        )
    flexible = api.flexible(version)
    if flexible:
        reader.skip_tagged_fields()
    what = f"{api.name} v{version} request"
    return (
        api,
        version,
        correlation,
        client_id,
        _in_context(what, _whole_body, decoder(api.request, version, flexible), reader),
    )


def _whole_body(decode: Any, reader: Reader) -> Value:
    value: Value = decode(reader)
    require_end(reader)
    return value


def _tagged_response_header(api: Api, flexible: bool) -> bool:
    """ApiVersions has the old header in every version: its reader cannot know yet what the broker speaks."""
    return flexible and api.key != _API_VERSIONS_KEY


def _check_version(api: Api, version: int) -> None:
    if not api.first <= version <= api.last:
        raise UnsupportedVersion(f"{api.name} v{version} is not spoken here, only v{api.first} to v{api.last}")


def _sized(writer: Writer) -> list[BytesLike]:
    parts = writer.parts()
    _INT32.pack_into(parts[0], 0, writer.size_bytes - _SIZE_BYTES)
    return parts


def _in_context(what: str, function: Any, *arguments: Any) -> Any:
    """Calls `function`; an error of ours gets the API and the version in front of its message."""
    try:
        return function(*arguments)
    except KafkaError as error:
        raise type(error)(f"{what}: {error.message}", **error.context) from error

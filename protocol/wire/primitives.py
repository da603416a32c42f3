"""Read and write Kafka's primitive types in a byte buffer: `Reader` and `Writer`.

Contains every bounds check: a length is compared with the remaining bytes before slicing or allocating. So invalid
input raises `Truncated` or `Corrupt`, and no other error. Called by `wire.codec`, `wire.frame` and `protocol.records`.
Independent of messages, versions and sockets.
"""

from __future__ import annotations

from struct import Struct as Layout
from struct import unpack_from
from typing import Any

from protocol.errors import Corrupt, Truncated

BytesLike = bytes | bytearray | memoryview

LARGE_BYTES = 4096
"""Byte fields of at least this size are separate buffers, passed to the socket without a copy."""

LONGEST_STRING_BYTES = 2**15 - 1
"""Kafka's limit. An int16 length cannot exceed it; a compact length must not."""

MAX_ELEMENTS = 3_000_000
"""Maximum elements of all arrays of a message, except arrays of numbers. An element takes up to 700 bytes of memory."""

_INT8, _INT16, _INT32 = Layout(">b"), Layout(">h"), Layout(">i")


class Reader:
    """Reads consecutive values from `buffer` in Kafka's big-endian encodings.

    Every method raises `Truncated` if the bytes end too early, and `Corrupt` for impossible values: a negative length
    other than null's -1, null if not nullable, text that is not UTF-8, an endless varint, more than `MAX_ELEMENTS`.
    """

    __slots__ = ("buffer", "elements_left", "end", "position")

    def __init__(self, buffer: BytesLike) -> None:
        view = memoryview(buffer)
        self.buffer: memoryview = view if view.format == "B" and view.ndim == 1 else view.cast("B")
        self.position = 0
        self.end = len(self.buffer)
        self.elements_left = MAX_ELEMENTS

    @property
    def left(self) -> int:
        """The number of bytes not read yet."""
        return self.end - self.position

    def advance(self, size_bytes: int) -> int:
        """Skip `size_bytes` bytes; return their start."""
        start = self.position
        if size_bytes > self.end - start:
            raise Truncated(f"{size_bytes} bytes wanted at byte {start}, {self.end - start} left")
        self.position = start + size_bytes
        return start

    def int8(self) -> int:
        """Read an int8."""
        value: int = _INT8.unpack_from(self.buffer, self.advance(1))[0]
        return value

    def int16(self) -> int:
        """Read an int16."""
        value: int = _INT16.unpack_from(self.buffer, self.advance(2))[0]
        return value

    def int32(self) -> int:
        """Read an int32."""
        value: int = _INT32.unpack_from(self.buffer, self.advance(4))[0]
        return value

    def uuid(self) -> bytes:
        """Read 16 bytes; all zero means "none"."""
        return bytes(self.take(16))

    def uvarint(self) -> int:
        """Read an unsigned varint of at most 32 bits."""
        try:
            byte = self.buffer[self.position]
        except IndexError:
            raise Truncated(f"a varint wanted at byte {self.position}, 0 left") from None
        if byte < 0x80:  # the common case: lengths and counts below 128
            self.position += 1
            return byte
        return self._long_uvarint(32)

    def varint(self) -> int:
        """Read a zigzag varint of at most 32 bits."""
        raw = self.uvarint()
        return (raw >> 1) ^ -(raw & 1)

    def varlong(self) -> int:
        """Read a zigzag varint of at most 64 bits."""
        raw = self._long_uvarint(64)
        return (raw >> 1) ^ -(raw & 1)

    def _long_uvarint(self, bits: int) -> int:
        buffer, start, value = self.buffer, self.position, 0
        for index in range((bits + 6) // 7):
            if start + index >= self.end:
                raise Truncated(f"a varint at byte {start} does not end")
            byte = buffer[start + index]
            value |= (byte & 0x7F) << (7 * index)
            if byte < 0x80:
                if value >> bits:
                    break
                self.position = start + index + 1
                return value
        raise Corrupt(f"the varint at byte {start} has more than {bits} bits")

    def take(self, size_bytes: int) -> memoryview:
        """Return the next `size_bytes` bytes as a view of the buffer (no copy)."""
        start = self.advance(size_bytes)
        return self.buffer[start : start + size_bytes]

    def _text(self, size_bytes: int, nullable: bool) -> str | None:
        if size_bytes < 0:
            self._check_null(size_bytes, nullable, "string")
            return None
        start = self.advance(size_bytes)
        try:
            return str(self.buffer[start : start + size_bytes], "utf-8")
        except UnicodeDecodeError as error:
            raise Corrupt(f"the string at byte {start} is not UTF-8") from error

    def _check_null(self, length: int, nullable: bool, subject: str) -> None:
        if length != -1:
            raise Corrupt(f"{subject} of length {length} before byte {self.position}")
        if not nullable:
            raise Corrupt(f"null {subject} before byte {self.position}, where null is not allowed")

    def string(self, nullable: bool = False) -> str | None:
        """Read text with an int16 length; None for null, which is `Corrupt` unless `nullable`."""
        return self._text(self.int16(), nullable)

    def compact_string(self, nullable: bool = False) -> str | None:
        """Read text with an unsigned varint length + 1; None for null, which is `Corrupt` unless `nullable`."""
        return self._text(self.uvarint() - 1, nullable)

    def data(self, nullable: bool = False) -> memoryview | None:
        """Read bytes with an int32 length, as a view of the buffer."""
        length = self.int32()
        if length < 0:
            self._check_null(length, nullable, "bytes")
            return None
        return self.take(length)

    def compact_data(self, nullable: bool = False) -> memoryview | None:
        """Read bytes with an unsigned varint length + 1, as a view of the buffer."""
        length = self.uvarint() - 1
        if length < 0:
            self._check_null(length, nullable, "bytes")
            return None
        return self.take(length)

    def array_length(self, nullable: bool = False, smallest_bytes: int = 1) -> int | None:
        """Read an int32 count; raise `Truncated` if that many elements of `smallest_bytes` exceed the bytes left."""
        return self._count(self.int32(), nullable, smallest_bytes)

    def compact_array_length(self, nullable: bool = False, smallest_bytes: int = 1) -> int | None:
        """Read an unsigned varint count + 1; checked as by `array_length`."""
        return self._count(self.uvarint() - 1, nullable, smallest_bytes)

    def _count(self, count: int, nullable: bool, smallest_bytes: int) -> int | None:
        if count < 0:
            self._check_null(count, nullable, "array")
            return None
        if count * smallest_bytes > self.end - self.position:
            raise Truncated(
                f"{count} elements of at least {smallest_bytes} bytes announced before byte {self.position}, "
                f"{self.end - self.position} bytes left"
            )
        return count

    def count_elements(self, count: int) -> None:
        """Add `count` to the elements of the message, before they are read."""
        self.elements_left -= count
        if self.elements_left < 0:
            raise Corrupt(f"{count} elements before byte {self.position}, in total more than {MAX_ELEMENTS}")

    def numbers(self, code: str, size_bytes: int, count: int) -> list[Any]:
        """Read `count` numbers of the `struct` format `code`, `size_bytes` each."""
        return list(unpack_from(f">{count}{code}", self.buffer, self.advance(count * size_bytes)))

    def skip_tagged_fields(self) -> None:
        """Skip a section of tagged fields."""
        for _ in range(self.uvarint()):
            self.uvarint()
            self.advance(self.uvarint())


class Writer:
    """Collects values in Kafka's encodings. Byte fields of `LARGE_BYTES` and more are referenced, not copied.

    A referenced buffer must not change until the parts are sent. A value outside its type's range raises `struct.error`
    or `ValueError`; the codec, which knows the field's name, converts both to a `UsageError`.
    """

    __slots__ = ("_parts", "_parts_bytes", "_tail")

    def __init__(self) -> None:
        self._parts: list[BytesLike] = []
        self._parts_bytes = 0
        self._tail = bytearray()

    @property
    def size_bytes(self) -> int:
        """The number of bytes written so far."""
        return self._parts_bytes + len(self._tail)

    def parts(self) -> list[BytesLike]:
        """Return the buffers whose concatenation is the written message."""
        return [*self._parts, self._tail] if self._tail or not self._parts else list(self._parts)

    def raw(self, value: BytesLike) -> None:
        """Write bytes without a length. A large buffer is referenced."""
        view = memoryview(value)
        if view.nbytes < LARGE_BYTES:
            self._tail += view
            return
        if self._tail:
            self._add_part(self._tail)
            self._tail = bytearray()
        self._add_part(view.cast("B"))

    def _add_part(self, part: BytesLike) -> None:
        self._parts.append(part)
        self._parts_bytes += len(part)

    def append(self, writer: Writer) -> None:
        """Write the content of another writer; its large buffers remain referenced."""
        for part in writer.parts():
            self.raw(part)

    def int8(self, value: int) -> None:
        """Write an int8."""
        self._tail += _INT8.pack(value)

    def int16(self, value: int) -> None:
        """Write an int16."""
        self._tail += _INT16.pack(value)

    def int32(self, value: int) -> None:
        """Write an int32."""
        self._tail += _INT32.pack(value)

    def uuid(self, value: bytes) -> None:
        """Write exactly 16 bytes."""
        if len(value) != 16:
            raise ValueError(f"a uuid has 16 bytes, not {len(value)}")
        self._tail += value

    def uvarint(self, value: int) -> None:
        """Write a non-negative number as a varint: seven bits per byte, lowest first."""
        if value < 0:
            raise ValueError(f"an unsigned varint cannot be {value}")
        while value >= 0x80:
            self._tail.append(value & 0x7F | 0x80)
            value >>= 7
        self._tail.append(value)

    def string(self, value: str | None) -> None:
        """Write text with an int16 length; None is -1."""
        if value is None:
            self._tail += b"\xff\xff"
            return
        text = value.encode()
        self._tail += _INT16.pack(len(text))
        self._tail += text

    def compact_string(self, value: str | None) -> None:
        """Write text with an unsigned varint length + 1; None is 0."""
        if value is None:
            self._tail.append(0)
            return
        text = value.encode()
        if len(text) > LONGEST_STRING_BYTES:
            raise ValueError(f"a string of {len(text)} bytes; Kafka's maximum is {LONGEST_STRING_BYTES}")
        self.uvarint(len(text) + 1)
        self._tail += text

    def data(self, value: BytesLike | None) -> None:
        """Write bytes with an int32 length; None is -1."""
        if value is None:
            self._tail += b"\xff\xff\xff\xff"
            return
        self._tail += _INT32.pack(memoryview(value).nbytes)
        self.raw(value)

    def compact_data(self, value: BytesLike | None) -> None:
        """Write bytes with an unsigned varint length + 1; None is 0."""
        if value is None:
            self._tail.append(0)
            return
        self.uvarint(memoryview(value).nbytes + 1)
        self.raw(value)

    def array_length(self, count: int | None) -> None:
        """Write an int32 count; None is -1."""
        self._tail += _INT32.pack(-1 if count is None else count)

    def compact_array_length(self, count: int | None) -> None:
        """Write an unsigned varint count + 1; None is 0."""
        self.uvarint(0 if count is None else count + 1)

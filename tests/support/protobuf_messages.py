"""Classes of Protobuf messages from the text of `.proto` files, without a compiler."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

Field = descriptor_pb2.FieldDescriptorProto
_numbers = itertools.count()


def message_type(fields: Mapping[str, tuple[Any, ...]], name: str = "Order", package: str = "shop", **more: Any) -> Any:
    """Return the class of a proto3 message.

    Parameters
    ----------
    fields : mapping of str to tuple
        Number and type, as `Field.TYPE_INT64`, or the name of a message or enum; a third element is the label.
    more
        `before`: names of messages before it in the file; `imports`: classes whose messages it uses.
    """
    file = descriptor_pb2.FileDescriptorProto(name=f"{name.lower()}{next(_numbers)}.proto", package=package)
    file.syntax = "proto3"
    for first in more.get("before", ()):
        file.message_type.add(name=first).field.add(name="x", number=1, type=Field.TYPE_INT32, label=1)
    message = file.message_type.add(name=name)
    for field, (number, kind, *label) in fields.items():
        made = message.field.add(name=field, number=number, label=label[0] if label else 1)
        if isinstance(kind, str):
            made.type, made.type_name = Field.TYPE_MESSAGE, kind
        else:
            made.type = kind
    pool = descriptor_pool.DescriptorPool()
    for second in more.get("imports", ()):
        imported = descriptor_pb2.FileDescriptorProto()
        second.DESCRIPTOR.file.CopyToProto(imported)
        pool.Add(imported)
        file.dependency.append(imported.name)
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))

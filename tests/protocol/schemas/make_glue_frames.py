"""Write `glue_frames.json`: values in AWS Glue's format, encoded by AWS's own serialisers for Java.

    python -m tests.protocol.schemas.make_glue_frames 'FOLDER/*'

FOLDER contains the jars of `software.amazon.glue:schema-registry-serde` and of what it needs; `java` 17 must be on the
path. Last written with version 1.1.24. The values are the same in every run.
"""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory

HERE = Path(__file__).parent
AVRO = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [{"name": "id", "type": "long"}, {"name": "country", "type": "string"}],
}
JSON = {"type": "object", "properties": {"id": {"type": "integer"}, "country": {"type": "string"}}}
ORDER = {"id": 7, "country": "DE" * 30}
# The entries of the map are a message of Order, and count: the indexes are Customer 0, Order 1, Order.Item 3.
MESSAGES = {
    "Customer": {"name": "Ada"},
    "Order": {"id": 7, "amounts": {"net": 8}, "items": [{"sku": "a"}, {"sku": "b"}]},
    "Order.Item": {"sku": "c" * 60},
}


def proto_file() -> Any:
    """Return the descriptor of the file with the messages Order, Order.Item and Customer."""
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="order.proto", package="shop", syntax="proto3")
    order = file.message_type.add(name="Order")
    order.field.add(name="id", number=1, type=field.TYPE_INT64, label=1)
    amounts = {"type": field.TYPE_MESSAGE, "type_name": ".shop.Order.AmountsEntry"}
    order.field.add(name="amounts", number=2, label=3, **amounts)
    order.field.add(name="items", number=3, type=field.TYPE_MESSAGE, type_name=".shop.Order.Item", label=3)
    order.nested_type.add(name="Item").field.add(name="sku", number=1, type=field.TYPE_STRING, label=1)
    entry = order.nested_type.add(name="AmountsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=field.TYPE_STRING, label=1)
    entry.field.add(name="value", number=2, type=field.TYPE_INT64, label=1)
    file.message_type.add(name="Customer").field.add(name="name", number=1, type=field.TYPE_STRING, label=1)
    return file


def samples() -> list[dict[str, Any]]:
    """Return what the Java program encodes: each value with and without compression, and a version id for each."""
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file := proto_file())
    values: list[dict[str, Any]] = [
        {"format": "glue-avro", "schema": json.dumps(AVRO), "value": ORDER},
        {"format": "glue-json", "schema": json.dumps(JSON), "value": ORDER},
    ]
    for name, value in MESSAGES.items():
        message = message_factory.GetMessageClass(pool.FindMessageTypeByName(f"shop.{name}"))()
        encoded = json_format.ParseDict(value, message).SerializeToString(deterministic=True)
        texts = {
            "file": base64.b64encode(file.SerializeToString()).decode(),
            "bytes": base64.b64encode(encoded).decode(),
        }
        values.append({"format": "glue-protobuf", "message": name, "value": value, **texts})
    compressions = [(value, compression) for value in values for compression in ("NONE", "ZLIB")]
    return [
        {**value, "compression": compression, "version_id": str(uuid.UUID(int=0xAB << 120 | number))}
        for number, (value, compression) in enumerate(compressions)
    ]


def main(class_path: str) -> None:
    encoded = samples()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "samples.json"
        path.write_text(json.dumps(encoded))
        command = ["java", "-cp", class_path, str(HERE / "GlueFrames.java"), str(path)]
        lines = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    for sample, line in zip(encoded, lines, strict=True):
        sample["schema"], sample["frame"] = json.loads(line)
        for name in {"file", "bytes"} & sample.keys():
            del sample[name]
    (HERE / "glue_frames.json").write_text(json.dumps(encoded, indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])

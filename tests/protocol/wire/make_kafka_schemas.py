"""Write `kafka_schemas.json`: the facts of Kafka's message definitions that the schemas are compared with.

    python -m tests.protocol.wire.make_kafka_schemas FOLDER

FOLDER contains Kafka's `*Request.json` and `*Response.json`: `common/message/` inside any `kafka-clients` jar (a zip
file), or `clients/src/main/resources/common/message/` of Kafka's sources. Last written from Kafka 4.4.0. Keeps only
names, types, versions, nullability, tags, defaults, and the kind of groups and transactional ids.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from protocol.wire.registry import API_BY_KEY

TARGET = Path(__file__).with_name("kafka_schemas.json")


def read_definition(path: Path) -> dict[str, Any]:
    """Read a definition; Kafka's JSON has comments that start with //."""
    definition: dict[str, Any] = json.loads(re.sub(r"(?m)(^|\s)//.*$", "", path.read_text()))
    return definition


def compact(field: dict[str, Any], structs: dict[str, Any]) -> dict[str, Any]:
    kind = field["type"]
    retained = {"name": field["name"], "type": kind, "versions": field["versions"]}
    retained["nullable"] = field.get("nullableVersions")
    retained["tag"] = field.get("tag")
    retained["tagged"] = field.get("taggedVersions")
    retained["default"] = field.get("default")
    retained["ignorable"] = str(field.get("ignorable", False)).lower() == "true" or None
    retained["entity"] = entity if (entity := field.get("entityType")) in ("groupId", "transactionalId") else None
    children = field.get("fields") or structs.get(kind.removeprefix("[]"))
    retained["fields"] = [compact(child, structs) for child in children] if children else None
    return {name: value for name, value in retained.items() if value is not None}


def message(definition: dict[str, Any]) -> list[dict[str, Any]]:
    structs = {struct["name"]: struct["fields"] for struct in definition.get("commonStructs", [])}
    return [compact(field, structs) for field in definition["fields"]]


def main(folder: Path) -> None:
    facts = {}
    for path in folder.glob("*Request.json"):
        request = read_definition(path)
        if request.get("apiKey") not in API_BY_KEY or request["validVersions"] == "none":
            continue
        response = read_definition(path.with_name(path.name.replace("Request.json", "Response.json")))
        facts[request["name"].removesuffix("Request")] = {
            "key": request["apiKey"],
            "versions": request["validVersions"],
            "unstable": request.get("latestVersionUnstable", False),
            "flexible": [request["flexibleVersions"], response["flexibleVersions"]],
            "request": message(request),
            "response": message(response),
        }
    ordered = dict(sorted(facts.items(), key=lambda item: item[1]["key"]))
    lines = [f"{json.dumps(name)}:{json.dumps(api, separators=(',', ':'))}" for name, api in ordered.items()]
    TARGET.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

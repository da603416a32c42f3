"""A stand-in for the API of AWS Glue: JSON over POST, with the operations that read schemas."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from typing import Any

from tests.support.cloud_endpoints import Answer, CloudEndpoint, Request


@dataclass
class Version:
    """A version of a schema."""

    version_id: str
    name: str
    number: int
    text: str
    kind: str
    status: str = "AVAILABLE"
    registry: str = "default-registry"


class GlueEndpoint(CloudEndpoint):
    """Knows the versions that a test adds. `operations` has the names of the requested ones."""

    def __init__(self) -> None:
        super().__init__()
        self.versions: list[Version] = []
        self.operations: list[str] = []
        self.answers["POST /"] = self._answer

    def add(self, name: str, text: str, kind: str = "AVRO", version_id: str | None = None, **more: Any) -> Version:
        """Add the next version of a schema."""
        number = 1 + sum(version.name == name for version in self.versions)
        version = Version(version_id or str(uuid.uuid4()), name, number, text, kind, **more)
        self.versions.append(version)
        return version

    def _answer(self, request: Request) -> Answer:
        operation = request.headers["x-amz-target"].removeprefix("AWSGlue.")
        self.operations.append(operation)
        body = json.loads(request.body)
        matching = [version for version in self.versions if _is_meant(version, operation, body)]
        if not matching:
            return error("EntityNotFoundException", f"Schema version is not found. {body}")
        version = matching[-1]
        reply = {
            "SchemaVersionId": version.version_id,
            "DataFormat": version.kind,
            "SchemaArn": f"arn:aws:glue:eu-central-1:1:schema/{version.registry}/{version.name}",
            "Status": version.status,
        }
        if operation == "GetSchemaVersion":
            reply |= {"SchemaDefinition": version.text, "VersionNumber": version.number}
        return _json(200, reply)


def error(kind: str, message: str, status: int = 400) -> Answer:
    """Return an error of Glue."""
    return _json(status, {"__type": kind, "Message": message})


def _is_meant(version: Version, operation: str, body: dict[str, Any]) -> bool:
    if "SchemaVersionId" in body:
        return version.version_id == body["SchemaVersionId"]
    schema = body["SchemaId"]
    if (version.name, version.registry) != (schema["SchemaName"], schema["RegistryName"]):
        return False
    if operation == "GetSchemaByDefinition":
        return version.text == body["SchemaDefinition"]
    number = body["SchemaVersionNumber"]
    return bool(number.get("LatestVersion")) or number["VersionNumber"] == version.number


def _json(status: int, content: dict[str, Any]) -> Answer:
    return status, {"Content-Type": "application/x-amz-json-1.1"}, json.dumps(content).encode()

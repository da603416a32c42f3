"""An environment without credentials of clouds, and stand-ins for their endpoints."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from protocol.clouds import library_call
from tests.support.cloud_endpoints import CloudEndpoint


@pytest.fixture(autouse=True)
def no_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Remove what this machine has: variables, files, and metadata endpoints."""
    vendors = ("AWS_", "AZURE_", "GOOGLE_", "GCE_", "GCP_", "IDENTITY_", "MSI_", "CLOUDSDK_", "BOTO")
    for name in list(os.environ):
        if name.upper().startswith(vendors) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "no-config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "no-credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    library_call.reset()  # another test's call may still run


@pytest.fixture
def endpoint() -> Iterator[CloudEndpoint]:
    with CloudEndpoint() as made:
        yield made

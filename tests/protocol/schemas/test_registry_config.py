"""Properties of schema registries: refusals and warnings with their names, and their secrets."""

from __future__ import annotations

import json
import pickle

import pytest

from protocol.base.once import deferred_warnings
from protocol.errors import ConfigurationError
from protocol.schemas.registry_config import parse_registry
from protocol.settings.secret import pickled_with_secrets
from tests.protocol.schemas.conftest import ID, LONG, OAUTH

USER = {"basic.auth.user.info": "me:hunter2"}
TOKEN = {"bearer.auth.token": "hunter2"}
STATIC = {"bearer.auth.credentials.source": "STATIC_TOKEN", **TOKEN}
SOURCE = "schema.registry.bearer.auth.credentials.source"


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({"urls": "x"}, "schema.registry.urls is unknown; did you mean schema.registry.url?"),
        ({"url": "registry:8081"}, "schema.registry.url has a wrong value.*not http://"),
        ({"url": "http://me:hunter2@r:1"}, "an entry has a user; use basic.auth.user.info"),
        (TOKEN, "schema.registry.bearer.auth.token is set, but schema.registry.url"),
        (OAUTH, f"{SOURCE} is set, but schema.registry.url is not"),
        ({"url": "http://r:1", "bearer.auth.credentials.source": "STATIC_TOKEN"},
         "bearer.auth.credentials.source is set, but schema.registry.bearer.auth.token is not"),
        ({"url": "http://r:1", "basic.auth.user.info": "hunter2"}, "there is no colon"),
        ({"url": "http://r:1", "basic.auth.user.info": "me:hunter2\udcff"}, "which is not shown .not valid UTF-8"),
        ({"url": "http://r:1", "basic.auth.credentials.source": "USER_INFO"},
         "basic.auth.credentials.source is set, but schema.registry.basic.auth.user.info is not"),
        *(({"url": "http://r:1", **USER, **bearer}, f"schema.registry.basic.auth.user.info and {SOURCE} are both set")
          for bearer in (OAUTH, STATIC)),
        ({"url": "http://r:1", **USER, **TOKEN},
         "schema.registry.basic.auth.user.info and schema.registry.bearer.auth.token are both set"),
        ({"url": "http://r:1", **TOKEN, **OAUTH}, f"schema.registry.bearer.auth.token and {SOURCE} are both set"),
        ({"glue.endpoint": "http://e:1"}, r"glue\.endpoint is set, but schema\.registry\.glue\.region is not"),
        ({"glue.registry.name": "a"}, r"glue\.registry\.name is set, but schema\.registry\.glue\.region is not"),
        ({"glue.region": "r", "url": "http://r:1"}, r"registry\.url has no effect with schema\.registry\.glue\.region"),
        ({"glue.region": "r", "basic.auth.user.info": "me:hunter2"}, r"user\.info has no effect with schema\.registry"),
        ({"glue.region": "r", "ssl.truststore.location": "/x"}, r"truststore\.location has no effect with"),
        ({"glue.region": "r", "glue.schemas": '{"a": "b"}'}, "badly formed hexadecimal UUID"),
        ({"glue.region": "r", "glue.schemas": "{}"}, "no JSON object with schemas"),
        ({"glue.schemas": f'{{"{ID}": null}}'}, f"{ID} has no schema"),
        ({"glue.schemas": f'{{"{ID}": 5}}'}, f"{ID} has no schema"),
        ({"glue.schemas": f'{{"{ID}": " "}}'}, f"{ID} has no schema"),
        ({"glue.schemas": f'{{"{ID}": NaN}}'}, "NaN is not JSON"),
        ({"glue.schemas": f'{{"{ID}": {LONG}, "{ID.upper()}": {LONG}}}'}, f"{ID} is there twice"),
        ({"glue.schemas": "file:/nowhere"}, "the file cannot be read"),
        ({"glue.schemas": "[" * 100_000}, "glue.schemas is"),
        ({"glue.region": "r", "glue.endpoint": "http://e:1,http://f:1"}, "there is more than one address"),
        ({"glue.region": "r", "glue.endpoint": "http://me:pw@e:1"}, "an entry has a user, and AWS Glue takes none"),
        ({"glue.region": "r", "glue.endpoint": "glue:1"}, "glue.endpoint has a wrong value, which is not shown"),
        ({"glue.region": "r", "glue.schemas": json.dumps({ID: LONG})}, r"glue\.region has no effect"),
        ({"glue.regoin": "r"}, r"did you mean schema\.registry\.glue\.region"),
    ],
)  # fmt: skip
def test_wrong_properties_are_refused_with_their_names(properties: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as refused:
        parse_registry({f"schema.registry.{name}": value for name, value in properties.items()})
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "others", "warned"),
    [
        ("bearer.auth.client.id", {}, True),
        ("bearer.auth.scope", {}, True),
        ("bearer.auth.logical.cluster", USER, True),
        ("bearer.auth.identity.pool.id", USER, True),
        ("bearer.auth.logical.cluster", TOKEN, False),
        ("bearer.auth.logical.cluster", {}, False),
    ],
)
def test_property_of_another_source_of_credentials_is_a_warning(
    name: str, others: dict[str, str], warned: bool
) -> None:
    properties = {"url": "http://r:1", name: "me", **others}
    with deferred_warnings() as warnings:
        parse_registry({f"schema.registry.{name}": text for name, text in properties.items()})
    assert [warning.partition(":")[0] for warning in warnings] == [f"schema.registry.{name} has no effect"] * warned


def test_configuration_reaches_other_processes_with_its_secret() -> None:
    config = parse_registry({"schema.registry.url": "http://r:1", "schema.registry.basic.auth.user.info": "me:hunter2"})
    assert config is not None
    assert pickle.loads(pickled_with_secrets(config)) == config
    assert "hunter2" not in repr(config)
    assert parse_registry({"group.id": "g"}) is None

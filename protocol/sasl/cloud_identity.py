"""The sources of tokens of `sasl.oauthbearer.metadata.authentication.type`, from their settings. Pure functions.

`azure_imds` and `aws_iam` and their settings are those of librdkafka and Confluent's clients; the others are ours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from protocol.base.spelling import closest_match
from protocol.errors import ConfigurationError
from protocol.sasl.config import SaslConfig
from protocol.settings.secret import hide_variables

IMDS_URL = "http://169.254.169.254/metadata/identity/oauth2/token"

_TYPE, _CONFIG = "sasl.oauthbearer.metadata.authentication.type", "sasl.oauthbearer.config"
_MIN_DURATION_S, _MAX_DURATION_S = 60, 3_600
_ALGORITHMS = ("ES384", "RS256")
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "0": "\0"}


@dataclass(frozen=True)
class AzureImds:
    """A managed identity's token from the metadata endpoint at `url`; without `query`, for Event Hubs."""

    url: str = IMDS_URL
    query: str | None = None


@dataclass(frozen=True)
class AzureIdentity:
    """A token of azure-identity; without `scope`, for the Event Hubs namespace of the broker."""

    scope: str | None = None
    client_id: str | None = None


@dataclass(frozen=True)
class AwsIam:
    """A token of the AWS signer, for MSK; fields that are None follow AWS's defaults and the broker's host name."""

    profile: str | None = None
    role_arn: str | None = None
    role_session_name: str | None = None
    region: str | None = None


@dataclass(frozen=True)
class AwsWebIdentity:
    """A JSON Web Token of AWS STS (GetWebIdentityToken)."""

    region: str
    audience: str
    duration_s: int = 300
    signing_algorithm: str = _ALGORITHMS[0]
    sts_endpoint: str | None = None
    tags: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class GoogleManagedKafka:
    """A token of google-auth, in the form that Google's Managed Kafka takes."""


CloudIdentity = AzureImds | AzureIdentity | AwsIam | AwsWebIdentity | GoogleManagedKafka


@hide_variables
def cloud_identity(config: SaslConfig) -> CloudIdentity:
    """Return the source of tokens for `config.metadata_type`.

    Raises `ConfigurationError`: `sasl.oauthbearer.config` has an unknown, missing or wrong setting.
    """
    text = "" if config.metadata_config is None else config.metadata_config.reveal()
    make, names = _TYPES[config.metadata_type]
    value_pairs = name_value_pairs(_CONFIG, text)
    for name in value_pairs:
        if name not in names and not (name.startswith("tag_") and "tag_" in names):
            raise _unknown(name, config.metadata_type, names)
    return make(config, value_pairs)


@hide_variables
def name_value_pairs(name: str, text: str) -> dict[str, str]:
    """Parse `name=value,name=value`; a backslash before a character keeps it, as in librdkafka.

    Raises `ConfigurationError`: a part has no name or no `=`; the message contains no value.
    """
    pairs = [part.strip().partition("=") for part in _split(text)]
    if not all(pair and equals for pair, equals, _ in pairs):
        raise ConfigurationError(f"{name} is [hidden]; allowed: name=value,name=value.", settings=(name,))
    return {name: value for name, _, value in pairs}


def _split(text: str) -> list[str]:
    parts, characters = [""], iter(text)
    for character in characters:
        if character == ",":
            parts.append("")
        elif character == "\\":
            following = next(characters, "")
            parts[-1] += _ESCAPES.get(following, following)
        else:
            parts[-1] += character
    return [part for part in parts if part.strip()]


def _azure_imds(config: SaslConfig, properties: Mapping[str, str]) -> AzureImds:
    return AzureImds(config.token_endpoint_url or IMDS_URL, properties.get("query") or None)


def _azure(config: SaslConfig, properties: Mapping[str, str]) -> AzureIdentity:
    return AzureIdentity(config.scope, properties.get("client_id") or None)


def _aws_iam(config: SaslConfig, properties: Mapping[str, str]) -> AwsWebIdentity:
    missing = [name for name in ("region", "audience") if not properties.get(name)]
    if missing:
        raise _wrong(f"lacks {' and '.join(missing)}; give region=REGION,audience=AUDIENCE", config.metadata_type)
    duration = properties.get("duration_seconds", "300")
    if not (duration.isascii() and duration.isdigit() and _MIN_DURATION_S <= int(duration) <= _MAX_DURATION_S):
        raise _wrong(f"has a wrong duration_seconds; allowed: {_MIN_DURATION_S} to {_MAX_DURATION_S}", "aws_iam")
    algorithm = properties.get("signing_algorithm", _ALGORITHMS[0])
    if algorithm not in _ALGORITHMS:
        raise _wrong(f"has a wrong signing_algorithm; allowed: {', '.join(_ALGORITHMS)}", "aws_iam")
    tags = tuple((name.removeprefix("tag_"), value) for name, value in properties.items() if name.startswith("tag_"))
    endpoint = properties.get("sts_endpoint") or None
    return AwsWebIdentity(properties["region"], properties["audience"], int(duration), algorithm, endpoint, tags)


def _aws_msk_iam(config: SaslConfig, properties: Mapping[str, str]) -> AwsIam:
    return AwsIam(**{name: value for name, value in properties.items() if value})


def _google(config: SaslConfig, properties: Mapping[str, str]) -> GoogleManagedKafka:
    return GoogleManagedKafka()


_TYPES: Mapping[str, tuple[Callable[[SaslConfig, Mapping[str, str]], CloudIdentity], tuple[str, ...]]] = {
    "azure_imds": (_azure_imds, ("query",)),
    "azure": (_azure, ("client_id",)),
    "aws_iam": (_aws_iam, ("region", "audience", "duration_seconds", "signing_algorithm", "sts_endpoint", "tag_")),
    "aws_msk_iam": (_aws_msk_iam, ("region", "profile", "role_arn", "role_session_name")),
    "google_managed_kafka": (_google, ()),
}


def _unknown(name: str, kind: str, names: tuple[str, ...]) -> ConfigurationError:
    # The name may be a part of a misplaced secret: it is shown only if it resembles a setting.
    like = closest_match(name, names)
    if like:
        return _wrong(f"has {name}; did you mean {like}?", kind)
    allowed = ", ".join(name + "NAME" if name == "tag_" else name for name in names) or "none"
    return _wrong(f"has an unknown setting; allowed: {allowed}", kind)


def _wrong(text: str, kind: str) -> ConfigurationError:
    end = "" if text.endswith("?") else "."
    return ConfigurationError(f"{_CONFIG} is [hidden], which for {_TYPE}={kind} {text}{end}", settings=(_CONFIG, _TYPE))

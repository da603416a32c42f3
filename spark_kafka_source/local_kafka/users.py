"""Settings of `LocalKafka` for users, SASL mechanisms and authorisation. Pure.

    LocalKafka(security="sasl_plaintext", users={"alice": "alice-secret"}, settings=acl_settings())

OAUTHBEARER tokens are unsigned: a client may claim any user name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from protocol.errors import UsageError

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")

_KAFKA = "org.apache.kafka.common.security"
_MODULES = {
    "PLAIN": f"{_KAFKA}.plain.PlainLoginModule",
    "SCRAM-SHA-256": f"{_KAFKA}.scram.ScramLoginModule",
    "SCRAM-SHA-512": f"{_KAFKA}.scram.ScramLoginModule",
    "OAUTHBEARER": f"{_KAFKA}.oauthbearer.OAuthBearerLoginModule",
}


def sasl_listener_settings(
    listener: str, users: Mapping[str, str], mechanisms: Sequence[str] = MECHANISMS, *, session_ms: int | None = None
) -> dict[str, str]:
    """Return broker settings of a SASL listener for these users (name -> password).

    `session_ms` is the time after which clients must authenticate again (KIP-368).
    """
    options = {
        "PLAIN": "".join(f" user_{name}={_quoted(password)}" for name, password in users.items()),
        "OAUTHBEARER": ' unsecuredLoginStringClaim_sub="broker"',
    }
    prefix = f"listener.name.{listener.lower()}"
    settings = {f"{prefix}.sasl.enabled.mechanisms": ",".join(mechanisms)}
    for mechanism in mechanisms:
        own = f"{prefix}.{mechanism.lower()}"
        settings[f"{own}.sasl.jaas.config"] = f"{_MODULES[mechanism]} required{options.get(mechanism, '')};"
        if session_ms is not None:
            settings[f"{own}.connections.max.reauth.ms"] = str(session_ms)
    return settings


def scram_credentials(users: Mapping[str, str]) -> list[str]:
    """Return arguments of Kafka's StorageTool for SCRAM users. Raises `UsageError` for users that it refuses."""
    # Its own message has the part of the password after the comma.
    if not users or any("," in text for user in users.items() for text in user):
        raise UsageError("users must have at least one user, and no name and no password with a comma")
    return [
        argument
        for name, password in users.items()
        for mechanism in MECHANISMS[1:3]
        for argument in ("--add-scram", f"{mechanism}=[name={name},password={password}]")
    ]


def sasl_properties(mechanism: str, name: str, password: str) -> dict[str, str]:
    """Return client properties of this user, for PLAIN or SCRAM."""
    jaas = f"{_MODULES[mechanism]} required username={_quoted(name)} password={_quoted(password)};"
    return {"sasl.mechanism": mechanism, "sasl.jaas.config": jaas}


def acl_settings(*super_users: str) -> dict[str, str]:
    """Return broker settings for authorisation by ACLs. `super_users` and clients without SASL have all permissions."""
    return {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": ";".join(f"User:{name}" for name in ("ANONYMOUS", *super_users)),
    }


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'

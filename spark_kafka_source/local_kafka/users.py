"""Who may sign in to a local broker, and what for: settings for `LocalKafka`. Pure.

    LocalKafka(security="sasl_plaintext", users={"alice": "alice-secret"}, settings=authorizing())

Tokens for OAUTHBEARER are not checked by anybody's signature: whoever says to be a user is one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")

_KAFKA = "org.apache.kafka.common.security"
_MODULES = {
    "PLAIN": f"{_KAFKA}.plain.PlainLoginModule",
    "SCRAM-SHA-256": f"{_KAFKA}.scram.ScramLoginModule",
    "SCRAM-SHA-512": f"{_KAFKA}.scram.ScramLoginModule",
    "OAUTHBEARER": f"{_KAFKA}.oauthbearer.OAuthBearerLoginModule",
}


def signing_in(
    listener: str,
    users: Mapping[str, str],
    mechanisms: Sequence[str] = MECHANISMS,
    *,
    session_ms: int | None = None,
) -> dict[str, str]:
    """Settings of a SASL listener for these users (name -> password).

    `session_ms`: so long is a sign-in good for (KIP-368).
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
    """For Kafka's StorageTool: the users of SCRAM are in the cluster's metadata. It takes no comma in a password."""
    return [
        argument
        for name, password in users.items()
        for mechanism in MECHANISMS[1:3]
        for argument in ("--add-scram", f"{mechanism}=[name={name},password={password}]")
    ]


def signed_in(mechanism: str, name: str, password: str) -> dict[str, str]:
    """Kafka's properties for a client that is this user, by PLAIN or SCRAM."""
    jaas = f"{_MODULES[mechanism]} required username={_quoted(name)} password={_quoted(password)};"
    return {"sasl.mechanism": mechanism, "sasl.jaas.config": jaas}


def authorizing(*super_users: str) -> dict[str, str]:
    """What a user may do is what ACLs say. `super_users`, and who comes without SASL, may do everything."""
    return {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": ";".join(f"User:{name}" for name in ("ANONYMOUS", *super_users)),
    }


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'

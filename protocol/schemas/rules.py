"""Rules of a schema (a data contract): this client applies none, so it refuses rules that change values.

Source: Confluent's Schema Registry API reference (`ruleSet`), and the rules that its serialisers apply.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from protocol.base.listing import listed
from protocol.base.once import warn_once
from protocol.errors import ConfigurationError

Use = Literal["READ", "WRITE", "UPGRADE", "DOWNGRADE"]

_GROUPS = ("migrationRules", "domainRules", "encodingRules")
_BOTH_WAYS = {"WRITEREAD": ("WRITE", "READ"), "UPDOWN": ("UPGRADE", "DOWNGRADE")}
# Environments whose clients apply the rules of a rule set; a gateway applies the others before a client sees a value.
_CLIENTS = ("ALL", "CLIENT")
# Types ENCRYPT and ENCRYPT_PAYLOAD: readers find ciphertext in the records, also if the rule acts on writing only.
_ENCRYPTION = "ENCRYPT"
_REMEDY = "Disable the rule in the registry, or use the format binary and a client that applies rules"


@dataclass(frozen=True)
class Rule:
    """An enabled rule of a schema.

    `group`: "migrationRules", "domainRules" or "encodingRules".
    `kind`: "TRANSFORM" or "CONDITION".
    `mode`: "READ", "WRITE" or "WRITEREAD"; of migration rules "UPGRADE", "DOWNGRADE" or "UPDOWN".
    `type`: the executor, such as "ENCRYPT", "CEL" or "JSONATA".
    """

    name: str
    group: str
    kind: str
    mode: str
    type: str

    def __str__(self) -> str:
        return f"{self.name} ({self.group}, kind {self.kind}, type {self.type}, mode {self.mode})"

    @property
    def only_validates(self) -> bool:
        """True if values stay as they are."""
        return self.kind == "CONDITION" and self.group == "domainRules" and not self._encrypts

    @property
    def _encrypts(self) -> bool:
        return self.type.startswith(_ENCRYPTION)

    def concerns(self, use: Use) -> bool:
        """Return whether values change, or are checked, in this use of the schema."""
        return use in _BOTH_WAYS.get(self.mode, (self.mode,)) or (use == "READ" and self._encrypts)


def parse_rules(rule_set: Mapping[str, Any] | None) -> tuple[Rule, ...]:
    """Return the enabled rules of a `ruleSet` of a registry. Raises as a mapping does if it is no rule set."""
    if not rule_set or str(rule_set.get("enableAt") or "ALL").upper() not in _CLIENTS:
        return ()
    return tuple(
        Rule(
            str(rule["name"]),
            group,
            str(rule.get("kind") or "TRANSFORM").upper(),
            str(rule.get("mode") or ("UPDOWN" if group == "migrationRules" else "WRITEREAD")).upper(),
            str(rule.get("type") or "unknown").upper(),
        )
        for group in _GROUPS
        for rule in rule_set.get(group) or ()
        if not rule.get("disabled")
    )


def refuse_rules(rules: Sequence[Rule], uses: tuple[Use, ...], owner: str) -> None:
    """Refuse a schema whose rules change values; warn once of rules that only validate values.

    `uses` (tuple of {"READ", "WRITE", "UPGRADE", "DOWNGRADE"}): how the schema is used: to read values of other
    versions is an upgrade or a downgrade.
    `owner`: the schema, as the message names it.
    Raises `ConfigurationError`.
    """
    applicable = [rule for rule in rules if any(rule.concerns(use) for use in uses)]
    if changing := [rule for rule in applicable if not rule.only_validates]:
        raise ConfigurationError(
            f"{owner} has rules that are not applied here, and that change values: "
            f"{listed([str(rule) for rule in changing])}. {_REMEDY}"
        )
    if applicable:
        warn_once(f"{owner} has rules that are not checked here: {listed([str(rule) for rule in applicable])}")

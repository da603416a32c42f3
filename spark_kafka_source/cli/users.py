"""`pykafka users`: list, set and delete SCRAM credentials of users."""

from __future__ import annotations

import click

from protocol.admin.admin import Admin
from protocol.admin.users import ScramDeletion, ScramMechanism, ScramUpsertion
from spark_kafka_source.cli.connection import Cluster, asks_brokers, prints_done
from spark_kafka_source.cli.rows import output_option, print_rows
from spark_kafka_source.cli.secrets import SOURCES, read_secret

_MECHANISMS = {mechanism.name.replace("_", "-"): mechanism for mechanism in ScramMechanism}
_mechanism_type = click.Choice(list(_MECHANISMS), case_sensitive=False)


@click.group()
def users() -> None:
    """List, set and delete the SCRAM credentials of users."""


@users.command("list")
@click.argument("names", metavar="[USER]...", nargs=-1)
@output_option
@asks_brokers
def list_command(cluster: Cluster, names: tuple[str, ...], output: str) -> None:
    """List the mechanisms and iterations of users; salts and keys never leave the brokers.

    \b
    Examples:
      pykafka users list
      pykafka users list alice bob -o json
    """
    scram_credentials = Admin(cluster.client).describe_user_scram_credentials(names or None, timeout_ms=cluster.left_ms)
    rows = [
        (user, mechanism.name.replace("_", "-"), iterations)
        for user, credentials in sorted(scram_credentials.items())
        for mechanism, iterations in sorted(credentials.items())
    ]
    print_rows(("user", "mechanism", "iterations"), rows, output)


@users.command("set")
@click.argument("name", metavar="USER")
@click.option("--mechanism", type=_mechanism_type, default="SCRAM-SHA-512", show_default=True)
@click.option("--iterations", type=click.IntRange(4096, 16384), default=8192, show_default=True)
@click.option("--password-from", metavar="SOURCE", help=f"{SOURCES}; file:- is standard input.  [default: a prompt]")
@asks_brokers
def set_command(cluster: Cluster, name: str, mechanism: str, iterations: int, password_from: str | None) -> None:
    """Create or replace the password of a user. It is salted and hashed here.

    \b
    Examples:
      pykafka users set alice
      pykafka users set alice --mechanism SCRAM-SHA-256 --password-from file:/run/secrets/alice
    """
    password = read_secret(password_from, f"password of {name}")
    new = ScramUpsertion(name, password, _MECHANISMS[mechanism.upper()], iterations)
    Admin(cluster.client).alter_user_scram_credentials([new], timeout_ms=cluster.left_ms)
    click.echo(f"set {mechanism.upper()} of {name}")


@users.command()
@click.argument("names", metavar="USER...", nargs=-1, required=True)
@click.option("--mechanism", type=_mechanism_type, help="Only this one.  [default: all of the user]")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@asks_brokers
def delete(cluster: Cluster, names: tuple[str, ...], mechanism: str | None, yes: bool) -> None:
    """Delete the credentials of users, after confirmation.

    \b
    Examples:
      pykafka users delete alice
      pykafka users delete alice bob --mechanism SCRAM-SHA-256 --yes
    """
    admin = Admin(cluster.client)
    scram_credentials = admin.describe_user_scram_credentials(names, timeout_ms=cluster.left_ms)
    deletions = [
        ScramDeletion(name, scram_mechanism)
        for name in dict.fromkeys(names)
        for scram_mechanism in ([_MECHANISMS[mechanism.upper()]] if mechanism else sorted(scram_credentials[name]))
    ]
    by_user: dict[str, list[str]] = {}
    for deletion in deletions:
        text = f"{deletion.mechanism.name.replace('_', '-')} of {deletion.user}"
        by_user.setdefault(deletion.user, []).append(text)
    shown = {user: ", ".join(texts) for user, texts in by_user.items()}
    if not yes:
        click.confirm(f"Delete {', '.join(shown.values())}?", abort=True, err=True)
    with prints_done("deleted", shown):
        admin.alter_user_scram_credentials(deletions, timeout_ms=cluster.left_ms)

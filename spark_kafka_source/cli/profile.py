"""`pykafka profile`: list, show and choose profiles."""

from __future__ import annotations

import click

from spark_kafka_source.cli.profiles import complete_profiles, read_profiles, shown
from spark_kafka_source.cli.rows import output_option, print_rows


@click.group()
def profile() -> None:
    """List, show and choose profiles: properties of clusters in a TOML file."""


@profile.command("list")
@output_option
def list_command(output: str) -> None:
    """List the profiles with their brokers, and which one is in use.

    \b
    Examples:
      pykafka profile list
      pykafka profile list -o json
    """
    profiles = read_profiles()
    rows = [
        (name, properties.get("bootstrap.servers"), name == profiles.used)
        for name, properties in profiles.by_name.items()
    ]
    print_rows(("profile", "bootstrap_servers", "used"), rows, output)


@profile.command()
@click.argument("name", required=False, shell_complete=complete_profiles)
@click.option("--none", is_flag=True, help="Use no profile.")
def use(name: str | None, none: bool) -> None:
    """Use a profile in commands that name no brokers themselves.

    \b
    Examples:
      pykafka profile use prod
      pykafka profile use --none
    """
    if (name is not None) == none:
        raise click.UsageError("Give either a profile or --none.")
    profiles = read_profiles()
    if name is not None:
        profiles.properties(name)
    profiles.use(name)
    click.echo("no profile is used" if name is None else f"using {name}")


@profile.command()
@click.argument("name", required=False, shell_complete=complete_profiles)
@output_option
def show(name: str | None, output: str) -> None:
    """Show the properties of a profile, by default of the one in use. Secrets are hidden.

    \b
    Examples:
      pykafka profile show
      pykafka profile show prod -o yaml
    """
    profiles = read_profiles()
    if (chosen := name or profiles.used) is None:
        raise click.UsageError("No profile is used; name one.")
    properties = profiles.properties(chosen)
    print_rows(("property", "value"), [(name, shown(name, value)) for name, value in properties.items()], output)

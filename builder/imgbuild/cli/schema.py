"""`imgbuild schema [NAME]`."""

from __future__ import annotations

import click

from imgbuild.cli.schemas import names, shipped


@click.command("schema")
@click.argument("name", required=False, shell_complete=lambda _c, _p, text: [n for n in names() if n.startswith(text)])
def command(name: str | None) -> int:
    """Print the JSON Schema of a document; without NAME, list the names."""
    if name is None:
        for known in names():
            click.echo(known)
        return 0
    if name not in names():
        raise click.UsageError(f"there is no schema {name!r}; there are: {', '.join(names())}")
    click.echo(shipped(name), nl=False)
    return 0

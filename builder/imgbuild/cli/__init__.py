"""The command line: one module per verb, imported only when it is used. The only tier that prints.

The result goes to stdout, everything else to stderr. Exit codes are those of the errors (README, "Exit codes").
"""

from __future__ import annotations

import importlib
import sys
from typing import NoReturn

import click

from imgbuild import __version__

_VERBS = {
    "build": "Build an image from its lock, verify it, and tag it.",
    "inventory": "List what is in the layers of an image.",
    "lock": "Resolve a definition to digests and write its lock.",
    "plan": "Show what a build would do, without network.",
    "schema": "Print the JSON Schema of a document.",
    "verify": "Recompute everything about a built image from its bytes.",
}
_INTERRUPTED = 130
"""128 + SIGINT, as shells report it; not one of ours, so that it cannot be taken for an answer."""


class _Verbs(click.Group):
    """Knows its verbs by name and imports them late, so that `--help` answers at once."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's interface
        return sorted(_VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in _VERBS:
            return None
        command = importlib.import_module(f"imgbuild.cli.{cmd_name}").command
        assert isinstance(command, click.Command)  # noqa: S101 - each verb's module defines one
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl(sorted(_VERBS.items()))


@click.group(
    cls=_Verbs,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Start with `imgbuild plan mini`. `imgbuild COMMAND --help` explains one command.",
)
@click.version_option(__version__, prog_name="imgbuild")
def group() -> None:
    """Build huge inference images reproducibly: a small, exactly known change on a pinned base."""


def run(arguments: list[str]) -> int:
    """Run one command and return its exit code; errors are printed."""
    from imgbuild.errors import ImgbuildError  # noqa: PLC0415 - keeps --help fast

    try:
        result = group.main(arguments, prog_name="imgbuild", standalone_mode=False)
    except click.exceptions.Abort:
        click.echo("interrupted; nothing was tagged, the next run continues", err=True)
        return _INTERRUPTED
    except click.ClickException as error:
        from imgbuild.cli.render import usage_error  # noqa: PLC0415

        return usage_error(error, as_json="--json" in arguments)
    except ImgbuildError as error:
        from imgbuild.cli.render import report_error  # noqa: PLC0415

        return report_error(error, as_json="--json" in arguments)
    except Exception as error:  # noqa: BLE001 - whatever is left is a bug, and says so
        from imgbuild.cli.render import report_bug  # noqa: PLC0415

        return report_bug(error, as_json="--json" in arguments)
    return result if isinstance(result, int) else 0


def main() -> NoReturn:
    """Entry point of the `imgbuild` program."""
    sys.exit(run(sys.argv[1:]))

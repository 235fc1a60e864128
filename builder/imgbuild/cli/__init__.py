"""The command line: one module per verb, imported only when it is used. The only tier that prints.

The result goes to stdout, everything else to stderr. Exit codes are those of the errors (README, "Exit codes").
"""

from __future__ import annotations

import gc
import importlib
import os
import signal
import sys
from typing import TYPE_CHECKING, NoReturn

import click

from imgbuild import __version__
from imgbuild.cli.streams import StreamError, flush_streams, guard_streams

if TYPE_CHECKING:
    from types import FrameType

_VERBS = {
    "build": "Build an image from its lock, verify it, and tag it.",
    "check": "Ask whether all that a lock pins can still be had.",
    "explain": "Say where a path of an image comes from, and who loads it.",
    "inventory": "List what is in the layers of an image.",
    "lock": "Resolve a definition to digests and write its lock.",
    "nccl": "Say what identifies an NCCL library, and compare two.",
    "plan": "Show what a build would do, without network.",
    "schema": "Print the JSON Schema of a document.",
    "verify": "Recompute everything about a built image from its bytes.",
}
_SIGNALLED = 128
"""Exit codes of what a signal ended are this and its number, as shells report them; they cannot be taken for ours."""
_YOUNG = 200_000
"""objects that are made until Python looks for circles among them; with its 700, that is a tenth of a warm build."""
_TURN = 0.001
"""seconds after which a thread gives way to those that wait for the interpreter, such as one that hashes and needs it
for an instant between two pieces; with Python's 0.005 hashing takes twice as long beside a thread that computes."""
_SAFE = {
    "build": "; what was not verified has no tag, the next run continues",
    "lock": "; no lock was written, the next run continues",
}
"""What the verbs that write leave behind when they are interrupted."""


class _Signalled(KeyboardInterrupt):
    """A signal that asks the process to end takes the way of Ctrl-C, which leaves neither programs nor files behind."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


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
    try:
        code = _run(arguments)
        flush_streams()
    except StreamError as error:
        return _unheard(error)
    return code


def _run(arguments: list[str]) -> int:
    from imgbuild.errors import ImgbuildError, UsageError  # noqa: PLC0415 - keeps --help fast

    try:
        result = group.main(arguments, prog_name="imgbuild", standalone_mode=False)
    except click.exceptions.Abort as abort:
        return _interrupted(arguments, abort.__cause__)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return error.exit_code
    except click.ClickException as error:
        from imgbuild.cli.render import usage_error  # noqa: PLC0415

        return usage_error(error, as_json="--json" in arguments)
    except ImgbuildError as error:
        from imgbuild.cli.render import report_error  # noqa: PLC0415

        if isinstance(error, UsageError) and error.hint is None:
            error.hint = f"see `{' '.join(('imgbuild', *_verb(arguments)))} --help`"
        return report_error(error, as_json="--json" in arguments)
    except StreamError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever is left is a bug, and says so
        from imgbuild.cli.render import report_bug  # noqa: PLC0415

        return report_bug(error, as_json="--json" in arguments)
    return result if isinstance(result, int) else 0


def _interrupted(arguments: list[str], cause: BaseException | None) -> int:
    number = cause.number if isinstance(cause, _Signalled) else signal.SIGINT
    safe = "".join(_SAFE.get(verb, "") for verb in _verb(arguments))
    click.echo(f"{'interrupted' if number == signal.SIGINT else 'terminated'}{safe}", err=True)
    for note in getattr(cause, "__notes__", ()):
        click.echo(f"  {note}", err=True)
    return _SIGNALLED + number


def _verb(arguments: list[str]) -> list[str]:
    """The verb, if there is one."""
    return [word for word in arguments if word in _VERBS][:1]


def _unheard(error: StreamError) -> int:
    """The exit code where the output cannot be written: that of SIGPIPE if nobody reads it, else that of storage."""
    if error.is_closed:
        return _SIGNALLED + signal.SIGPIPE
    from imgbuild.cli.render import report_error  # noqa: PLC0415
    from imgbuild.errors import StorageError  # noqa: PLC0415

    found = StorageError(
        "standard output",
        f"cannot be written: {error.reason}",
        hint="free some space, or send it elsewhere; what was done by then stays done",
    )
    return report_error(found, as_json=False)


def _end(number: int, _frame: FrameType | None) -> None:
    # Once is enough: a second one would cut short what the first one has begun to clear up.
    signal.signal(number, signal.SIG_IGN)
    raise _Signalled(number)


def main() -> NoReturn:
    """Entry point of the `imgbuild` program."""
    guard_streams()
    gc.set_threshold(_YOUNG, *gc.get_threshold()[1:])
    sys.setswitchinterval(_TURN)
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _end)
    if os.environ.get("_IMGBUILD_COMPLETE", "").startswith("bash"):
        import imgbuild.cli.bash  # noqa: F401, PLC0415 - registers itself
    code = run(sys.argv[1:])
    # What is alive goes with the process: nobody need look for circles in it before.
    gc.freeze()
    sys.exit(code)

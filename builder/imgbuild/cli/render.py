"""How things look: text on stdout, errors for people or as a document."""

from __future__ import annotations

import sys
import traceback
from typing import TYPE_CHECKING, Any

import click

from imgbuild import jsontext
from imgbuild.model.decode import builtins
from imgbuild.text import printable

if TYPE_CHECKING:
    from imgbuild.errors import FailedHunk, ImgbuildError
    from imgbuild.ledger import Ledger
    from imgbuild.model.identity import Finding, Report

_COLOURS = {"match": "green", "differs": "red", "not-checked": "yellow"}
_CHANGED = 20
"""files that are named besides the one that a patch does not fit; --json has them all."""


class Output:
    """Where a command prints. `as_json` silences all text on stdout but the document.

    `colour` is for stdout; `plain` forbids colours everywhere, also in bars (cli.bars).
    """

    def __init__(self, *, as_json: bool, quiet: bool, verbose: bool, colour: bool, plain: bool = False) -> None:
        self.as_json = as_json
        self.quiet = quiet
        self.verbose = verbose
        self.plain = plain
        self._colour = colour and not plain

    def line(self, text: str = "", *, colour: str | None = None, bold: bool = False) -> None:
        """One line of the result."""
        if not self.as_json and not self.quiet:
            click.echo(self.style(text, colour=colour, bold=bold), color=self._colour or None)

    def answer(self, text: str, *, ok: bool, colour: str | None = None, bold: bool = False) -> None:
        """A line of the answer; where that is no, --quiet does not hide it but sends it to stderr."""
        if not ok and self.quiet:
            click.echo(one_line(text), err=True)
        else:
            self.line(text, colour=colour, bold=bold)

    def style(self, text: str, *, colour: str | None = None, bold: bool = False) -> str:
        """Text with every control character made visible, in a colour if colours are wanted."""
        shown = one_line(text)
        return click.style(shown, fg=colour, bold=bold) if self._colour and (colour or bold) else shown

    def document(self, value: Any) -> None:
        """The result as JSON, if that was asked for."""
        if self.as_json:
            click.echo(jsontext.dumps(builtins(value)), nl=False)

    def note(self, text: str) -> None:
        """A line on stderr that is worth knowing."""
        if not self.quiet:
            click.echo(one_line(text), err=True)


def clean(text: str) -> str:
    """Lines from anywhere with control and direction characters escaped, so that it cannot drive a terminal."""
    return "\n".join(one_line(line) for line in text.split("\n"))


def one_line(text: str) -> str:
    """The same for a text that must not look like two: a name from outside could imitate a line of ours."""
    return printable(text, sys.maxsize)


def amount(count: int) -> str:
    """Bytes for people: 253.8 MB (10^6)."""
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000 or unit == "GB":  # noqa: PLR2004 - decimal units
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} GB"


def show_report(output: Output, report: Report) -> None:
    """Counts, then one line a check (with -v one a finding), then what was found and is not required.

    What is required and no match belongs to the answer: `show_answer`.
    """
    from imgbuild.model.identity import Verdict  # noqa: PLC0415

    counts = ", ".join(f"{report.count(verdict)} {verdict.value}" for verdict in Verdict)
    output.line(f"identities   {counts}", bold=True)
    groups: dict[str, list[Finding]] = {}
    for finding in report.findings:
        if finding.verdict is Verdict.MATCH:
            groups.setdefault(finding.check, []).append(finding)
    for check, findings in groups.items():
        if output.verbose:
            for finding in findings:
                _finding(output, finding)
            continue
        subject = findings[0].subject if len(findings) == 1 else f"{len(findings)} checked"
        output.line(_row("match", check, subject), colour=_COLOURS["match"])
    for finding in report.findings:
        if finding.verdict is not Verdict.MATCH and not finding.required:
            _finding(output, finding)


def show_answer(output: Output, report: Report, yes: str, no: str) -> None:
    """The last line; `no` is its first word where a required check is no match, and those stand before it, whole."""
    if report.ok:
        output.answer(yes, ok=True, colour="green", bold=True)
        return
    for finding in report.failed:
        _finding(output, finding, ok=False)
    output.answer(f"{no:12} {why_not(report)}", ok=False, colour="red", bold=True)


def why_not(report: Report) -> str:
    """Why a report does not pass: how many required checks differ or could not be made, and the first of them."""
    from imgbuild.model.identity import Verdict  # noqa: PLC0415

    if not report.failed:
        return "nothing was checked"
    differ = sum(1 for finding in report.failed if finding.verdict is Verdict.DIFFERS)
    word = "check differs" if differ == 1 else "checks differ"
    first = report.failed[0]
    more = "" if len(report.failed) == 1 else "first "
    counts = f"{differ} required {word}, {len(report.failed) - differ} could not be made"
    return f"{counts}: {more}{first.check} {first.subject}"


def _row(verdict: str, check: str, subject: str) -> str:
    return f"  {verdict:11}  {check:24}  {subject}"


def _finding(output: Output, finding: Finding, *, ok: bool = True) -> None:
    verdict = finding.verdict.value
    output.answer(_row(verdict, finding.check, finding.subject), ok=ok, colour=_COLOURS[verdict])
    for name in ("expected", "actual", "reason"):
        value = getattr(finding, name)
        if value is not None:
            output.answer(f"               {name:8} {value}", ok=ok)


def show_moved(output: Output, ledger: Ledger) -> None:
    """The byte ledger in one line."""
    parts = [f"{row.place} {amount(row.read)} read, {amount(row.written)} written" for row in ledger.rows()]
    output.line(f"bytes moved  {'; '.join(parts) or 'none'}")


def report_error(error: ImgbuildError, *, as_json: bool) -> int:
    """Print an error; returns its exit code."""
    if as_json:
        from imgbuild.cli.results import TOOL  # noqa: PLC0415
        from imgbuild.cli.results_error import ErrorDocument, error_body  # noqa: PLC0415

        document = ErrorDocument(schema="imgbuild/error/v1", tool=TOOL, error=error_body(error))
        click.echo(jsontext.dumps(builtins(document)), nl=False)
    click.echo(one_line(f"error[{error.code}]: {error}"), err=True)
    for line in _patch_lines(error):
        click.echo(one_line(line), err=True)
    for name, cause in getattr(error, "causes", ()):
        click.echo(one_line(f"  {name}: {cause.code}: {cause}"), err=True)
        if cause.hint:
            click.echo(one_line(f"      {cause.hint}"), err=True)
    click.echo(one_line(f"  hint: {error.hint or error.advice}"), err=True)
    return error.exit_code


def _patch_lines(error: ImgbuildError) -> list[str]:
    """The file that a patch or an edit does not fit, the hunk or text beside what is there, and what else has moved."""
    from imgbuild.errors import OfPatch  # noqa: PLC0415 - keeps --help fast

    if not isinstance(error, OfPatch):
        return []
    file, lines = error.file, []
    if file is not None:
        lines = [f"  file {file.path}  ({file.step})", f"      is now    {file.found}"]
        if file.recorded is not None:
            lines.append(f"      lock has  {file.recorded}{' (the same)' if file.recorded == file.found else ''}")
    if error.hunk is not None:
        lines += _hunk_lines(error.hunk)
    others = [one for one in error.changed if file is None or (one.path, one.step) != (file.path, file.step)]
    if others:
        more = "1 more file" if len(others) == 1 else f"{len(others)} more files"
        lines.append(f"  the base has {more} otherwise that steps touch")
        lines += [f"      {one.path}  ({one.step})" for one in others[:_CHANGED]]
        lines += [f"      and {len(others) - _CHANGED} more"] if len(others) > _CHANGED else []
    return lines


def _hunk_lines(hunk: FailedHunk) -> list[str]:
    lines = []
    if hunk.number is None:
        lines += ["  text to find", *(f"      {line}" for line in hunk.lines)]
        lines.append(f"  nearest to it, from line {hunk.at} (! is not in that text)")
        return lines + ([f"      {line}" for line in hunk.there] or ["      (nothing like it is in the file)"])
    lines += [f"  hunk {hunk.number}  {hunk.header}", *(f"      {line}" for line in hunk.lines)]
    lines.append(f"  there, from line {hunk.at} (! is not what the hunk expects)")
    return lines + ([f"      {line}" for line in hunk.there] or ["      (the file is empty)"])


def usage_error(error: click.ClickException, *, as_json: bool) -> int:
    """Print click's own errors in our form."""
    from imgbuild.errors import UsageError  # noqa: PLC0415

    context = getattr(error, "ctx", None)
    hint = f"see `{context.command_path} --help`" if context is not None else "see `imgbuild --help`"
    return report_error(UsageError("command line", error.format_message(), hint=hint), as_json=as_json)


def report_bug(error: Exception, *, as_json: bool) -> int:
    """Print what is a bug of ours, with the traceback."""
    from imgbuild.errors import InternalError  # noqa: PLC0415

    click.echo(clean("".join(traceback.format_exception(error))), err=True)
    found = InternalError(
        type(error).__name__,
        f"was not expected: {error}",
        hint="this is a bug of imgbuild; please report it with the text above",
    )
    return report_error(found, as_json=as_json)

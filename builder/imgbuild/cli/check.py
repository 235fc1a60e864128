"""`imgbuild check IMAGE`."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from typing import TYPE_CHECKING

import click

from imgbuild.cli.options import Settings, image_argument, shared
from imgbuild.cli.render import show_moved

if TYPE_CHECKING:
    from imgbuild.adapters.registry.session import Registries
    from imgbuild.cli.render import Output
    from imgbuild.cli.results import CheckPinBody
    from imgbuild.ledger import Ledger
    from imgbuild.steps.context import Context
    from imgbuild.steps.liveness import Liveness, Pin

_COLOURS = {"alive": "green", "gone": "red", "differs": "red", "not-allowed": "yellow", "unreachable": "yellow"}
_LOST = {
    "base": "look for a copy (a mirror, a store, a node that runs it), push it where it stays, and name that place as "
    "a mirror in registries.toml; or take another base: `imgbuild lock {image} --update base`, or change "
    "base.manifest where the definition has one",
    "git": "where a clone has the commit, keep it in the repository as a bundle (`git bundle create`) and name that as "
    "the source; or take another commit: `imgbuild lock {image} --update {name}`",
    "file": "give the file again, `imgbuild build {image} --source {name}=FILE`; or correct its digest in the "
    "definition, then `imgbuild lock {image}`",
    "url": "where a cache has the file, keep it and give it by `--source {name}=FILE`; or put it to another address, "
    "and name that in the definition, then `imgbuild lock {image}`",
    "image-member": "where a cache has the file, keep it and give it by `--source {name}=FILE`; or name another image "
    "in the definition, then `imgbuild lock {image}`",
    "wheel": "where a cache has the file, put it into an index or folder that pip is configured for; or change the "
    "version in the definition, then `imgbuild lock {image} --update {name}`",
}
_FIRST_SECONDS = 0.5
"""seconds before a registry is asked for the second time; before the third it is twice as long."""
_TAGS = {
    "same": "names what is pinned",
    "moved": "names something else now, which changes nothing here:",
    "gone": "is gone, which changes nothing here",
    "unknown": "could not be asked for",
}


@click.command("check")
@image_argument
@shared
def command(image: str, *, settings: Settings) -> int:
    """Ask whether all that the lock of IMAGE pins can still be had.

    It asks the places that the lock names, and no mirror of them: the registry of the base, git repositories, and the
    index that pip is configured for. Where the base has a local name (localhost/NAME) there is no such registry: its
    mirrors in registries.toml are asked in turn, then the store; so it is with images that a source is in. An address
    is asked for the length of its file. An operator's file can only be looked for in the cache.

    Exit code 0: all pins are alive; 1: at least one is gone, or is something else now; 5: none is, but not all could
    be asked for.
    """
    from imgbuild.steps.liveness import check_pins  # noqa: PLC0415 - imported when used

    project = settings.open_project()
    if image not in project.images():
        # It says which images there are; of one that is defined, the lock alone matters here.
        project.load(image)
    lock = project.require_lock(image)
    context = _impatient(settings, settings.context(project, staged=False))
    found = check_pins(context, lock)
    words = project.words(image)
    _document(settings.output, image, words, found, context.ledger)
    _show(settings.output, words, found)
    show_moved(settings.output, context.ledger)
    return _answer(settings.output, found)


def _impatient(settings: Settings, context: Context) -> Context:
    """The same surroundings, whose registries are given up sooner: an answer is wanted, not the bytes."""

    @functools.cache
    def connect() -> Registries:
        from imgbuild.adapters.registry.access import connect as open_registries  # noqa: PLC0415 - takes 60 ms
        from imgbuild.adapters.registry.patience import Patience  # noqa: PLC0415
        from imgbuild.adapters.registry.wire import Times  # noqa: PLC0415

        return open_registries(
            settings.registries,
            ledger=context.ledger,
            offline=settings.offline,
            note=context.progress.note,
            times=Times(connect=10.0, idle=20.0, head=30.0, window=20.0, document=30.0),
            patience=Patience(attempts=3, first=_FIRST_SECONDS, cap=5.0, asked_cap=20.0),
        )

    return dataclasses.replace(context, connect=connect)


def _document(output: Output, image: str, words: str, found: Liveness, ledger: Ledger) -> None:
    from imgbuild.cli.results import TOOL, CheckBody, CheckDocument, CheckTagBody, moved_bodies  # noqa: PLC0415

    tag = found.tag
    body = CheckBody(
        image=image,
        ok=found.lost == 0 and found.unasked == 0,
        complete=found.unasked == 0,
        pins=[_body(words, pin) for pin in found.pins],
        tag=None if tag is None else CheckTagBody(reference=tag.reference, state=tag.state, now=tag.now),
        moved=moved_bodies(ledger),
    )
    output.document(CheckDocument(schema="imgbuild/check-result/v1", tool=TOOL, result=body))


def _body(words: str, pin: Pin) -> CheckPinBody:
    from imgbuild.cli.results import CheckPinBody  # noqa: PLC0415

    return CheckPinBody(
        kind=pin.kind,
        name=pin.name,
        what=pin.what,
        pin=pin.pin,
        where=pin.where,
        verdict=pin.verdict.value,
        detail=pin.detail,
        hint=_hint(words, pin),
    )


def _hint(words: str, pin: Pin) -> str | None:
    if pin.verdict.value not in {"gone", "differs"}:
        return pin.hint
    return _LOST.get(pin.kind, _LOST["wheel"]).format(image=words, name=pin.name)


def _show(output: Output, words: str, found: Liveness) -> None:
    """A group a kind; layers that are alive are one line, unless with -v. What is not alive says why and what to do."""
    from imgbuild.steps.liveness import Verdict  # noqa: PLC0415

    counts = ", ".join(f"{found.count(verdict)} {verdict.value}" for verdict in Verdict)
    output.line(f"pins         {counts}", bold=True)
    for kind in dict.fromkeys(pin.kind for pin in found.pins):
        pins = [pin for pin in found.pins if pin.kind == kind]
        places = dict.fromkeys(pin.where for pin in pins)
        output.line(f"{kind:12} {', '.join(places)}")
        layers = [pin for pin in pins if pin.what.startswith("layer ") and pin.verdict is Verdict.ALIVE]
        shown = pins if output.verbose else [pin for pin in pins if pin not in layers]
        for said, same in itertools.groupby(shown, functools.partial(_said, words)):
            _pins(output, list(same), said, placed=len(places) == 1 and not output.quiet)
        if layers and not output.verbose:
            many = "layer" if len(layers) == 1 else "layers"
            output.line(f"  {'alive':11}  {len(layers)} {many}", colour=_COLOURS["alive"])
    if found.tag is not None:
        output.line(f"tag          {found.tag.reference} {_TAGS[found.tag.state]}")
        if found.tag.state == "moved":
            output.line(f"             {found.tag.now}")


def _said(words: str, pin: Pin) -> tuple[str, str, str | None, str | None]:
    return pin.verdict.value, pin.where, pin.detail, _hint(words, pin)


def _pins(output: Output, pins: list[Pin], said: tuple[str, str, str | None, str | None], *, placed: bool) -> None:
    """Pins with one answer, and that answer once: of a base that is lost, sixty layers would say the same.

    `placed` says that the line above them names the one place of all.
    """
    verdict, *words = said
    ok = verdict == "alive"
    for pin in pins:
        output.answer(f"  {verdict:11}  {pin.what}  {pin.pin}", ok=ok, colour=_COLOURS[verdict])
    if ok and not output.verbose:
        return
    for name, value in zip(("where", "detail", "hint"), words, strict=True):
        if value is not None and not (placed and name == "where"):
            output.answer(f"               {name:8} {value}", ok=ok)


def _answer(output: Output, found: Liveness) -> int:
    """The last line, and the exit code."""
    if found.lost:
        text = f"GONE         {found.lost} of {len(found.pins)} pins cannot be had any more"
        more = f"; {found.unasked} could not be asked for, and may be gone, too" if found.unasked else ""
        output.answer(text + more, ok=False, colour="red", bold=True)
        return 1
    if found.unasked:
        text = f"NOT CHECKED  {found.unasked} of {len(found.pins)} pins could not be asked for, and may be gone"
        output.answer(text, ok=False, colour="yellow", bold=True)
        return 5
    output.answer("all pins are alive", ok=True, colour="green", bold=True)
    return 0

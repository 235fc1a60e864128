"""`imgbuild nccl FILE|IMAGE:/PATH`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from imgbuild.cli.options import Settings, complete_platform, parse_digest, shared
from imgbuild.cli.render import show_moved

if TYPE_CHECKING:
    from imgbuild.cli.nccl_rows import Row
    from imgbuild.cli.render import Output
    from imgbuild.cli.results_nccl import NcclBody, NcclComparison, NcclLibrary
    from imgbuild.content.nccl import NcclFacts
    from imgbuild.steps.context import Context
    from imgbuild.steps.nccl import Asked, Library

_SHOWN = 5
"""symbols that are named without -v."""


@click.command("nccl")
@click.argument("library")
@click.option("--against", help="Another one, named likewise: say which facts differ. Exit code 1 if the digests do.")
@click.option(
    "--platform",
    shell_complete=complete_platform,
    help="Of an index in a registry, the one to take, such as linux/arm64.",
)
@shared
def command(library: str, *, against: str | None, platform: str | None, settings: Settings) -> int:
    """Say what identifies an NCCL LIBRARY, and whether another one is the same.

    LIBRARY is a file, a wheel that has one libnccl.so.2, FILE.whl:MEMBER, or a path of an image: IMAGE:/PATH, where
    IMAGE is a tag or a manifest digest of the store, or host/repository:tag or host/repository@digest in a registry.
    Of an image the inventories of its layers are taken, as `imgbuild inventory` does; then only the layer that has the
    file is read. Links on the way are followed.

    Digest, size, build id, SONAME, version and CUDA by its texts, git branch and commit, names that patches bring, the
    symbols that it exports, what it needs, and the GPUs that it has code for. Nothing of it is run. It ends with lines
    for a definition that takes this library.

    Exit code 1: it is damaged, no NCCL library, or for another machine than its image; or the digests differ.
    """
    from imgbuild.cli.nccl_rows import definition  # noqa: PLC0415 - imported when used
    from imgbuild.cli.results import TOOL, moved_bodies  # noqa: PLC0415
    from imgbuild.cli.results_nccl import NcclBody, NcclDocument  # noqa: PLC0415
    from imgbuild.steps.nccl import parse_asked  # noqa: PLC0415

    asked = [parse_asked(text) for text in (library, against) if text is not None]
    context = _context(settings, asked)
    found = [_read(context, one, platform) for one in asked]
    first, *others = (library_body(one) for one in found)
    path = next((one.real for one in reversed(found) if one.real is not None), None)
    body = NcclBody(
        library=first,
        against=compare(first, others[0]) if others else None,
        definition=definition(first, path),
        moved=moved_bodies(context.ledger),
    )
    settings.output.document(NcclDocument(schema="imgbuild/nccl-result/v1", tool=TOOL, result=body))
    if body.against is None:
        _show_one(settings.output, first)
    else:
        show_both(settings.output, first, body.against)
    return _end(settings.output, body, context if body.moved else None)


def _context(settings: Settings, asked: list[Asked]) -> Context:
    """Files on disk are read outside of every project, too."""
    from imgbuild.adapters.project import Project  # noqa: PLC0415 - keeps --help fast

    needs = settings.project is not None or any(one.reference is not None for one in asked)
    return settings.context(settings.open_project() if needs else Project(Path.cwd()), staged=False)


def _read(context: Context, asked: Asked, platform: str | None) -> Library:
    from imgbuild.steps.nccl import read_file_library, read_image_library  # noqa: PLC0415 - imported when used
    from imgbuild.steps.opened import open_named  # noqa: PLC0415

    reference = asked.reference
    if reference is None:
        return read_file_library(context, asked)
    digest = parse_digest(reference, "IMAGE") if ":" in reference and "/" not in reference else None
    return read_image_library(asked, open_named(context, reference, digest=digest, platform=platform))


def library_body(found: Library) -> NcclLibrary:
    """A library as its document has it."""
    from imgbuild.cli import results_nccl as results  # noqa: PLC0415 - imported when used
    from imgbuild.content.nccl import MARKERS  # noqa: PLC0415

    facts, version = found.facts, found.facts.version
    return results.NcclLibrary(
        asked=found.asked.text,
        real=found.real,
        layer=found.layer,
        wheel=found.wheel,
        member=found.member,
        ok=not found.problems,
        problems=list(found.problems),
        digest=facts.digest,
        size=facts.size,
        **_tables(facts),  # type: ignore[arg-type]
        version=None
        if version is None
        else results.NcclVersion(number=version.number, code=version.code, cuda=version.cuda, text=version.text),
        texts=list(facts.texts),
        git=list(facts.git),
        markers=[results.NcclMarker(name=name, present=facts.has(name)) for name in MARKERS],
        variables=list(facts.names),
        exports=list(facts.exports),
        glibc=facts.newest("GLIBC"),
        glibcxx=facts.newest("GLIBCXX"),
        cxxabi=facts.newest("CXXABI"),
        gpu=results.NcclGpu(
            fatbins=facts.gpu.fatbins,
            objects=[results.NcclObject(name=item.name, count=item.count) for item in facts.gpu.objects],
            problem=facts.gpu.problem,
        ),
    )


def _tables(facts: NcclFacts) -> dict[str, object]:
    """What stands in the ELF tables, if they can be read."""
    elf = facts.elf
    if elf is None:
        return {"needed": []}
    return {
        "machine": elf.machine,
        "kind": elf.kind,
        "soname": elf.soname,
        "build_id": elf.build_id,
        "needed": list(elf.needed),
    }


def compare(first: NcclLibrary, other: NcclLibrary) -> NcclComparison:
    """The other one, and in what the first one differs from it."""
    from imgbuild.cli.nccl_rows import rows  # noqa: PLC0415 - imported when used
    from imgbuild.cli.results_nccl import NcclComparison  # noqa: PLC0415

    pairs = zip(rows(first), rows(other), strict=True)
    return NcclComparison(
        library=other,
        same=first.digest == other.digest,
        differs=[here.field for here, there in pairs if here.value != there.value],
        lacks=sorted(set(other.exports) - set(first.exports)),
        adds=sorted(set(first.exports) - set(other.exports)),
    )


def _show_one(output: Output, body: NcclLibrary) -> None:
    from imgbuild.cli.nccl_rows import rows  # noqa: PLC0415 - imported when used

    _show_place(output, "library", body)
    for row in rows(body):
        output.line(f"{row.name:12} {row.text}")
        if output.verbose and row.field in {"exports", "variables"}:
            _show_names(output, body.exports if row.field == "exports" else body.variables)


def _show_place(output: Output, name: str, body: NcclLibrary) -> None:
    output.line(f"{name:12} {body.asked}", bold=True)
    if body.real is not None:
        output.line(f"{'':12} {body.real}, from layer {body.layer}")
    elif body.member is not None:
        output.line(f"{'':12} {body.member} of {body.wheel}")


def show_both(output: Output, first: NcclLibrary, against: NcclComparison) -> None:
    """One row a fact; where both are the same it stands once."""
    from imgbuild.cli.nccl_rows import rows  # noqa: PLC0415 - imported when used

    _show_place(output, "library", first)
    _show_place(output, "against", against.library)
    pairs = list(zip(rows(first), rows(against.library), strict=True))
    width = max((len(here.text) for here, _ in pairs if here.field in against.differs), default=0)
    for here, there in pairs:
        _show_pair(output, here, there, width=width, differs=here.field in against.differs)
    limit = None if output.verbose else _SHOWN
    _show_symbols(output, "lacks", against.lacks, "that the other one exports", limit)
    _show_symbols(output, "adds", against.adds, "that the other one does not export", limit)
    if output.verbose:
        words, others = set(first.variables), set(against.library.variables)
        _show_symbols(output, "no words", sorted(others - words), "that are in the other one", None)
        _show_symbols(output, "new words", sorted(words - others), "that are not in the other one", None)


def _show_pair(output: Output, here: Row, there: Row, *, width: int, differs: bool) -> None:
    if differs:
        output.line(f"{here.name:12} {'differs':8} {here.text:{width}}  |  {there.text}", colour="yellow")
    else:
        output.line(f"{here.name:12} {'same':8} {here.text}")


def _show_symbols(output: Output, name: str, names: list[str], what: str, limit: int | None) -> None:
    if not names:
        return
    more = f", of which the first {limit}" if limit is not None and len(names) > limit else ""
    output.line(f"{name:12} {len(names)} {what}{more}:")
    _show_names(output, names[:limit])


def _show_names(output: Output, names: list[str]) -> None:
    for name in names:
        output.line(f"{'':12} {name}")


def _end(output: Output, body: NcclBody, context: Context | None) -> int:
    """What belongs to a definition, and the answer; returns the exit code."""
    if body.definition:
        output.line()
        for line in body.definition:
            output.line(line)
        output.line()
    if context is not None:
        show_moved(output, context.ledger)
    libraries = [body.library] if body.against is None else [body.library, body.against.library]
    for library in libraries:
        for problem in library.problems:
            output.answer(f"{'problem':12} {library.asked}: {problem}", ok=False, colour="red", bold=True)
    ok = all(library.ok for library in libraries)
    if body.against is None:
        return 0 if ok else 1
    same = body.against.same
    differs = ", ".join(body.against.differs)
    answer = "the same bytes" if same else f"{'DIFFERENT':12} other bytes; the facts that differ: {differs}"
    output.answer(answer, ok=same, colour="green" if same else "red", bold=True)
    return 0 if ok and same else 1

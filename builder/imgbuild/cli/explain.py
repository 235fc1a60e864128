"""`imgbuild explain IMAGE PATH`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from imgbuild.cli.options import Settings, image_argument, shared
from imgbuild.cli.render import amount, one_line

if TYPE_CHECKING:
    from rich.text import Text
    from rich.tree import Tree

    from imgbuild.cli.results_explain import ExplainBody, ExplainEvent, ExplainLayer, ExplainLibrary, ExplainLoad
    from imgbuild.content.node import Node
    from imgbuild.steps.context import Context
    from imgbuild.steps.explain import Explanation, LayerName
    from imgbuild.steps.verify_loader import Load

_WIDTH = 10_000
"""columns; lines are not broken, so that digests can be copied."""


@click.command("explain")
@image_argument
@click.argument("path")
@shared
def command(image: str, path: str, *, settings: Settings) -> int:
    """Say where PATH of IMAGE comes from, and for a library who would load it and why.

    Links on the way, the layer and digest, what each layer did to it, the steps that changed it from state to state,
    the packages that claim it. For a library: every file that asks for it, by which rule the linker finds what that
    loads, and, with -v, where it looked before.

    It must have been locked or built on this machine, and its lock be current. Exit code 1: nothing is there.
    """
    from imgbuild.cli.results import TOOL  # noqa: PLC0415 - imported when used
    from imgbuild.cli.results_explain import ExplainDocument  # noqa: PLC0415
    from imgbuild.errors import StepError, UsageError  # noqa: PLC0415
    from imgbuild.model.paths import image_path  # noqa: PLC0415
    from imgbuild.steps.explain import explain  # noqa: PLC0415

    try:
        image_path(path, where="PATH")
    except StepError as error:
        hint = "give it as it is in the image, from / on"
        raise UsageError(error.subject, error.problem, where=error.where, hint=hint) from error
    project = settings.open_project()
    context = settings.context(project, staged=False)
    found = explain(context, project.load(image), project.require_lock(image), path)
    body = _body(context, image, found)
    settings.output.document(ExplainDocument(schema="imgbuild/explain-result/v1", tool=TOOL, result=body))
    for line in _lines(_tree(body, verbose=settings.output.verbose)):
        settings.output.line(line)
    return 0 if found.node is not None else 1


def _body(context: Context, image: str, found: Explanation) -> ExplainBody:
    from imgbuild.cli import results_explain as results  # noqa: PLC0415 - imported when used
    from imgbuild.cli.results import moved_bodies  # noqa: PLC0415

    node = found.node
    facts = {} if node is None else _facts(node)
    return results.ExplainBody(
        image=image,
        path=found.path,
        links=list(found.links),
        real=found.real,
        **facts,  # type: ignore[arg-type]
        origin=None if found.origin is None else _layer(found.origin),
        history=[
            results.ExplainEvent(
                layer=_layer(event.layer), what=event.what, type=event.type, digest=event.digest, where=event.where
            )
            for event in found.history
        ],
        unknown=[_layer(layer) for layer in found.unknown],
        states=[results.ExplainState(step=row.step, states=list(row.states)) for row in found.states],
        owners=[
            results.ExplainOwner(name=owner.name, version=owner.version, record=owner.record, matches=owner.matches)
            for owner in found.owners
        ],
        system=[
            results.ExplainPackage(name=package.name, version=package.version, architecture=package.architecture)
            for package in found.system.packages
        ],
        system_problem=found.system.problem,
        library=None if node is None or node.elf is None else _library(node, found.loads),
        moved=moved_bodies(context.ledger),
    )


def _facts(node: Node) -> dict[str, object]:
    from imgbuild.model.paths import show  # noqa: PLC0415
    from imgbuild.steps.view import digest_of_node  # noqa: PLC0415

    return {
        "type": node.type,
        "mode": f"{node.mode:04o}",
        "owner": f"{node.uid}:{node.gid}",
        "size": node.size if node.type == "file" else None,
        "digest": digest_of_node(node),
        "link": show(node.link)[1:] if node.type == "symlink" else None,
    }


def _layer(layer: LayerName) -> ExplainLayer:
    from imgbuild.cli.results_explain import ExplainLayer  # noqa: PLC0415

    return ExplainLayer(number=layer.number, name=layer.name, digest=layer.digest)


def _library(node: Node, loads: tuple[Load, ...]) -> ExplainLibrary:
    from imgbuild.cli.results_explain import ExplainLibrary, ExplainLoad, ExplainTry  # noqa: PLC0415
    from imgbuild.model.paths import show  # noqa: PLC0415

    elf = node.elf
    assert elf is not None  # noqa: S101 - asked before
    return ExplainLibrary(
        kind=elf.kind,
        machine=elf.machine,
        soname=elf.soname,
        build_id=elf.build_id,
        glibc=elf.glibc_needed,
        texts=[text for text in elf.texts if " " in text],
        loads=[
            ExplainLoad(
                path=show(load.path),
                needed=load.needed,
                provider=None if load.provider is None else show(load.provider),
                rule=load.rule,
                doubt=load.doubt,
                trail=[
                    ExplainTry(rule=step.rule, path=show(step.candidate.lstrip(b"/")), outcome=step.outcome)
                    for step in load.trail
                ],
            )
            for load in loads
        ],
    )


def _tree(body: ExplainBody, *, verbose: bool) -> Tree:
    from rich.tree import Tree  # noqa: PLC0415 - takes 40 ms

    tree = Tree(_text(body.path))
    for link in body.links:
        tree.add(_text(f"link       {link}"))
    if body.real is None:
        tree.add(_text("nothing is there"))
    else:
        _add_facts(tree, body)
    history = tree.add(_text("history")) if body.history or body.unknown else None
    for event in body.history if history is not None else ():
        assert history is not None  # noqa: S101 - there are events
        history.add(_text(_event(event, verbose=verbose)))
    if history is not None and body.unknown:
        numbers = ", ".join(str(layer.number) for layer in body.unknown)
        history.add(_text(f"not known of layers {numbers}: their inventories are not here (`imgbuild inventory BASE`)"))
    for state in body.states:
        tree.add(_text(f"step       {state.step}: {'  ->  '.join(state.states)}"))
    for owner in body.owners:
        says = "no hash" if owner.record is None else "the same" if owner.matches else f"{owner.record}, another one"
        tree.add(_text(f"package    {owner.name} {owner.version}; its RECORD says {says}"))
    for package in body.system:
        tree.add(_text(f"package    {package.name} {package.version} ({package.architecture}), by dpkg's list"))
    if body.system_problem is not None:
        tree.add(_text(f"package    not known of all Debian packages: {body.system_problem}"))
    if body.library is not None:
        _add_library(tree, body, verbose=verbose)
    return tree


def _add_facts(tree: Tree, body: ExplainBody) -> None:
    if body.real != body.path:
        tree.add(_text(f"really     {body.real}"))
    size = "" if body.size is None else f", {amount(body.size)}"
    tree.add(_text(f"{body.type:10} mode {body.mode}, owner {body.owner}{size}"))
    if body.digest is not None:
        tree.add(_text(f"content    {body.digest}"))
    if body.origin is not None:
        tree.add(_text(f"from       layer {_name(body.origin)}"))
    elif body.type == "directory":
        tree.add(_text("from       no layer: others have entries below it"))


def _add_library(tree: Tree, body: ExplainBody, *, verbose: bool) -> None:
    library = body.library
    assert library is not None  # noqa: S101 - asked before
    facts = [f"{library.machine}, {library.kind}", f"SONAME {library.soname or 'none'}"]
    facts += [f"build id {library.build_id}"] if library.build_id else []
    facts += [f"needs glibc {library.glibc}"] if library.glibc else []
    tree.add(_text(f"ELF        {'; '.join(facts)}"))
    for text in library.texts:
        tree.add(_text(f"says       {text}"))
    here = [load for load in library.loads if load.provider == body.real]
    elsewhere = [load for load in library.loads if load.provider != body.real]
    loaded = tree.add(_text(f"loaded by  {_files(here)}"))
    for load in here:
        _add_load(loaded, load, verbose=verbose)
    if elsewhere:
        others = tree.add(_text(f"not it     is loaded by {_files(elsewhere)} that ask for its name"))
        for load in elsewhere:
            _add_load(others, load, verbose=verbose)


def _files(loads: list[ExplainLoad]) -> str:
    count = len({load.path for load in loads})
    return "1 file" if count == 1 else f"{count or 'no'} files"


def _add_load(branch: Tree, load: ExplainLoad, *, verbose: bool) -> None:
    row = branch.add(_text(f"{load.path} needs {load.needed}"))
    row.add(_text(f"by {load.rule}: {load.provider or 'nothing'}"))
    if load.doubt is not None:
        row.add(_text(f"in doubt: {load.doubt}"))
    for step in load.trail if verbose else ():
        row.add(_text(f"{step.rule:15} {step.outcome:15} {step.path}"))


def _event(event: ExplainEvent, *, verbose: bool) -> str:
    what = {"has": f"{event.type}", "removes": "removed", "hides": f"hidden by {event.where}"}[event.what]
    digest = "" if event.digest is None else f"  {event.digest}"
    return f"layer {_name(event.layer, digest=verbose)}: {what}{digest}"


def _name(layer: ExplainLayer, *, digest: bool = True) -> str:
    owner = "of the base" if layer.name == "base" else layer.name
    return f"{layer.number} {owner} ({layer.digest})" if digest else f"{layer.number} {owner}"


def _text(line: str) -> Text:
    """A line of the tree: names from the image cannot make it two, nor be read as markup."""
    from rich.text import Text  # noqa: PLC0415

    return Text(one_line(line))


def _lines(tree: Tree) -> list[str]:
    from rich.console import Console  # noqa: PLC0415

    console = Console(width=_WIDTH, color_system=None, legacy_windows=False)
    with console.capture() as capture:
        console.print(tree)
    return [line.rstrip() for line in capture.get().splitlines()]

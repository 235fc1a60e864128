"""The step kinds that put files: `file`, `remove`, `git-tree`, `wheel`; and the dispatch over all kinds.

Each function finds what it expects or refuses, changes the workspace, and records what it found and left.
"""

from __future__ import annotations

import datetime as dt
import fnmatch
import posixpath
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from imgbuild.content.changeset import BytesContent
from imgbuild.digest import Digest
from imgbuild.errors import StepError
from imgbuild.model.layer import (
    Compile,
    Edit,
    File,
    GitTree,
    Patch,
    Remove,
    Replace,
    Step,
    Wheel,
    mode_bits,
    owner_ids,
)
from imgbuild.model.lockfile import ABSENT
from imgbuild.model.paths import image_path, show
from imgbuild.model.receipt import FOLDER
from imgbuild.steps import change
from imgbuild.steps.workspace import Attributes
from imgbuild.text import printable

if TYPE_CHECKING:
    from imgbuild.adapters.gitsource import GitFile
    from imgbuild.adapters.project import LayerInput
    from imgbuild.model.lockfile import LockedGit
    from imgbuild.steps.base import Machine
    from imgbuild.steps.context import Context
    from imgbuild.steps.packages import Packages
    from imgbuild.steps.sources import Sources
    from imgbuild.steps.workspace import Workspace

_LINK = 0o120000
_EXECUTABLE = 0o100755
_LICENCE = re.compile(rb"(?:.*/)?(?i:licen[cs]e|copying)[^/]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a step works with."""

    context: Context
    workspace: Workspace
    sources: Sources
    packages: Packages
    machine: Machine


def apply_layer(work: Work, layer: LayerInput) -> None:
    """Run all steps of one layer on the workspace, in order."""
    work.workspace.begin_layer()
    for number, step in enumerate(layer.definition.step, 1):
        apply_step(work, layer, step, f"{layer.name}/{number}")


def apply_step(work: Work, layer: LayerInput, step: Step, step_id: str) -> None:
    """Run one step; `step_id` is `layer/number` as in the lock."""
    match step:
        case File():
            _file(work, layer, step, step_id)
        case Remove():
            _remove(work, step, step_id)
        case GitTree():
            _git_tree(work, step, step_id)
        case Wheel():
            _wheel(work, step, step_id)
        case Patch():
            change.patch(work, layer, step, step_id)
        case Edit():
            change.edit(work, step, step_id)
        case Compile():
            change.compile_sources(work, step, step_id)
        case Replace():
            change.replace(work, step, step_id)


def _file(work: Work, layer: LayerInput, step: File, step_id: str) -> None:
    path = image_path(step.path, where=step_id)
    data = layer.files[step.source]
    _put(work, path, data, _attributes(step.mode, step.owner), replaces=step.replaces, step_id=step_id)


def _remove(work: Work, step: Remove, step_id: str) -> None:
    for text in step.paths:
        path = work.workspace.real_path(image_path(text, where=step_id), where=step_id)
        node = work.workspace.tree.get(path)
        if node is not None and node.is_directory:
            work.workspace.remove(path, where=step_id)
            work.packages.changed()
            continue
        states = (work.workspace.state(path), ABSENT)
        work.workspace.expect(step_id, path, states[:1])
        work.workspace.remove(path, where=step_id)
        work.workspace.expect(step_id, path, states, final=True)
        work.packages.forget(path, where=step_id)


def _git_tree(work: Work, step: GitTree, step_id: str) -> None:
    pin, tree = work.sources.git(step.source)
    prefix = _prefix(step)
    chosen = [item for item in tree.files if selected(item.path, step)]
    if not chosen:
        raise StepError(
            f"source {step.source}",
            "has no file that the step selects",
            where=step_id,
            expected=f"files below {step.prefix or '/'} matching {step.include or ['**']}",
        )
    replaces = {image_path(text, where=step_id) for text in step.replaces}
    attributes = _attributes("0644", step.owner)
    for item in chosen:
        path = image_path(step.path, where=step_id) + b"/" + _name(item.path[len(prefix) :], step_id)
        if item.mode == _LINK:
            _put_link(work, path, item, root=image_path(step.path, where=step_id), step_id=step_id, owner=attributes)
            continue
        mode = "0755" if item.mode == _EXECUTABLE else "0644"
        _put(work, path, item.read(), _attributes(mode, step.owner), replaces=path in replaces, step_id=step_id)
        replaces.discard(path)
    _check_licence(work, step, step_id, {item.path for item in tree.files})
    if step.notice is not None:
        data = _notice(pin, step, work.workspace.epoch)
        _put(work, image_path(step.notice, where=step_id), data, attributes, replaces=False, step_id=step_id)
    if replaces:
        raise StepError(
            step_id,
            "lists files to be replaced that the source does not have",
            actual=", ".join(map(show, sorted(replaces))),
        )


def _notice(pin: LockedGit, step: GitTree, epoch: int) -> bytes:
    """Whose files these are, where the source is, and that the work was changed, with a date (AGPL-3.0, section 5a)."""
    date = dt.datetime.fromtimestamp(epoch, dt.UTC).date().isoformat()
    chosen = f"those that match {printable(', '.join(step.include))}" if step.include else "all"
    left_out = f", without {printable(', '.join(step.exclude))}" if step.exclude else ""
    folder = f" of {step.prefix}" if step.prefix else ""
    licence = f"{step.path}/{posixpath.basename(step.licence)}" if step.licence else "see the source"
    return (
        f"Below {step.path} are files of another project.\n\n"
        f"source   {printable(pin.repository)}\n"
        f"commit   {pin.commit}\n"
        f"files    {chosen}{folder}{left_out}\n"
        f"licence  {licence}\n\n"
        f"On {date} imgbuild put them into this image, and changed the work. Every path that the image adds,\n"
        "replaces or removes is in the receipt below /usr/share/imgbuild, with its digest. Beside it is the lock from\n"
        "which all of it can be made again.\n"
    ).encode()


def _prefix(step: GitTree) -> bytes:
    return f"{step.prefix}/".encode() if step.prefix else b""


def selected(path: bytes, step: GitTree) -> bool:
    """Whether a step takes the file of its source that has this path; its licence file may be another one besides."""
    prefix = _prefix(step)
    text = path.removeprefix(prefix).decode("utf-8", "surrogateescape")
    if not path.startswith(prefix):
        return False
    included = not step.include or any(_matches(text, pattern) for pattern in step.include)
    return included and not any(_matches(text, pattern) for pattern in step.exclude)


def _matches(path: str, pattern: str) -> bool:
    # "**" stands for any number of folders; a pattern that names a folder stands for all below it.
    if pattern in {"**", "**/*"}:
        return True
    return fnmatch.fnmatchcase(path, pattern) or fnmatch.fnmatchcase(path, f"{pattern.rstrip('/')}/*")


def _check_licence(work: Work, step: GitTree, step_id: str, paths: set[bytes]) -> None:
    licence = step.licence
    if licence is None:
        return
    if licence.encode() not in paths:
        others = sorted(path.decode("utf-8", "backslashreplace") for path in paths if _LICENCE.fullmatch(path))
        raise StepError(
            f"source {step.source}",
            "lacks its licence file",
            expected=licence,
            actual=", ".join(others[:5]) or "no file that is named like one",
            where=step_id,
            hint="name it as `licence` in the step, or choose a commit that has it",
        )
    _, tree = work.sources.git(step.source)
    item = next(item for item in tree.files if item.path == licence.encode())
    path = image_path(step.path, where=step_id) + b"/" + posixpath.basename(licence).encode()
    if work.workspace.tree.get(path) is None:
        _put(work, path, item.read(), _attributes("0644", step.owner), replaces=False, step_id=step_id)


def _put_link(work: Work, path: bytes, item: GitFile, *, root: bytes, step_id: str, owner: Attributes) -> None:
    target = item.target or b""
    reached = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
    if target.startswith(b"/") or not (reached + b"/").startswith(root + b"/"):
        raise StepError(
            f"link {show(path)}",
            "leaves the tree of its source",
            expected=f"a target below {show(root)}",
            actual=target.decode("utf-8", "backslashreplace"),
            where=step_id,
            hint="leave it out with `exclude` in the step, or choose a commit without it",
        )
    if work.workspace.tree.get(path) is not None:
        raise StepError(f"link {show(path)}", "exists in the image already", where=step_id)
    work.workspace.link(path, target, owner, where=step_id)


def _wheel(work: Work, step: Wheel, step_id: str) -> None:
    from imgbuild.content import wheel as wheels  # noqa: PLC0415 - imported when used

    pin, path = work.sources.wheel(step.source)
    wheels.check_tags(
        pin.filename, python=step.python, machine=work.machine, subject=f"wheel {pin.filename}", where=step_id
    )
    site = work.workspace.real_folder(image_path(step.site, where=step_id), where=step_id)
    name, version = wheels.distribution_of(pin.filename)
    work.packages.refuse_second(name, version, site, where=step_id)
    scripts = None
    if step.scripts:
        scripts = work.workspace.real_folder(image_path(step.scripts, where=step_id), where=step_id)
    with path.open("rb") as file:
        files = wheels.install(
            file,
            filename=pin.filename,
            site=site,
            scripts=scripts,
            interpreter=f"/usr/bin/python{step.python}",
            subject=pin.filename,
        )
    for entry in files:
        _name(entry.path, step_id)
        mode = "0755" if entry.executable else "0644"
        if work.workspace.tree.get(entry.path) is not None:
            owner = work.packages.owner_names(entry.path)
            raise StepError(
                f"file {show(entry.path)}",
                "exists in the image already",
                expected="nothing there",
                actual=f"owned by {', '.join(owner)}" if owner else "owned by no distribution",
                where=f"{step_id}, {pin.filename}",
                hint="choose a version of the wheel that does not have this file, or `remove` it in a layer before",
            )
        attributes = _attributes(mode, step.owner)
        work.workspace.write(
            entry.path, BytesContent(data=entry.data), Digest.of(entry.data), attributes, where=step_id
        )
    work.packages.changed()


def _put(work: Work, path: bytes, data: bytes, attributes: Attributes, *, replaces: bool, step_id: str) -> None:
    workspace = work.workspace
    real = workspace.real_path(path, where=step_id)
    old = workspace.tree.get(real)
    if real.startswith(FOLDER + b"/"):
        raise StepError(f"file {show(real)}", "is in the folder of imgbuild's own lock and receipt", where=step_id)
    if not replaces:
        if old is not None:
            raise StepError(
                f"file {show(real)}",
                "exists in the image already",
                expected="nothing there",
                actual=f"a {old.type}",
                where=step_id,
                hint="if it is to be replaced, say so in the step (`replaces`), so that the lock pins what was there",
            )
        workspace.write_bytes(real, data, attributes, where=step_id)
        return
    if old is None:
        raise StepError(f"file {show(real)}", "is to be replaced but is not in the image", where=step_id)
    before = workspace.state(real)
    workspace.expect(step_id, real, (before,))
    if old.sha256 == Digest.of(data).encoded:
        raise StepError(
            f"file {show(real)}", "is the same already, so the step does nothing", actual=before, where=step_id
        )
    workspace.write_bytes(real, data, attributes, where=step_id)
    workspace.expect(step_id, real, (before, workspace.state(real)), final=True)
    change.settle(work, real, where=step_id)


def _attributes(mode: str, owner: str) -> Attributes:
    uid, gid = owner_ids(owner)
    return Attributes(mode=mode_bits(mode), uid=uid, gid=gid)


def _name(path: bytes, step_id: str) -> bytes:
    try:
        text = path.decode("utf-8")
    except UnicodeDecodeError as error:
        raise StepError(f"path {path!r}", "is not UTF-8; we write no such names", where=step_id) from error
    return image_path(f"/{text}", where=step_id)

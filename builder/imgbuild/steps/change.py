"""The step kinds that change what is there: `patch`, `edit`, `compile`, `replace`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from imgbuild import jsontext
from imgbuild.content.patch import apply_edit, apply_file, parse_patch
from imgbuild.digest import Digest
from imgbuild.errors import FactMismatchError, FailedHunk, ImgbuildError, PatchedFile, PatchError, StepError
from imgbuild.model.decode import builtins
from imgbuild.model.layer import mode_bits, owner_ids
from imgbuild.model.lockfile import ABSENT
from imgbuild.model.paths import image_path, relative_path, show
from imgbuild.steps.memo import BlobMemo, recall, remember
from imgbuild.steps.workspace import Attributes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from imgbuild.adapters.project import LayerInput
    from imgbuild.adapters.toolchain import CompileJob
    from imgbuild.content.patch import FilePatch
    from imgbuild.model.layer import Compile, Edit, Patch, Replace
    from imgbuild.model.lockfile import LockedToolchain
    from imgbuild.steps.apply import Work


def patch(work: Work, layer: LayerInput, step: Patch, step_id: str) -> None:
    """Apply all stages in memory; only when every file of every stage fits is anything written."""
    workspace = work.workspace
    root = image_path(step.root, where=step_id)
    allowed = {relative_path(text, where=step_id): _target(work, root, text, step_id) for text in step.files}
    contents: dict[bytes, bytes | None] = {}
    states: dict[bytes, list[str]] = {}
    for name, real in allowed.items():
        exists = workspace.tree.get(real) is not None
        contents[name] = workspace.read(real, where=step_id) if exists else None
        states[name] = [workspace.state(real)]
        found = PatchedFile(path=show(real), step=step_id, found=states[name][0])
        _check_preimage(work, layer, step, name, contents[name], found)
        workspace.expect(step_id, real, tuple(states[name]))
    for subject, raw in _stages(work, layer, step):
        for file in parse_patch(raw, subject=subject, strip=step.strip):
            if file.path not in allowed:
                raise PatchError(
                    subject,
                    "touches a file that the step does not list",
                    actual=show(file.path)[1:],
                    expected=", ".join(step.files),
                    where=step_id,
                    hint="if the patch is right, add the file to `files` of the step, and run `imgbuild lock IMAGE`",
                )
            found = PatchedFile(
                path=show(allowed[file.path]),
                step=step_id,
                found=states[file.path][-1],
                number=len(states[file.path]) - 1,
            )
            contents[file.path] = after = _applied(file, contents[file.path], subject, found)
            states[file.path].append(ABSENT if after is None else str(Digest.of(after)))
            _check_known(layer, step, file.path, states[file.path], subject)
            workspace.expect(step_id, allowed[file.path], tuple(states[file.path]))
    for name, real in allowed.items():
        if len(states[name]) == 1:
            raise PatchError(
                f"step {step_id}",
                "lists a file that no stage touches",
                actual=show(name)[1:],
                hint="take the file out of `files` of the step, or name the patch that touches it in `stages`",
            )
        _check_known(layer, step, name, states[name], f"step {step_id}", final=True)
        _write_text(work, real, contents[name], step, step_id)
        workspace.expect(step_id, real, tuple(states[name]), final=True)


def _applied(file: FilePatch, before: bytes | None, subject: str, found: PatchedFile) -> bytes | None:
    """The new bytes of one file; an error has the file with it."""
    try:
        return apply_file(file, before, subject=subject).data
    except PatchError as error:
        error.file = found
        raise


def _check_preimage(
    work: Work, layer: LayerInput, step: Patch, name: bytes, data: bytes | None, found: PatchedFile
) -> None:
    """Refuse a file that is not what upstream says, with the first hunk that does not fit it."""
    try:
        _check_known(layer, step, name, [found.found], f"step {found.step}")
    except FactMismatchError as error:
        error.file, error.hunk = found, _first_failing(work, layer, step, name, data)
        raise


def _first_failing(work: Work, layer: LayerInput, step: Patch, name: bytes, data: bytes | None) -> FailedHunk | None:
    """The first hunk that does not fit a file that is not what it should be; None where all do: that is no yes."""
    try:
        for subject, raw in _stages(work, layer, step):
            for file in parse_patch(raw, subject=subject, strip=step.strip):
                if file.path == name:
                    data = apply_file(file, data, subject=subject).data
    except PatchError as error:
        return error.hunk
    except ImgbuildError:
        # That the file is another one is what has to be said.
        return None
    return None


def _stages(work: Work, layer: LayerInput, step: Patch) -> Iterator[tuple[str, bytes]]:
    """The patch files in order, each with its name for errors."""
    if step.source is None:
        yield from ((f"patch layers/{layer.name}/{stage}", layer.files[stage]) for stage in step.stages)
        return
    pin, tree = work.sources.git(step.source)
    for stage in step.stages:
        yield (
            f"patch {stage} of source {step.source}, commit {pin.commit}",
            tree.file(stage, subject=step.source).read(),
        )


def _check_known(
    layer: LayerInput, step: Patch, name: bytes, states: list[str], subject: str, *, final: bool = False
) -> None:
    """Refuse a state of a file that upstream says to be another one; in the end, also one that is missing."""
    if step.states is None:
        return
    # That the paths are those of the step, was looked at before (`steps.check`).
    known = layer.states[step.states][name.decode("utf-8", "backslashreplace")]
    number = len(states)
    if final and number < len(known):
        raise FactMismatchError(
            f"file {show(name)[1:]}",
            "is not in the last state that upstream names",
            expected=known[-1],
            actual=states[-1],
            where=f"layers/{layer.name}/{step.states}",
            hint="is a patch missing among the stages of the step?",
        )
    if tuple(states) != known[:number]:
        raise FactMismatchError(
            f"file {show(name)[1:]}",
            "is not what upstream says it to be" + (" before the first patch" if number == 1 else f" after {subject}"),
            expected=known[number - 1] if number <= len(known) else f"{len(known)} states",
            actual=states[-1],
            where=f"layers/{layer.name}/{step.states}",
            hint="if the base moved, the patches have to be made anew for it; else take the change of the file back"
            if number == 1
            else "if a patch was changed on purpose, `imgbuild lock IMAGE --update patch:NAME` moves the states after; "
            "else take the change of the patch, or of the order, back",
        )


def edit(work: Work, step: Edit, step_id: str) -> None:
    """Replace an exact text, counted."""
    workspace = work.workspace
    real, node = workspace.regular_file(image_path(step.path, where=step_id), where=step_id)
    before = workspace.state(real)
    workspace.expect(step_id, real, (before,))
    try:
        data = apply_edit(
            workspace.read(real, where=step_id),
            find=step.find.encode(),
            replace=step.replace.encode(),
            count=step.count,
            subject=f"edit of {show(real)}",
            where=step_id,
        )
    except StepError as error:
        error.file = PatchedFile(path=show(real), step=step_id, found=before)
        raise
    workspace.write_bytes(real, data, Attributes.of(node), where=step_id)
    workspace.expect(step_id, real, (before, workspace.state(real)), final=True)
    settle(work, real, where=step_id)


def compile_sources(work: Work, step: Compile, step_id: str) -> None:
    """Compile with the pinned toolchain, or take the output that this machine made from the same inputs before."""
    from imgbuild.adapters.toolchain import CompileJob  # noqa: PLC0415 - imported when used

    workspace = work.workspace
    _, tree = work.sources.git(step.source)
    files = {item.path: item for item in tree.files}
    texts = []
    for name in (*step.sources, *step.headers):
        item = files.get(name.encode())
        if item is None or item.target is not None:
            raise StepError(f"source {step.source}", "has no such file to compile", expected=name, where=step_id)
        texts.append((name, item.read()))
    job = CompileJob(
        sources=tuple(texts),
        compile=tuple(step.sources),
        language=step.language,
        glibc=step.glibc,
        target_arch=work.machine,
        soname=step.soname,
        flags=tuple(step.flags),
        output=step.path.rpartition("/")[2],
        kind="shared",
    )
    path = workspace.real_path(image_path(step.path, where=step_id), where=step_id)
    data = _compiled(work, step, job, workspace.expected_last(step_id, path))
    before = workspace.state(path)
    after = str(Digest.of(data))
    workspace.expect(step_id, path, (before, after), final=True)
    uid, gid = owner_ids(step.owner)
    workspace.write_bytes(path, data, Attributes(mode=mode_bits(step.mode), uid=uid, gid=gid), where=step_id)


def replace(work: Work, step: Replace, step_id: str) -> None:
    """Swap one file of a distribution in place: real path, mode and owner stay, its RECORD rows are rewritten."""
    workspace = work.workspace
    real, node = workspace.regular_file(image_path(step.path, where=step_id), where=step_id)
    owners, named = sorted(work.packages.owner_names(real)), sorted({step.distribution, *step.shared_with})
    if owners != named:
        shared = step.distribution in owners
        raise StepError(
            f"file {show(real)}",
            "is not owned by the distribution that the step names" + (" alone" if shared else ""),
            expected=", ".join(named),
            actual=", ".join(owners) or "no distribution",
            where=step_id,
            hint="if they shall all have the new file, name the others in `shared_with`" if shared else None,
        )
    content, digest = work.sources.library(step.source)
    before = workspace.state(real)
    if before == str(digest):
        raise StepError(
            f"file {show(real)}", "is the same already, so the swap does nothing", actual=before, where=step_id
        )
    workspace.expect(step_id, real, (before, str(digest)), final=True)
    workspace.write(real, content, digest, Attributes.of(node), where=step_id)
    settle(work, real, where=step_id)


def settle(work: Work, path: bytes, *, where: str) -> None:
    """After the content of a path changed: its RECORD row says the new content, and stale bytecode goes."""
    for stale in work.workspace.drop_bytecode(path, where=where):
        work.packages.forget(stale, where=where)
    work.packages.update(path, where=where)


def _target(work: Work, root: bytes, text: str, step_id: str) -> bytes:
    path = root + b"/" + relative_path(text, where=step_id)
    found = work.workspace.tree.resolve(path)
    return found[0] if found is not None else work.workspace.real_path(path, where=step_id)


def _write_text(work: Work, real: bytes, data: bytes | None, step: Patch, step_id: str) -> None:
    node = work.workspace.tree.get(real)
    if data is None:
        work.workspace.remove(real, where=step_id)
        work.packages.forget(real, where=step_id)
        return
    uid, gid = owner_ids(step.owner)
    attributes = Attributes(mode=mode_bits(step.mode), uid=uid, gid=gid) if node is None else Attributes.of(node)
    work.workspace.write_bytes(real, data, attributes, where=step_id)
    settle(work, real, where=step_id)


def _compiled(work: Work, step: Compile, job: CompileJob, expected: str | None) -> bytes:
    pin = work.sources.toolchain(step.toolchain)
    key = compile_key(job, pin)
    cache = work.context.cache
    memo = recall(cache, key, BlobMemo)
    if memo is not None and str(memo.digest) == expected:
        data = cache.get(memo.digest)
        if data is not None:
            return data
    from imgbuild.adapters import toolchain  # noqa: PLC0415 - imported when used

    zig = work.sources.zig(step.toolchain)
    with work.context.progress.task(f"compiling {job.output}", None, unit="steps"):
        data = toolchain.compile(job, zig=zig, work=cache.folder("spool"), cache=cache.folder("zig"))
    digest, size = cache.put([data])
    remember(cache, key, BlobMemo(digest=digest, size=size))
    return data


def compile_key(job: CompileJob, pin: LockedToolchain) -> Digest:
    """The digest of all that the output depends on: the tool for every kind of host, the options and the sources."""
    sources = {name: str(Digest.of(text)) for name, text in (*job.sources, *job.link_inputs)}
    linked = [name for name, _ in job.link_inputs]
    options = [job.language, job.glibc, job.target_arch, job.kind, job.soname, [*job.compile], [*job.flags], linked]
    return Digest.of(jsontext.dumps({"tool": builtins(pin), "options": options, "sources": sources}))

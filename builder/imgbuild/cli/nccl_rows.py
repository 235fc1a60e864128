"""The facts of `imgbuild nccl` as rows, and as lines for a definition."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from imgbuild.cli.render import amount

if TYPE_CHECKING:
    from collections.abc import Iterator

    from imgbuild.cli.results_nccl import NcclGpu, NcclLibrary

_UNKNOWN = "not known"
_PLACE = "/path/in/the/image/libnccl.so.2"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One fact: its field in the document, its name and text for people, and what is compared of it."""

    field: str
    name: str
    text: str
    value: object


def rows(body: NcclLibrary) -> list[Row]:
    """All facts, in the order in which they are shown."""
    found = [
        _row("digest", "digest", body.digest),
        Row(field="size", name="size", text=f"{body.size} bytes ({amount(body.size)})", value=body.size),
        _row("build_id", "build id", body.build_id),
        _row("soname", "SONAME", body.soname),
        _row("machine", "machine", None if body.machine is None else f"{body.machine}, {body.kind}"),
        Row(field="version", name="version", text=_version(body), value=body.version and body.version.text),
        _row("cuda", "CUDA", None if body.version is None else body.version.cuda),
        _row("git", "git", "; ".join(body.git)),
    ]
    for marker in body.markers:
        text = _UNKNOWN if marker.present is None else "present" if marker.present else "absent"
        found.append(_row(f"markers.{marker.name}", "patch", f"{marker.name}: {text}"))
    symbols, own = len(body.exports), sum(1 for name in body.exports if name.startswith("pnccl"))
    exports = _UNKNOWN if body.machine is None else f"{symbols - own} ncclX, {own} pncclX"
    newest = [("GLIBC", body.glibc), ("GLIBCXX", body.glibcxx), ("CXXABI", body.cxxabi)]
    versions = " ".join(f"{name}_{version}" for name, version in newest if version is not None)
    return [
        *found,
        Row(field="exports", name="exports", text=exports, value=body.exports),
        Row(field="needed", name="needs", text=" ".join(body.needed) or "none", value=body.needed),
        _row("versions", "versions", versions),
        Row(field="gpu", name="GPU code", text=_gpu(body.gpu), value=body.gpu),
        Row(field="variables", name="variables", text=f"{len(body.variables)} words NCCL_…", value=body.variables),
    ]


def _row(field: str, name: str, value: object) -> Row:
    text = "none" if value is None or value == "" else str(value)
    return Row(field=field, name=name, text=text, value=value)


def _version(body: NcclLibrary) -> str:
    if body.version is not None:
        return f"{body.version.number}, code {body.version.code} (from its text {body.version.text!r})"
    return f"{_UNKNOWN}: {'its texts state several' if body.texts else 'no text states it'}"


def _gpu(gpu: NcclGpu) -> str:
    names = " ".join(item.name for item in gpu.objects)
    if gpu.problem is not None:
        return f"{names}; {_UNKNOWN} whether that is all: {gpu.problem}" if names else f"{_UNKNOWN}: {gpu.problem}"
    fatbins = "1 fatbin" if gpu.fatbins == 1 else f"{gpu.fatbins} fatbins"
    return f"{names} ({fatbins})" if names else "none found"


def definition(body: NcclLibrary, path: str | None) -> list[str]:
    """Lines for `locks/IMAGE.toml` by which an image takes a library; none for one that is not sound.

    `path` is where the image has the library that is replaced, if that is known.
    """
    if not body.ok or body.version is None:
        return []
    present = [marker.name for marker in body.markers if marker.present]
    strings = ", ".join(quoted(text) for text in [body.version.text, *present])
    where = f"path = {quoted(path)}" if path is not None else f"path = {quoted(_PLACE)} # where the image has it"
    return [
        *_source(body),
        "",
        "[library.nccl]",
        where,
        'source = "nccl"',
        f"soname = {quoted(body.soname or '')}",
        'symbol = "ncclGetVersion"',
        'prefixes = ["nccl", "pnccl"]',
        f"strings = [{strings}]",
    ]


def _source(body: NcclLibrary) -> Iterator[str]:
    """The library as a source: out of its wheel, else an operator's file."""
    from imgbuild.content.wheel import distribution_of  # noqa: PLC0415 - imported when used
    from imgbuild.errors import StepError  # noqa: PLC0415

    if body.wheel is None or body.member is None:
        yield from ["# give it by --source nccl=FILE", "[sources.nccl]", 'kind = "file"']
        yield from [f"digest = {quoted(str(body.digest))}", f"size = {body.size}"]
        return
    yield f"# {body.digest}, {body.size} bytes: the lock must pin the same for sources.nccl"
    try:
        name, version = distribution_of(body.wheel)
    except StepError:
        yield f"# [sources.nccl-wheel] has to be the wheel; its file name is none of a wheel: {body.wheel}"
    else:
        platforms = body.wheel.removesuffix(".whl").rpartition("-")[2].split(".")
        yield from ["[sources.nccl-wheel]", 'kind = "wheel"', f"name = {quoted(name)}"]
        yield f"version = {quoted(version)}"
        yield f"platforms = [{', '.join(quoted(tag) for tag in platforms)}]"
    yield from ["", "[sources.nccl]", 'kind = "wheel-member"', 'wheel = "nccl-wheel"']
    yield f"member = {quoted(body.member)}"


def quoted(text: str) -> str:
    """A basic string of TOML, of printable characters only."""

    def escaped(char: str) -> str:
        if char.isprintable() and char not in '"\\':
            return char
        return f"\\u{ord(char):04x}" if ord(char) <= 0xFFFF else f"\\U{ord(char):08x}"  # noqa: PLR2004 - \u has 4 digits

    return '"' + "".join(map(escaped, text)) + '"'

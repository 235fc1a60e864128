"""Arrangements of NCCL in a tree (`tests/corpus/nccl`), put before the gate of static verification as it is.

Each folder has a README line and a `case.toml` that says what differs from the scene: files put or removed, links, a
linker cache, the image's config, what the definition says, and which checks must then be no match.

The scene: a target that was swapped, torch that finds it by RPATH, a C library, and a second NCCL of the system that
is accepted and that nobody finds first.
"""

from __future__ import annotations

import io
import json
import sys
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import msgspec
from imgbuild.content.changeset import BytesContent, Change, ChangeType, write_layer
from imgbuild.content.inventory import scan_layer
from imgbuild.content.node import ARCHIVE, ELF, LINK
from imgbuild.content.packages import distributions
from imgbuild.content.tree import Tree
from imgbuild.digest import Digest
from imgbuild.errors import LayoutError
from imgbuild.model.identity import Verdict
from imgbuild.model.image import LibraryIdentity
from imgbuild.model.lockfile import LockedMember
from imgbuild.model.oci import ImageConfig
from imgbuild.steps.verify_library import library

from tests.support.elf_builder import shared_object
from tests.support.ld_cache import ld_cache

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator

    from imgbuild.content.inventory import ElfRecord
    from imgbuild.content.node import Node
    from imgbuild.model.lockfile import Lock
    from imgbuild.steps.view import View

CORPUS = Path(__file__).parents[1] / "corpus" / "nccl"
SITE = "opt/venv/lib/python3.12/site-packages"
TARGET = f"{SITE}/nvidia/nccl/lib/libnccl.so.2"
TORCH = f"{SITE}/torch/lib/libtorch_cuda.so"
SYSTEM = "usr/lib/aarch64-linux-gnu"
COPY = f"{SYSTEM}/libnccl.so.2.28.3"
_NCCL: dict[str, Any] = {
    "soname": "libnccl.so.2",
    "needed": ["libc.so.6"],
    "exports": ["ncclAllReduce", "ncclGetVersion"],
    "versions_needed": {"libc.so.6": ["GLIBC_2.17"]},
}
_KINDS: dict[str, dict[str, Any]] = {
    "nccl": _NCCL,
    "user": {"soname": "libuser.so", "needed": ["libnccl.so.2"], "imports": ["ncclAllReduce"]},
    "plain": {},
}
_WORDS = {"TARGET": TARGET, "FOLDER": TARGET.rpartition("/")[0], "SYSTEM": SYSTEM, "COPY": COPY, "SITE": SITE}


@dataclass(kw_only=True)
class Scene:
    """All that the gate is asked about."""

    files: dict[str, bytes]
    links: dict[str, str]
    identity: dict[str, Any]
    config: dict[str, Any] = field(default_factory=dict)
    build_id: str | None = "ab" * 20
    digest: str | None = None


def scene() -> Scene:
    """As it is when nothing is wrong."""
    return Scene(
        files={
            f"{SYSTEM}/libc.so.6": shared_object(soname="libc.so.6", versions_defined=["GLIBC_2.17", "GLIBC_2.39"]),
            TARGET: shared_object(**_NCCL, build_id="ab" * 20, extra=b"NCCL version 2.30.7\0NCCL_SKIP_TREE_CONNECT\0"),
            TORCH: shared_object(
                soname="libtorch_cuda.so",
                needed=["libnccl.so.2"],
                imports=["ncclAllReduce", "ncclGetVersion"],
                rpath="$ORIGIN/../../nvidia/nccl/lib",
            ),
            COPY: shared_object(**_NCCL, build_id="cd" * 20, extra=b"NCCL version 2.28.3\0"),
        },
        links={f"{SYSTEM}/libnccl.so.2": "libnccl.so.2.28.3"},
        identity={
            "path": f"/{TARGET}",
            "source": "nccl",
            "soname": "libnccl.so.2",
            "symbol": "ncclGetVersion",
            "prefixes": ["nccl", "pnccl"],
            "strings": ["NCCL version 2.30.7", "NCCL_SKIP_TREE_CONNECT"],
            "accept": [{"path": f"/{COPY}", "reason": "the system's"}],
        },
    )


def arranged(case: dict[str, Any]) -> Scene:
    """The scene with what a case changes."""
    found = scene()
    for path in case.get("remove", []):
        found.files.pop(_path(path), None)
        found.links.pop(_path(path), None)
    for row in case.get("file", []):
        found.files[_path(row["path"])] = _content(row)
    for row in case.get("link", []):
        found.links[_path(row["path"])] = _words(row["target"])
    if "cache" in case:
        found.files["etc/ld.so.cache"] = _cache(case["cache"])
    found.identity |= _words(case.get("library", {}))
    found.config = _words(case.get("config", {}))
    found.build_id = case.get("locked", {}).get("build_id", found.build_id)
    found.digest = case.get("locked", {}).get("digest")
    return found


def failures(found: Scene) -> set[str]:
    """`check: verdict` of every finding that is no match, with `(said)` where it is not required."""
    view = MemoryView(found)
    identity = msgspec.convert(found.identity, LibraryIdentity)
    findings = library(cast("View", view), "nccl", identity, _lock(found), config_of(found))
    return {
        f"{finding.check.removeprefix('library.nccl.')}: {finding.verdict.value}{'' if finding.required else ' (said)'}"
        for finding in findings
        if finding.verdict is not Verdict.MATCH
    }


def config_of(found: Scene) -> ImageConfig:
    """The image's config."""
    raw = {"architecture": "arm64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": []}, "config": found.config}
    return ImageConfig.parse(json.dumps(raw).encode(), subject="config")


def read_case(folder: Path) -> dict[str, Any]:
    """A case of the corpus."""
    return tomllib.loads((folder / "case.toml").read_text())


def cases() -> list[Path]:
    """All folders of the corpus."""
    return sorted(path.parent for path in CORPUS.glob("*/case.toml"))


class MemoryView:
    """What the gate asks of a `View`, from memory; the tree comes from the bytes of two layers."""

    def __init__(self, found: Scene) -> None:
        self._contents = {path.encode(errors="surrogateescape"): data for path, data in found.files.items()}
        self.tree = Tree()
        ours = {_path("TARGET")}
        for index, mine in enumerate((False, True)):
            changes = _changes(
                {path: data for path, data in found.files.items() if (path in ours) is mine},
                {} if mine else found.links,
            )
            self.tree.apply(_inventory(changes), index)
        self.elf_files = tuple(self.tree.marked(ELF))
        self.archives = tuple(self.tree.marked(ARCHIVE))
        self.links = tuple(path for path, _ in self.tree.marked(LINK))
        self.installed = distributions(self.tree, self.read)

    def resolve(self, path: bytes) -> bytes | None:
        found = self.tree.resolve(path)
        return found[0] if found is not None and found[1].type == "file" else None

    def listdir(self, path: bytes) -> Iterable[bytes]:
        found = self.tree.resolve(path)
        return sorted(found[1].children) if found is not None and found[1].is_directory else ()

    def read(self, path: bytes) -> bytes | None:
        real = self.resolve(path)
        if real is not None and len(self._contents[real]) > 1_000_000:
            raise LayoutError(f"file {path!r}", "is too large to be read whole")
        return None if real is None else self._contents[real]

    def elf(self, path: bytes) -> ElfRecord | None:
        node = self.tree.get(path)
        return None if node is None else node.elf

    def contents(self, node: Node) -> Generator[Iterator[bytes], None, None]:
        data = self._contents[node.source or b""]
        yield (data[start : start + 7] for start in range(0, len(data), 7))


def _inventory(changes: list[Change]) -> Any:
    raw = io.BytesIO()
    write_layer(changes, raw.write, epoch=0)
    raw.seek(0)
    return scan_layer(raw, subject="layer", spool=io.BytesIO, capture=lambda *_: None).inventory


def _changes(files: dict[str, bytes], links: dict[str, str]) -> list[Change]:
    folders = {parent for path in (*files, *links) for parent in _parents(path)}
    rows = [Change(path=_raw(path), type=ChangeType.DIRECTORY, mode=0o755) for path in sorted(folders)]
    rows += [
        Change(path=_raw(path), type=ChangeType.FILE, mode=0o644, content=BytesContent(data=data))
        for path, data in files.items()
        if path not in folders
    ]
    rows += [
        Change(path=_raw(path), type=ChangeType.SYMLINK, mode=0o777, link=_raw(target))
        for path, target in links.items()
    ]
    return rows


def _parents(path: str) -> Iterator[str]:
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path


def _raw(text: str) -> bytes:
    return text.encode(errors="surrogateescape")


def _lock(found: Scene) -> Lock:
    content = found.files.get(_path("TARGET"), b"")
    digest = Digest.parse(found.digest) if found.digest else Digest.of(content)
    zeros = Digest.of(b"wheel")
    member = LockedMember(name="nccl", wheel="w", wheel_digest=zeros, member="m", digest=digest, size=len(content))
    facts = SimpleNamespace(libraries=[SimpleNamespace(name="nccl", build_id=found.build_id)])
    return cast("Lock", SimpleNamespace(platform="linux/arm64", facts=facts, source=lambda _name: member))


def _content(row: dict[str, Any]) -> bytes:
    if "text" in row:
        text: str = _words(row["text"])
        return text.encode()
    if "hex" in row:
        return bytes.fromhex(row["hex"])
    facts = {**_KINDS[row.get("kind", "plain")], **_words(row.get("elf", {}))}
    extra = facts.pop("says", "").encode()
    data = shared_object(**{key: value for key, value in facts.items() if value != "none"}, extra=extra)
    if row.get("bits") == 32:
        data = data[:4] + b"\x01" + data[5:]
    return data[: row["cut"]] if "cut" in row else data


def _cache(value: dict[str, Any]) -> bytes:
    if "hex" in value:
        return bytes.fromhex(value["hex"])
    rows = [[(str(name), str(path)) for name, path in _words(value.get(key, []))] for key in ("lists", "conditional")]
    return ld_cache(rows[0], conditional=rows[1], machine=value.get("machine", "aarch64"), old=value.get("old", False))


def _path(text: str) -> str:
    return str(_words(text)).lstrip("/")


def _words(value: Any) -> Any:
    """`{TARGET}` and the like, replaced."""
    if isinstance(value, str):
        for word, text in _WORDS.items():
            value = value.replace(f"{{{word}}}", text)
        return _WORDS.get(value, value)
    if isinstance(value, list):
        return [_words(item) for item in value]
    return {key: _words(item) for key, item in value.items()} if isinstance(value, dict) else value


def wrong() -> list[str]:
    """The cases whose verdict is not what they say."""
    found = []
    for folder in cases():
        case = read_case(folder)
        if failures(arranged(case)) != set(case["fails"]):
            found.append(folder.name)
    return found


if __name__ == "__main__":
    print(json.dumps(wrong()))
    sys.exit(0)

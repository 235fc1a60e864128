"""The inventory of one layer: every entry with its facts, from one pass over the compressed stream.

One read gives the digest of the compressed bytes, the DiffID, all tar entries, the sha256 of every file, ELF facts,
and the bytes of small files that later steps read (package records, linker configuration). The document is JSON Lines:
a header, then one entry a line in the order of the archive; the same DiffID gives the same bytes. An inventory of other
symbol families than `SYMBOL_FAMILIES` is not read: it would not say what is looked for.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, BinaryIO

import msgspec
from msgspec.structs import replace

from imgbuild.config import CHUNK_BYTES, DEFAULT_LIMITS, Limits
from imgbuild.content.compression import decompress
from imgbuild.content.elf import is_elf, newest_glibc, read_elf
from imgbuild.content.elftexts import ARCHIVES, Inside, Texts, variable_names
from imgbuild.content.tarstream import EntryType, TarEntry, TarReader
from imgbuild.digest import BesideHash, Digest
from imgbuild.errors import ArchiveError, DocumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from imgbuild.content.elf import ElfFacts
    from imgbuild.digest import Readable

SCHEMA = "imgbuild/inventory/v4"
SYMBOL_FAMILIES = ("nccl", "pnccl")
"""Prefixes of the dynamic symbols that an inventory keeps; a whole CUDA image has millions of others."""

_MAGIC_BYTES = 8
"""bytes by which ELF files and archives are told."""
CAPTURED_ENDS = (
    b"RECORD",
    b"METADATA",
    b"INSTALLER",
    b"WHEEL",
    b".pth",
    b".conf",
    b".list",
    b".lock.json",
    b"receipt.json",
    b"ld.so.cache",
    b"ld.so.preload",
    b"status",
    b"os-release",
)
"""How the name of every `captured` file ends; those of others may, too."""
_RECORDS = (b"/RECORD", b"/METADATA", b"/INSTALLER", b"/WHEEL")
_CAPTURED_FOLDERS = (b"usr/share/imgbuild/",)
"""The lock and the receipt of an image that we built."""
_CAPTURED_PATHS = (
    b"etc/ld.so.cache",
    b"etc/ld.so.conf",
    b"etc/ld.so.preload",
    b"var/lib/dpkg/status",
    b"usr/lib/os-release",
)


# `gc=False`: entries hold no references in a circle, and looking for some in half a million of them takes as long as
# building a tree from them.
class ElfRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Facts of one ELF file (`ElfFacts`); `imports` and `exports` only of the header's symbol families."""

    machine: str
    bits: int = 64
    kind: str = "shared"
    soname: str | None = None
    needed: tuple[str, ...] = ()
    rpath: tuple[str, ...] = ()
    runpath: tuple[str, ...] = ()
    build_id: str | None = None
    versions_needed: tuple[tuple[str, tuple[str, ...]], ...] = ()
    versions_defined: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()
    exports: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    """Texts by which a library of the families names itself (`content.elftexts`); what is not among them may be there
    all the same."""

    @property
    def glibc_needed(self) -> str | None:
        """The newest `GLIBC_x.y` that it needs of any file, as `x.y`."""
        return newest_glibc(name for _, names in self.versions_needed for name in names)


class Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One tar entry. `path` and `link` are text for people; where they are not UTF-8, `raw_*` has the bytes."""

    path: str
    type: str
    mode: int
    uid: int = 0
    gid: int = 0
    mtime: int = 0
    size: int = 0
    sha256: str | None = None
    link: str = ""
    raw_path: bytes | None = None
    raw_link: bytes | None = None
    xattrs: tuple[tuple[str, bytes], ...] = ()
    device: tuple[int, int] | None = None
    elf: ElfRecord | None = None
    elf_problem: str | None = None
    """Why a file that begins like ELF has no facts; such a file is never taken for harmless."""
    inside: tuple[str, ...] = ()
    """Of an archive: by what it seems to hold a library of the families (`content.elftexts`)."""

    @property
    def path_bytes(self) -> bytes:
        """The path as stored, normalised."""
        return self.path.encode() if self.raw_path is None else self.raw_path

    @property
    def link_bytes(self) -> bytes:
        """The link target as stored."""
        return self.link.encode() if self.raw_link is None else self.raw_link


class _Header(msgspec.Struct, frozen=True, kw_only=True):
    schema: str
    diff_id: str
    uncompressed_size: int
    entries: int
    families: tuple[str, ...]


class Inventory(msgspec.Struct, frozen=True, kw_only=True):
    """All entries of one layer in the order of the archive."""

    diff_id: Digest
    uncompressed_size: int
    entries: tuple[Entry, ...]
    families: tuple[str, ...] = SYMBOL_FAMILIES

    def dump(self) -> bytes:
        """The document; its sha256 is the inventory digest of a lock."""
        header = _Header(
            schema=SCHEMA,
            diff_id=str(self.diff_id),
            uncompressed_size=self.uncompressed_size,
            entries=len(self.entries),
            families=self.families,
        )
        return msgspec.json.Encoder().encode_lines([header, *self.entries])

    @classmethod
    def load(cls, raw: bytes, *, subject: str) -> Inventory:
        """Parse; a `DocumentError` says what is wrong. The digest of `raw` is the caller's to check."""
        head, _, rest = raw.partition(b"\n")
        try:
            header = msgspec.json.decode(head, type=_Header)
            entries = tuple(msgspec.json.Decoder(Entry).decode_lines(rest))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise DocumentError(subject, (f"is not an inventory: {error}",)) from error
        if header.schema != SCHEMA or header.entries != len(entries):
            raise DocumentError(
                subject, (f"has schema {header.schema!r} and {len(entries)} of {header.entries} entries",)
            )
        if header.families != SYMBOL_FAMILIES:
            raise DocumentError(subject, (f"has the symbols of {header.families}, not of {SYMBOL_FAMILIES}",))
        return cls(
            diff_id=Digest.parse(header.diff_id),
            uncompressed_size=header.uncompressed_size,
            entries=entries,
            families=header.families,
        )


class LayerScan(msgspec.Struct, frozen=True, kw_only=True):
    """What one pass over a layer's compressed stream says."""

    digest: Digest
    size: int
    inventory: Inventory


class _Counted:
    """Hashes and counts what is read through it."""

    def __init__(
        self, stream: Readable, algorithm: str, advance: Callable[[int], object], *, beside: bool = False
    ) -> None:
        self._stream = stream
        self._advance = advance
        self._algorithm = algorithm
        self.hasher = BesideHash(algorithm) if beside else hashlib.new(algorithm)
        self.count = 0

    def read(self, size: int, /) -> bytes:
        data = self._stream.read(size)
        self.hasher.update(data)
        self.count += len(data)
        self._advance(len(data))
        return data

    def digest(self) -> Digest:
        return Digest(self._algorithm, self.hasher.hexdigest())


class _Known:
    """Counts what is read through it, whose digest is known."""

    def __init__(self, stream: Readable, digest: Digest) -> None:
        self._stream = stream
        self._digest = digest
        self.count = 0

    def read(self, size: int, /) -> bytes:
        data = self._stream.read(size)
        self.count += len(data)
        return data

    def digest(self) -> Digest:
        return self._digest


def scan_layer(
    stream: Readable,
    *,
    subject: str,
    spool: Callable[[], BinaryIO],
    capture: Callable[[Digest, bytes], object],
    advance: Callable[[int], object] = int,
    algorithms: tuple[str, str] = ("sha256", "sha256"),
    diff_id: Digest | None = None,
    beside: bool = False,
    broken: Callable[[Digest, int], object] = lambda _digest, _size: None,
    limits: Limits = DEFAULT_LIMITS,
) -> LayerScan:
    """Read a layer once.

    Args:
        stream: the compressed bytes, as stored; read to the end.
        subject: how errors name the layer.
        spool: gives an empty seekable file for the bytes of one ELF file; closed afterwards.
        capture: is handed digest and bytes of each small file that later steps read.
        advance: is told the number of compressed bytes of each read.
        algorithms: of the digest of the compressed bytes and of the DiffID; sha512 where an image has it (case C15).
        diff_id: is taken for the DiffID, and nothing is hashed for it: for whoever compares the inventory, in which it
            stands, with one that was taken of the same bytes.
        beside: take these in other threads, which is faster where a core has nothing to do.
        broken: is told digest and size in bytes of a stream that is not accepted, read to its end; may raise what says
            more.
        limits: bounds; `captured_file_bytes` for `capture`.

    Raises:
        ArchiveError: the stream is not a layer that we accept. Whether digest and DiffID are the expected ones is not
            checked here.
    """
    outer = _Counted(stream, algorithms[0], advance, beside=beside)
    try:
        text = decompress(outer, subject=subject, limits=limits)
        inner = _Counted(text, algorithms[1], int, beside=beside) if diff_id is None else _Known(text, diff_id)
        reader = TarReader(inner, subject=subject, limits=limits)
        scanner = _Scanner(reader, spool, capture, limits, subject)
        entries = tuple(scanner.entry(entry) for entry in reader)
        while outer.read(CHUNK_BYTES):
            raise ArchiveError(subject, "has data after its end")  # noqa: TRY301
    except ArchiveError:
        while outer.read(CHUNK_BYTES):
            pass
        broken(outer.digest(), outer.count)
        raise
    inventory = Inventory(diff_id=inner.digest(), uncompressed_size=inner.count, entries=entries)
    return LayerScan(digest=outer.digest(), size=outer.count, inventory=inventory)


class _Scanner:
    def __init__(
        self,
        reader: TarReader,
        spool: Callable[[], BinaryIO],
        capture: Callable[[Digest, bytes], object],
        limits: Limits,
        subject: str,
    ) -> None:
        self._reader = reader
        self._spool = spool
        self._capture = capture
        self._limits = limits
        self._subject = subject

    def entry(self, entry: TarEntry) -> Entry:
        path, raw_path = _text(entry.path)
        link, raw_link = _text(entry.link)
        facts: dict[str, object] = {}
        if entry.type is EntryType.FILE:
            facts = self._file(entry)
        return Entry(
            path=path,
            raw_path=raw_path,
            type=entry.type.value,
            mode=entry.mode,
            uid=entry.uid,
            gid=entry.gid,
            mtime=entry.mtime,
            size=entry.size,
            link=link,
            raw_link=raw_link,
            xattrs=entry.xattrs,
            device=entry.device,
            **facts,  # type: ignore[arg-type]
        )

    def _file(self, entry: TarEntry) -> dict[str, object]:
        pieces = self._reader.content()
        head = next(pieces, b"")
        # The first piece may be a single byte, by chance or to hide that a file is ELF.
        while len(head) < _MAGIC_BYTES and (more := next(pieces, b"")):
            head += more
        if is_elf(head):
            return self._elf(entry, head, pieces)
        inside = Inside(head) if head.startswith(ARCHIVES) else None
        hasher = hashlib.sha256(head)
        if inside is not None:
            inside.update(head)
        kept = [head] if captured(entry.path) and entry.size <= self._limits.captured_file_bytes else None
        for piece in pieces:
            hasher.update(piece)
            if kept is not None:
                kept.append(piece)
            if inside is not None:
                inside.update(piece)
        digest = hasher.hexdigest()
        if kept is not None:
            self._capture(Digest("sha256", digest), b"".join(kept))
        return {"sha256": digest, "inside": () if inside is None else inside.finish()}

    def _elf(self, entry: TarEntry, head: bytes, pieces: Iterator[bytes]) -> dict[str, object]:
        hasher, texts = hashlib.sha256(head), Texts()
        texts.update(head)
        with self._spool() as file:
            file.write(head)
            for piece in pieces:
                hasher.update(piece)
                texts.update(piece)
                file.write(piece)
            file.seek(0)
            facts: dict[str, object] = {"sha256": hasher.hexdigest()}
            try:
                elf = read_elf(file, subject=f"{self._subject}, {entry.path!r}", limits=self._limits)
            except ArchiveError as error:
                facts["elf_problem"] = error.problem
            else:
                record = elf_record(elf)
                names = variable_names(file) if record.exports else ()
                facts["elf"] = replace(record, texts=(*texts.finish(), *names))
        return facts


def captured(path: bytes) -> bool:
    """Whether a file's bytes are kept for later steps: package records and linker configuration."""
    if not path.endswith(CAPTURED_ENDS):
        return False
    if path.endswith(_RECORDS) and path.rpartition(b"/")[0].endswith((b".dist-info", b".egg-info")):
        return True
    if path in _CAPTURED_PATHS or path.startswith(_CAPTURED_FOLDERS):
        return True
    if path.startswith(b"var/lib/dpkg/info/") and path.endswith(b".list"):
        return True
    if path.endswith(b".pth") and path.rpartition(b"/")[0].endswith((b"/site-packages", b"/dist-packages")):
        return True
    return path.startswith(b"etc/ld.so.conf.d/") and path.endswith(b".conf")


def elf_record(facts: ElfFacts) -> ElfRecord:
    """The part of ELF facts that an inventory keeps, without the texts, for which a file is read whole."""
    return ElfRecord(
        machine=facts.machine,
        bits=facts.bits,
        kind=facts.kind,
        soname=facts.soname,
        needed=facts.needed,
        rpath=facts.rpath,
        runpath=facts.runpath,
        build_id=facts.build_id,
        versions_needed=facts.versions_needed,
        versions_defined=facts.versions_defined,
        imports=tuple(name for name in facts.imports if name.startswith(SYMBOL_FAMILIES)),
        exports=tuple(name for name in facts.exports if name.startswith(SYMBOL_FAMILIES)),
    )


def _text(data: bytes) -> tuple[str, bytes | None]:
    try:
        return data.decode("utf-8"), None
    except UnicodeDecodeError:
        return data.decode("utf-8", "backslashreplace"), data

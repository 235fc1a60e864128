"""What identifies an NCCL library, from one pass over its bytes and its ELF tables; nothing of it is run.

A version number does not tell two builds apart; what does is the digest. The rest says which build it may be: the
texts by which it names itself, names of environment variables that patches bring, the GPUs that it has code for.

NOT checked: that `ncclGetVersion` returns what the text says, that a variable whose name is there has an effect, and
signatures. Texts in compressed parts of a file are not found.
"""

from __future__ import annotations

import hashlib
import re
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

from imgbuild.content.elf import is_elf, newest_version, read_elf
from imgbuild.content.elftexts import GIT, MOST, NAME, Texts
from imgbuild.content.fatbin import Fatbins, GpuCode
from imgbuild.digest import Digest
from imgbuild.errors import ArchiveError

if TYPE_CHECKING:
    from imgbuild.content.elf import ElfFacts

SYMBOL = "ncclGetVersion"
"""Every NCCL exports it; so do libraries that stand in for it, such as RCCL."""
MARKERS = ("NCCL_SWITCHLESS_RING_ONLY", "NCCL_SKIP_TREE_CONNECT")
"""Environment variables of patches for rings without a switch. A build without the patch ignores its variable."""

_VERSION = re.compile(
    r"NCCL version ([0-9]{1,3})\.([0-9]{1,3})\.([0-9]{1,3})(?:[^0-9.+][^+]*)?(?:\+cuda([0-9.]{1,12}))?"
)
_FAMILIES = ("nccl", "pnccl")
_MAGIC = b"\x7fELF"
_HEAD_BYTES = 64
"""bytes of the header of ELF64, the longer one."""
_SECTIONS = {1: ("I", 32, 46), 2: ("Q", 40, 58)}
"""By ELF class: form and place of e_shoff, and the place of e_shentsize and e_shnum behind it."""
_OLD = (2, 8)
"""the last major and minor number whose versions have a digit less in their code (NCCL_VERSION in nccl.h)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """One version that a text in the bytes states.

    Attributes:
        number: `2.30.7`.
        code: what ncclGetVersion of that version returns, 23007.
        cuda: the CUDA that it was built with, `13.3`; None where the text does not say it.
        text: the text.
    """

    number: str
    code: int
    cuda: str | None
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclFacts:
    """The facts of one file.

    Attributes:
        digest: sha256 of the file.
        size: bytes.
        elf: None where the tables that ld.so reads are damaged.
        elf_problem: why, or that the file was cut off behind them.
        texts: the texts `NCCL version …`, sorted.
        git: branch and commit, of each text that has them.
        names: all words that begin with NCCL_, sorted; most are names of environment variables.
        gpu: for which GPUs it has code.
    """

    digest: Digest
    size: int
    elf: ElfFacts | None
    elf_problem: str | None
    texts: tuple[str, ...]
    git: tuple[str, ...]
    names: tuple[str, ...]
    gpu: GpuCode

    @property
    def version(self) -> Version | None:
        """The version that its texts state; None if they state none or several."""
        found = [version for text in self.texts if (version := parse_version(text)) is not None]
        if not found or len({version.code for version in found}) > 1:
            return None
        named = [version for version in found if version.cuda is not None]
        return None if len({version.cuda for version in named}) > 1 else (named or found)[0]

    @property
    def exports(self) -> tuple[str, ...]:
        """The symbols of the families that it exports, without their versions, sorted."""
        names = () if self.elf is None else self.elf.exports
        return tuple(sorted({name.partition("@")[0] for name in names if name.startswith(_FAMILIES)}))

    @property
    def is_nccl(self) -> bool:
        """Whether it is an NCCL library, as far as its tables can be read."""
        return SYMBOL in self.exports

    def newest(self, family: str) -> str | None:
        """The newest version of a family (`GLIBC`, `GLIBCXX`, `CXXABI`) that it needs."""
        rows = () if self.elf is None else self.elf.versions_needed
        return newest_version((name for _, names in rows for name in names), family)

    def has(self, marker: str) -> bool | None:
        """Whether a name is in the bytes; None where there are more names than were kept."""
        if marker in self.names:
            return True
        return None if len(self.names) >= MOST else False

    def problems(self) -> tuple[str, ...]:
        """Why this is no sound NCCL library, each as a clause about it; none where it is one."""
        if self.elf_problem is not None:
            return (self.elf_problem,)
        said = f", though its bytes say {self.texts[0]!r}" if self.texts else ""
        if not self.is_nccl:
            return (f"is no NCCL library: it does not export {SYMBOL}{said}",)
        if self.version is None:
            texts = ", ".join(repr(text) for text in self.texts[:5])
            return (f"states several versions: {texts}" if texts else "states no version",)
        return ()


class NcclScan:
    """One pass over the bytes of a file."""

    def __init__(self, subject: str) -> None:
        """Begin; `subject` is the file in errors."""
        self._subject = subject
        self._hasher = hashlib.sha256()
        self._size = 0
        self._head = b""
        self._versions, self._git, self._names = Texts(), Texts(GIT), Texts(NAME)
        self._fatbins = Fatbins()

    @property
    def digest(self) -> Digest:
        """The sha256 of the bytes so far."""
        return Digest("sha256", self._hasher.hexdigest())

    def update(self, piece: bytes) -> None:
        """The next piece, of any length."""
        self._head += piece[: _HEAD_BYTES - len(self._head)]
        self._size += len(piece)
        self._hasher.update(piece)
        for part in (self._versions, self._git, self._names, self._fatbins):
            part.update(piece)

    def finish(self, file: BinaryIO) -> NcclFacts:
        """The facts. `file` has the bytes that were given, and is seekable; its position is moved.

        Raises:
            ArchiveError: it is empty, or no ELF file. Damage behind that is `elf_problem`.
        """
        self._check_head()
        elf, problem = None, None
        try:
            elf = read_elf(file, subject=self._subject)
        except ArchiveError as error:
            problem = str(error).removeprefix(f"{self._subject}: ")
        problem = problem or self._cut_off()
        return NcclFacts(
            digest=self.digest,
            size=self._size,
            elf=elf,
            elf_problem=problem,
            texts=self._versions.finish(),
            git=tuple(text.removeprefix(GIT.decode()) for text in self._git.finish()),
            names=self._names.finish(),
            gpu=self._fatbins.finish(file),
        )

    def _check_head(self) -> None:
        if not self._head:
            raise ArchiveError(self._subject, "is empty", expected="an ELF file")
        if not is_elf(self._head):
            raise ArchiveError(
                self._subject,
                "is not an ELF file",
                expected=f"{_MAGIC.hex(' ')} at its beginning",
                actual=self._head[: len(_MAGIC)].hex(" "),
            )

    def _cut_off(self) -> str | None:
        """Whether the file ends before its table of sections does, of which ld.so asks nothing."""
        form, place, rest = _SECTIONS[self._head[4]]
        order = "<" if self._head[5] == 1 else ">"
        (start,) = struct.unpack_from(order + form, self._head, place)
        size, count = struct.unpack_from(f"{order}2H", self._head, rest)
        end = start + size * count
        if end <= self._size:
            return None
        return f"is shorter than its table of sections: it was cut off; expected {end} bytes, actual {self._size}"


def parse_version(text: str) -> Version | None:
    """A text `NCCL version 2.30.7+cuda13.3`, also without the CUDA, and with a suffix; None for all else.

    The code is that of NCCL_VERSION in nccl.h: 2.8.4 is 2804, and 2.9.6 is 20906.
    """
    match = _VERSION.fullmatch(text)
    if match is None:
        return None
    major, minor, patch = (int(match[group]) for group in (1, 2, 3))
    scale = 1_000 if major <= _OLD[0] and minor <= _OLD[1] else 10_000
    code = major * scale + minor * 100 + patch
    return Version(number=f"{major}.{minor}.{patch}", code=code, cuda=match[4], text=text)

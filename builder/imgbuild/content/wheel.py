"""Wheels as archives of bytes (PEP 427): checked before anything is believed, installed by RECORD without running pip.

The reading of wheel metadata, RECORD checks, script generation and the new RECORD are `installer`'s work; ours are the
bounds, the refusal of archives that different readers would read differently (`ziparchive`), and handing the files to
a tree.
"""

from __future__ import annotations

import configparser
import csv
import posixpath
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version

from imgbuild.config import MIB
from imgbuild.content.packages import encoded_hash
from imgbuild.content.ziparchive import member_digest, open_archive, open_member
from imgbuild.digest import Digest
from imgbuild.errors import ArchiveError, StepError
from imgbuild.text import printable

if TYPE_CHECKING:
    from installer.records import RecordEntry
    from installer.scripts import ScriptSection
    from installer.sources import WheelFile

__all__ = [
    "INSTALL_BYTES",
    "WheelEntry",
    "check_tags",
    "distribution_of",
    "install",
    "member_digest",
    "open_archive",
    "open_member",
]

INSTALL_BYTES = 512 * MIB
"""bytes of all files of a wheel that is installed; it is held in memory."""
_INSTALLING = (ValueError, KeyError, TypeError, AssertionError, configparser.Error, csv.Error)
"""what `installer` lets through, besides its own errors, when a wheel's metadata are broken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelEntry:
    """One file that a wheel installs."""

    path: bytes
    data: bytes
    executable: bool


def check_tags(filename: str, *, python: str, machine: str, subject: str, where: str | None = None) -> None:
    """Refuse a wheel whose tags do not fit the image's Python and machine (PEP 425); `python` as 3.12.

    Which glibc a manylinux tag asks for is not compared here; the static verification compares ELF facts instead.
    """
    try:
        tags = parse_wheel_filename(filename)[3]
    except InvalidWheelFilename as error:
        raise StepError(subject, "has no valid wheel file name", actual=filename, where=where) from error
    major, minor = (int(part) for part in python.split("."))
    platforms = [
        *(f"manylinux_2_{glibc}_{machine}" for glibc in range(17, 60)),
        f"manylinux2014_{machine}",
        f"linux_{machine}",
    ]
    good: set[Tag] = {
        *cpython_tags((major, minor), platforms=platforms),
        *compatible_tags((major, minor), interpreter=f"cp{major}{minor}", platforms=platforms),
    }
    if not tags & good:
        raise StepError(
            subject,
            "is not for the image's Python and machine",
            expected=f"a tag for CPython {python} on linux {machine}",
            actual=", ".join(sorted(str(tag) for tag in tags)),
            where=where,
            hint="set `platforms` and `python` of the source as the image has them, and run `imgbuild lock IMAGE`",
        )


def install(
    file: BinaryIO, *, filename: str, site: bytes, scripts: bytes | None, interpreter: str, subject: str
) -> tuple[WheelEntry, ...]:
    """The files that installing this wheel gives, RECORD and INSTALLER included, sorted by path.

    Every member must be in RECORD with its hash and size; rows without a member are dropped. Compiled files in
    `__pycache__` are left out, as `installer` does: they may differ from their sources.

    Raises:
        ArchiveError: RECORD does not match the members, METADATA is of another distribution than the file name, a
            path is written twice or leaves its folder, or the archive is not sound.
        StepError: the wheel has parts that we do not place (headers, data), or scripts without a place for them.
    """
    from installer import install as run  # noqa: PLC0415 - only when a wheel is installed
    from installer.exceptions import InstallerError  # noqa: PLC0415
    from installer.records import InvalidRecordEntry  # noqa: PLC0415
    from installer.sources import WheelFile  # noqa: PLC0415

    with open_archive(file, subject=subject) as archive:
        if sum(info.file_size for info in archive.infolist()) > INSTALL_BYTES:
            raise ArchiveError(subject, "is too large to install", expected=f"at most {INSTALL_BYTES} bytes")
        # WheelFile takes name and version from the archive's file name, which an open file does not have.
        archive.filename = filename
        destination = _destination(site, scripts, interpreter, subject)
        try:
            source = WheelFile(archive)
            source.validate_record(validate_contents=True)
            _check_metadata(source, filename, subject)
            with warnings.catch_warnings(action="ignore", category=RuntimeWarning):
                run(source, destination, {"INSTALLER": b"imgbuild\n"})
        except (InstallerError, InvalidRecordEntry, *_INSTALLING) as error:
            reason = printable(str(error) or type(error).__name__)
            raise ArchiveError(subject, f"cannot be installed by its RECORD: {reason}") from error
        return tuple(sorted(destination.files.values(), key=lambda entry: entry.path))


def distribution_of(filename: str) -> tuple[str, str]:
    """Normalised name and version of a wheel's file name; a `StepError` if it is none."""
    try:
        name, version, _, _ = parse_wheel_filename(filename)
    except InvalidWheelFilename as error:
        raise StepError(f"wheel {printable(filename)}", "has no valid wheel file name") from error
    return canonicalize_name(name), str(version)


def _check_metadata(source: WheelFile, filename: str, subject: str) -> None:
    """Refuse METADATA of another distribution: under that name it would be found once it is installed."""
    from installer.utils import parse_metadata_file  # noqa: PLC0415 - only when a wheel is installed

    headers = parse_metadata_file(source.read_dist_info("METADATA"))
    name, version = canonicalize_name(str(headers["Name"])), str(Version(str(headers["Version"])))
    if (name, version) != distribution_of(filename):
        raise ArchiveError(
            subject,
            "is of another distribution than its file name says",
            expected=" ".join(distribution_of(filename)),
            actual=printable(f"{name} {version}"),
        )


def _destination(site: bytes, scripts: bytes | None, interpreter: str, subject: str) -> Any:
    from installer.destinations import WheelDestination  # noqa: PLC0415 - only when a wheel is installed
    from installer.records import Hash, RecordEntry  # noqa: PLC0415
    from installer.scripts import Script  # noqa: PLC0415
    from installer.utils import construct_record_file, fix_shebang  # noqa: PLC0415

    class Destination(WheelDestination, _Collector):
        def write_file(self, scheme, path, stream, is_executable):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
            text = str(path)
            if scheme == "scripts":
                with fix_shebang(stream, interpreter) as fixed:
                    return self._keep(scheme, text, fixed.read(), executable=is_executable)
            return self._keep(scheme, text, stream.read(), executable=is_executable)

        def write_script(self, name: str, module: str, attr: str, section: ScriptSection) -> RecordEntry:
            script, data = Script(name, module, attr, section).generate(interpreter, "posix")
            return self._keep("scripts", script, data, executable=True)

        def finalize_installation(self, scheme, record_file_path, records):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
            start = self.root("scripts").decode() if scripts is not None else ""
            prefix = posixpath.relpath("/" + start, "/" + site.decode()) + "/"
            rows = sorted(records, key=lambda item: (item[0] != "scripts", item[1].path))
            with construct_record_file(rows, lambda name: prefix if name == "scripts" else None) as stream:
                self._keep(scheme, record_file_path, stream.read(), executable=False)

        def _keep(self, scheme: str, path: str, data: bytes, *, executable: bool) -> RecordEntry:
            full = posixpath.join(self.root(scheme), path.encode())
            if posixpath.normpath(full) != full or not full.startswith(self.root(scheme) + b"/"):
                raise ArchiveError(subject, "installs a file outside of its folder", actual=printable(path))
            if full in self.files:
                raise ArchiveError(subject, "installs two files at one path", actual=printable(path))
            self.files[full] = WheelEntry(path=full, data=data, executable=executable)
            sha256 = encoded_hash(Digest.of(data).encoded).partition("=")[2]
            return RecordEntry(path, Hash("sha256", sha256), len(data))

    return Destination(site, scripts, subject)


class _Collector:
    """What was installed, and where each scheme of a wheel goes."""

    def __init__(self, site: bytes, scripts: bytes | None, subject: str) -> None:
        self.files: dict[bytes, WheelEntry] = {}
        self._site = site
        self._scripts = scripts
        self._subject = subject

    def root(self, scheme: str) -> bytes:
        if scheme in {"purelib", "platlib"}:
            return self._site
        if scheme == "scripts" and self._scripts is not None:
            return self._scripts
        raise StepError(
            self._subject,
            f"has files for {scheme!r}, for which the step names no place",
            hint="set `scripts` in the step, or choose another wheel" if scheme == "scripts" else None,
        )

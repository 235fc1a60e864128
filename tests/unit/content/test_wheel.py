from __future__ import annotations

import csv
import io
import subprocess
import sys
import zipfile
from typing import TYPE_CHECKING, Any

import pytest
from imgbuild.content.packages import parse_record
from imgbuild.content.wheel import WheelEntry, check_tags, distribution_of, install, member_digest
from imgbuild.digest import Digest
from imgbuild.errors import ArchiveError, StepError

from tests.support.made import record_hash

if TYPE_CHECKING:
    from pathlib import Path

NAME = "my_pkg-1.0-py3-none-any.whl"
INFO = "my_pkg-1.0.dist-info"
DATA = "my_pkg-1.0.data"
SITE = b"opt/venv/lib/python3.12/site-packages"
SCRIPTS = b"opt/venv/bin"
Files = dict[str, bytes]
METADATA = b"Metadata-Version: 2.1\nName: my-pkg\nVersion: 1.0\n"
WHEEL = b"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def rows_of(files: Files) -> list[tuple[str, str, str]]:
    return [(path, record_hash(data), str(len(data))) for path, data in files.items()] + [(f"{INFO}/RECORD", "", "")]


def wheel(
    files: Files | None = None, *, record: list[tuple[str, ...]] | bytes | None = None, mode: int = 0o644
) -> bytes:
    """A wheel whose RECORD is right unless one is given."""
    members = {f"{INFO}/METADATA": METADATA, f"{INFO}/WHEEL": WHEEL, "my_pkg/__init__.py": b"A = 1\n", **(files or {})}
    if not isinstance(record, bytes):
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(rows_of(members) if record is None else record)
        record = text.getvalue().encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path, data in {**members, f"{INFO}/RECORD": record}.items():
            info = zipfile.ZipInfo(path, (2020, 1, 1, 0, 0, 0))
            info.external_attr = (0o100000 | (0o755 if "bin" in path or "scripts" in path else mode)) << 16
            archive.writestr(info, data)
    return buffer.getvalue()


def installed(data: bytes, **other: Any) -> dict[str, WheelEntry]:
    """What is installed, by path without the site folder."""
    arguments = {
        "filename": NAME,
        "site": SITE,
        "scripts": SCRIPTS,
        "interpreter": "/usr/bin/python3.12",
        "subject": "w",
    }
    found = install(io.BytesIO(data), **{**arguments, **other})
    assert list(found) == sorted(found, key=lambda entry: entry.path)
    return {entry.path.decode().removeprefix(SITE.decode() + "/"): entry for entry in found}


class TestInstall:
    def test_members_land_in_the_site_folder_with_a_new_record_and_an_installer(self) -> None:
        found = installed(wheel({"top.py": b"", "my_pkg/é, x.txt": b"data"}))
        assert sorted(found) == [
            f"{INFO}/INSTALLER", f"{INFO}/METADATA", f"{INFO}/RECORD", f"{INFO}/WHEEL",
            "my_pkg/__init__.py", "my_pkg/é, x.txt", "top.py",
        ]  # fmt: skip
        assert found[f"{INFO}/INSTALLER"].data == b"imgbuild\n"
        assert found["my_pkg/é, x.txt"].data == b"data"
        assert not any(entry.executable for entry in found.values())

    def test_the_new_record_lists_exactly_what_was_installed_with_its_bytes(self) -> None:
        files = {
            "a,b.py": b"x",
            f"{DATA}/scripts/run": b"#!python\nx\n",
            f"{INFO}/entry_points.txt": b"[console_scripts]\nt=m:f\n",
        }
        found = installed(wheel(files))
        rows = {row.path: row for row in parse_record(found[f"{INFO}/RECORD"].data, site=SITE)}
        by_path = {entry.path: entry for entry in found.values()}
        assert rows.keys() == by_path.keys()
        for path, row in rows.items():
            if not path.endswith(b"/RECORD"):
                assert (row.sha256, row.size) == (Digest.of(by_path[path].data).encoded, len(by_path[path].data))
        assert rows[SITE + f"/{INFO}/RECORD".encode()].sha256 is None

    def test_the_result_depends_on_the_wheel_only_and_not_on_the_order_of_its_members(self) -> None:
        forward = wheel(
            {"a.py": b"a", "b.py": b"b", f"{INFO}/entry_points.txt": b"[console_scripts]\nx = a:b\ny = a:c\n"}
        )
        with zipfile.ZipFile(io.BytesIO(forward)) as archive:
            buffer = io.BytesIO()
            with zipfile.ZipFile(buffer, "w") as other:
                for info in reversed(archive.infolist()):
                    other.writestr(info, archive.read(info))
        assert installed(forward) == installed(buffer.getvalue())

    def test_the_executable_bit_of_a_member_is_kept(self) -> None:
        assert installed(wheel({"my_pkg/bin/tool": b"x"}))["my_pkg/bin/tool"].executable

    def test_scripts_land_in_their_folder_with_the_interpreter_of_the_image(self) -> None:
        found = installed(wheel({f"{DATA}/scripts/run": b"#!python -u\nx\n", f"{DATA}/scripts/sh": b"#!/bin/sh\n"}))
        run, shell = found["opt/venv/bin/run"], found["opt/venv/bin/sh"]
        assert (run.data, run.executable) == (b"#!/usr/bin/python3.12\nx\n", True)
        assert shell.data == b"#!/bin/sh\n"
        assert b"../../../bin/run,sha256=" in found[f"{INFO}/RECORD"].data

    def test_entry_points_become_executable_scripts(self) -> None:
        points = b"[console_scripts]\ntool = my_pkg.cli:main\n[gui_scripts]\nwin = my_pkg:a.b\n[other]\nx = y\n"
        found = installed(wheel({f"{INFO}/entry_points.txt": points}))
        assert found["opt/venv/bin/tool"].executable
        assert found["opt/venv/bin/tool"].data.startswith(b"#!/usr/bin/python3.12\n")
        assert b"from my_pkg.cli import main" in found["opt/venv/bin/tool"].data
        assert b"sys.exit(a.b())" in found["opt/venv/bin/win"].data
        assert "opt/venv/bin/x" not in found

    def test_purelib_and_platlib_parts_land_in_the_site_folder(self) -> None:
        found = installed(wheel({f"{DATA}/purelib/p.py": b"1", f"{DATA}/platlib/q.so": b"2"}))
        assert (found["p.py"].data, found["q.so"].data) == (b"1", b"2")
        assert not any(path.startswith(DATA) for path in found)

    def test_compiled_files_are_left_out_without_a_warning(self) -> None:
        found = installed(wheel({"my_pkg/__pycache__/a.cpython-312.pyc": b"x"}))
        assert not any("__pycache__" in path for path in found)
        assert b"__pycache__" not in found[f"{INFO}/RECORD"].data

    def test_pip_installs_the_same_files_with_the_same_bytes(self, tmp_path: Path) -> None:
        files = {
            "top.py": b"x = 1\n",
            "my_pkg/sub/data.bin": bytes(300),
            f"{DATA}/purelib/p.py": b"y = 1\n",
            f"{DATA}/scripts/run": b"#!python\nprint()\n",
            f"{INFO}/entry_points.txt": b"[console_scripts]\ntool = my_pkg.cli:main\n",
        }
        (tmp_path / NAME).write_bytes(wheel(files))
        command = [
            "install",
            "-q",
            "--no-index",
            "--no-deps",
            "--no-compile",
            "--no-warn-script-location",
            "--ignore-installed",
        ]
        where = [
            "--disable-pip-version-check",
            "--root-user-action=ignore",
            "--prefix",
            str(tmp_path / "x"),
            str(tmp_path / NAME),
        ]
        subprocess.run([sys.executable, "-m", "pip", *command, *where], check=True)
        prefix = tmp_path / "x"
        theirs = {path.relative_to(prefix).as_posix(): path for path in prefix.rglob("*") if path.is_file()}
        site = next(path for path in theirs if path.endswith("top.py")).removesuffix("/top.py")
        found = installed(wheel(files), site=site.encode(), scripts=b"bin", interpreter=sys.executable)
        ours = {entry.path.decode(): entry for entry in found.values()}
        own_to_pip = {f"{site}/{INFO}/{name}" for name in ("REQUESTED", "direct_url.json")}
        assert theirs.keys() - own_to_pip == ours.keys()
        for path, entry in ours.items():
            # pip generates scripts from a template of its own, and RECORD and INSTALLER say who installed.
            if not path.endswith(("/RECORD", "/INSTALLER", "bin/tool")):
                assert theirs[path].read_bytes() == entry.data, path
            assert bool(theirs[path].stat().st_mode & 0o100) is entry.executable, path
        claimed = {row.path for row in parse_record(theirs[f"{site}/{INFO}/RECORD"].read_bytes(), site=site.encode())}
        rows = parse_record(ours[f"{site}/{INFO}/RECORD"].data, site=site.encode())
        assert {row.path for row in rows} == claimed - {path.encode() for path in own_to_pip}


class TestPlaces:
    @pytest.mark.parametrize("part", ["headers/a.h", "data/share/x"])
    def test_parts_that_are_not_placed_are_refused(self, part: str) -> None:
        scheme = part.partition("/")[0]
        with pytest.raises(StepError, match=f"has files for '{scheme}', for which the step names no place"):
            installed(wheel({f"{DATA}/{part}": b"x"}))

    @pytest.mark.parametrize(
        "files", [{f"{DATA}/scripts/run": b"x"}, {f"{INFO}/entry_points.txt": b"[console_scripts]\nx = a:b\n"}]
    )
    def test_scripts_without_a_folder_for_them_are_refused_with_what_to_do(self, files: Files) -> None:
        with pytest.raises(StepError, match="'scripts'") as caught:
            installed(wheel(files), scripts=None)
        assert caught.value.hint is not None
        assert "`scripts`" in caught.value.hint

    def test_a_wheel_without_scripts_needs_no_folder_for_them(self) -> None:
        found = installed(wheel(), scripts=None)
        assert b"my_pkg/__init__.py,sha256=" in found[f"{INFO}/RECORD"].data

    @pytest.mark.parametrize("name", ["../../etc/cron.d/x", "/etc/x", "..", ".", "a/../../../b", "a//b", "./x", "a/."])
    def test_an_entry_point_that_leaves_its_folder_is_refused(self, name: str) -> None:
        with pytest.raises(ArchiveError, match="installs a file outside of its folder"):
            installed(wheel({f"{INFO}/entry_points.txt": f"[console_scripts]\n{name} = a:b\n".encode()}))

    @pytest.mark.parametrize(
        "files",
        [
            {f"{DATA}/purelib/top.py": b"2", "top.py": b"1"},
            {f"{DATA}/purelib/p.py": b"2", f"{DATA}/platlib/p.py": b"1"},
            {f"{DATA}/scripts/t": b"2", f"{INFO}/entry_points.txt": b"[console_scripts]\nt = a:b\n"},
            {f"{INFO}/entry_points.txt": b"[console_scripts]\nt = a:b\n[gui_scripts]\nt = a:c\n"},
            {f"{INFO}/INSTALLER": b"pip\n"},
        ],
    )
    def test_two_files_for_one_path_are_refused(self, files: Files) -> None:
        with pytest.raises(ArchiveError, match="installs two files at one path"):
            installed(wheel(files))

    def test_another_part_of_the_data_folder_is_refused(self) -> None:
        with pytest.raises(ArchiveError, match="cannot be installed"):
            installed(wheel({f"{DATA}/other/x": b"x"}))


def changed(path: str, *, to: tuple[str, ...] | None) -> list[tuple[str, ...]]:
    """The right rows but for one, which is replaced or left out."""
    files = {f"{INFO}/METADATA": METADATA, f"{INFO}/WHEEL": WHEEL, "my_pkg/__init__.py": b"A = 1\n"}
    rows = [row if row[0] != path else to for row in rows_of(files)]
    return [row for row in rows if row is not None]


class TestRecord:
    PATH = "my_pkg/__init__.py"

    @pytest.mark.parametrize(
        ("row", "problem"),
        [
            (None, "not mentioned in RECORD"),
            ((PATH, record_hash(b"B = 1\n"), "6"), "didn't match RECORD"),
            ((PATH, record_hash(b"A = 1\n"), "7"), "didn't match RECORD"),
            ((PATH, "", ""), "is not included in RECORD"),
            ((PATH, record_hash(b"A = 1\n"), ""), "is not included in RECORD"),
            ((PATH, "", "6"), "is not included in RECORD"),
            ((PATH, "sha256", "6"), "is invalid"),
            ((PATH, "nohash=x", "6"), "invalid hash algorithm"),
            ((PATH, "shake_128=x", "6"), "is invalid|didn't match|missing"),
            ((PATH, record_hash(b"A = 1\n"), "six"), "is invalid"),
            ((PATH, record_hash(b"A = 1\n"), "6", ""), "Unable to retrieve `RECORD`"),
            ((PATH,), "Unable to retrieve `RECORD`"),
        ],
    )
    def test_a_member_that_its_record_does_not_vouch_for_is_refused(
        self, row: tuple[str, ...] | None, problem: str
    ) -> None:
        with pytest.raises(ArchiveError, match=f"w: cannot be installed by its RECORD: .*({problem})"):
            installed(wheel(record=changed(self.PATH, to=row)))

    @pytest.mark.parametrize("raw", [b"", b"\xff", b'"', b"a" * 140_000 + b",,\n", b"\0,,\n"])
    def test_what_is_no_record_is_refused(self, raw: bytes) -> None:
        with pytest.raises(ArchiveError, match="w: cannot be installed by its RECORD"):
            installed(wheel(record=raw))


class TestMetadata:
    @pytest.mark.parametrize(
        "files",
        [
            {f"{INFO}/METADATA": b"Metadata-Version: 2.1\nName: other\nVersion: 1.0\n"},
            {f"{INFO}/METADATA": b"Metadata-Version: 2.1\nName: my-pkg\nVersion: 1.1\n"},
        ],
    )
    def test_metadata_of_another_distribution_are_refused(self, files: Files) -> None:
        with pytest.raises(ArchiveError, match=r"is of another distribution .*; expected my-pkg 1\.0"):
            installed(wheel(files))

    @pytest.mark.parametrize(
        "metadata", [b"Name: My.Pkg\nVersion: v1.0\n", b"Name: MY_PKG\nVersion: 1.0\n\nName: other\n"]
    )
    def test_names_and_versions_are_compared_in_their_normal_form(self, metadata: bytes) -> None:
        assert installed(wheel({f"{INFO}/METADATA": metadata}))

    @pytest.mark.parametrize(
        "files",
        [
            {f"{INFO}/METADATA": b""},
            {f"{INFO}/METADATA": b"Name: my-pkg\n"},
            {f"{INFO}/METADATA": b"Name: my-pkg\nVersion: not a version\n"},
            {f"{INFO}/METADATA": b"\xff\xfe"},
            {f"{INFO}/WHEEL": b""},
            {f"{INFO}/WHEEL": b"Wheel-Version: 2.0\n"},
            {f"{INFO}/WHEEL": b"\xff"},
            {f"{INFO}/entry_points.txt": b"no section"},
            {f"{INFO}/entry_points.txt": b"[console_scripts]\nx = no function\n"},
            {f"{INFO}/entry_points.txt": b"[console_scripts]\nx = %(nothing)s:f\n"},
            {f"{INFO}/entry_points.txt": b"[console_scripts]\nx = a\n"},
            {f"{INFO}/entry_points.txt": b"[console_scripts]\nx = a:b\nx = a:c\n"},
            {f"{INFO}/entry_points.txt": b"\xff"},
            {"other-1.0.dist-info/METADATA": b""},
        ],
    )
    def test_broken_metadata_are_one_typed_error(self, files: Files) -> None:
        with pytest.raises(ArchiveError, match="w: "):
            installed(wheel(files))

    @pytest.mark.parametrize(
        "filename", ["my_pkg-1.0.whl", "other-1.0-py3-none-any.whl", "my_pkg-2.0-py3-none-any.whl", "x"]
    )
    def test_a_file_name_of_another_wheel_is_one_typed_error(self, filename: str) -> None:
        with pytest.raises((ArchiveError, StepError)):
            installed(wheel(), filename=filename)

    def test_what_is_no_archive_is_refused(self) -> None:
        for data in (b"", b"PK", wheel()[:-30], b"x" * 100):
            with pytest.raises(ArchiveError):
                installed(data)

    def test_a_wheel_that_is_too_large_to_be_held_in_memory_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with zipfile.ZipFile(io.BytesIO(wheel())) as archive:
            total = sum(info.file_size for info in archive.infolist())
        monkeypatch.setattr("imgbuild.content.wheel.INSTALL_BYTES", total)
        assert installed(wheel())
        monkeypatch.setattr("imgbuild.content.wheel.INSTALL_BYTES", total - 1)
        with pytest.raises(ArchiveError, match=f"is too large to install; expected at most {total - 1} bytes"):
            installed(wheel())


class TestTags:
    @pytest.mark.parametrize(
        "tags",
        [
            "py3-none-any",
            "py2.py3-none-any",
            "py312-none-any",
            "cp312-cp312-manylinux_2_17_aarch64.manylinux2014_aarch64",
            "cp312-cp312-manylinux_2_28_aarch64",
            "cp38-abi3-manylinux_2_34_aarch64",
            "cp312-none-linux_aarch64",
            "py3-none-manylinux_2_18_aarch64",
        ],
    )
    def test_a_wheel_for_the_image_is_accepted(self, tags: str) -> None:
        check_tags(f"a-1.0-{tags}.whl", python="3.12", machine="aarch64", subject="w")

    @pytest.mark.parametrize(
        "tags",
        [
            "py3-none-manylinux_2_17_x86_64",
            "cp311-cp311-manylinux_2_17_aarch64",
            "cp313-abi3-manylinux_2_17_aarch64",
            "py2-none-any",
            "py313-none-any",
            "pp310-pypy310_pp73-manylinux_2_17_aarch64",
            "cp312-cp312t-manylinux_2_17_aarch64",
            "cp312-cp312-musllinux_1_2_aarch64",
            "cp312-cp312-macosx_11_0_arm64",
            "py3-none-win_arm64",
        ],
    )
    def test_a_wheel_for_something_else_is_refused_with_its_tags(self, tags: str) -> None:
        with pytest.raises(StepError, match="is not for the image's Python and machine") as caught:
            check_tags(f"a-1.0-{tags}.whl", python="3.12", machine="aarch64", subject="w", where="step x/1")
        assert tags in str(caught.value.actual)
        assert caught.value.where == "step x/1"

    @pytest.mark.parametrize(
        "filename", ["", "a.whl", "a-1.0-py3-none.whl", "a-x-py3-none-any.whl", "a-1.0-py3-none-any.zip"]
    )
    def test_what_is_no_wheel_file_name_is_refused(self, filename: str) -> None:
        with pytest.raises(StepError, match="has no valid wheel file name"):
            check_tags(filename, python="3.12", machine="aarch64", subject="w")
        with pytest.raises(StepError, match="has no valid wheel file name"):
            distribution_of(filename)


def test_name_and_version_of_a_file_name_are_normalised() -> None:
    assert distribution_of("My_Pkg.x-1.0.0-1-py3-none-any.whl") == ("my-pkg-x", "1.0.0")


def test_a_member_has_a_digest_and_a_size_and_an_absent_one_is_refused() -> None:
    data = wheel({"lib.so": b"bytes"})
    assert member_digest(io.BytesIO(data), "lib.so", subject="w") == (Digest.of(b"bytes"), 5)
    with pytest.raises(ArchiveError, match=r"has no such member; expected none\.so"):
        member_digest(io.BytesIO(data), "none.so", subject="w")

"""Real pip, against a folder of wheels made here: no network. A fake pip only for what pip cannot be made to do."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
import zipfile
from typing import TYPE_CHECKING, Any

import pytest
from imgbuild.adapters import pipprocess
from imgbuild.adapters.fetch import WheelPin, download_wheel, resolve_wheel
from imgbuild.digest import Digest
from imgbuild.errors import (
    DigestMismatchError,
    DocumentError,
    IntegrityError,
    OfflineMissError,
    StorageError,
    ToolError,
)

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType
    from typing import Self

PLATFORM = "manylinux_2_18_aarch64"
FILENAME = f"demo_lib-1.2.0-py3-none-manylinux2014_aarch64.{PLATFORM}.whl"


class Recorder:
    """A Progress that keeps what it was told."""

    def __init__(self) -> None:
        self.totals: list[int | None] = []
        self.counts: list[int] = []

    def part(self, label: str, total: int | None = None) -> Recorder:  # noqa: ARG002
        return self

    def task(self, label: str, total: int | None = None, *, unit: str = "bytes") -> Recorder:  # noqa: ARG002
        self.totals.append(total)
        return self

    def note(self, text: str) -> None:
        raise AssertionError(text)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        return None

    def advance(self, count: int, /) -> None:
        self.counts.append(count)


def make_wheel(folder: Path, filename: str, *, requires_python: str = ">=3.99", payload: bytes = b"x") -> Path:
    name, version = filename.split("-")[:2]
    info = f"{name}-{version}.dist-info"
    tags = "".join(f"Tag: py3-none-{tag}\n" for tag in filename.removesuffix(".whl").split("-")[-1].split("."))
    files = {
        f"{name}/data.bin": payload,
        f"{info}/METADATA": (
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nRequires-Python: {requires_python}\n"
            "Requires-Dist: does-not-exist-anywhere\n"
        ).encode(),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: false\n{tags}".encode(),
        f"{info}/RECORD": b"",
    }
    path = folder / filename
    with zipfile.ZipFile(path, "w") as archive:
        for member, data in files.items():
            archive.writestr(member, data)
    return path


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "index"
    folder.mkdir()
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def cellar(tmp_path: Path) -> Path:
    folder = tmp_path / "cellar"
    folder.mkdir()
    return folder


def pin_of(path: Path, **changes: Any) -> WheelPin:
    data = path.read_bytes()
    fields: dict[str, Any] = {
        "name": "demo-lib",
        "version": "1.2.0",
        "filename": path.name,
        "digest": Digest.of(data),
        "size": len(data),
    }
    return WheelPin(**(fields | changes))


def test_a_pinned_wheel_arrives_whole_with_its_progress_and_nothing_else(index: Path, cellar: Path) -> None:
    wheel = make_wheel(index, FILENAME, payload=os.urandom(300_000))
    seen = Recorder()
    pin = pin_of(wheel)
    assert download_wheel(pin, cellar / "blob", offline=False, progress=seen) == pin.size
    assert (cellar / "blob").read_bytes() == wheel.read_bytes()
    assert [path.name for path in cellar.iterdir()] == ["blob"]
    assert (seen.totals, sum(seen.counts)) == ([pin.size], pin.size)


def test_a_wheel_of_another_interpreter_is_found_by_its_own_tags(index: Path, cellar: Path) -> None:
    for tags in ("cp310-abi3", "cp312-cp312", "py3-none"):
        wheel = make_wheel(index, f"demo_lib-1.2.0-{tags}-{PLATFORM}.whl", payload=tags.encode())
        assert download_wheel(pin_of(wheel), cellar / tags, offline=False) == wheel.stat().st_size


def test_configured_constraints_and_options_do_not_change_what_is_fetched(
    index: Path, cellar: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    wheel = make_wheel(index, FILENAME)
    constraints = tmp_path / "constraints.txt"
    constraints.write_text("demo-lib<1\n")
    config = tmp_path / "pip.conf"
    config.write_text(f"[global]\nconstraint = {constraints}\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(config))
    monkeypatch.setenv("PIP_NO_BINARY", ":all:")
    monkeypatch.setenv("PIP_PLATFORM", "win_amd64")
    download_wheel(pin_of(wheel), cellar / "blob", offline=False)
    assert (cellar / "blob").exists()


def test_other_bytes_under_the_name_are_a_mismatch_and_leave_the_old_file(index: Path, cellar: Path) -> None:
    pin = pin_of(make_wheel(index, FILENAME))
    changed = make_wheel(index, FILENAME, payload=b"y")
    (cellar / "blob").write_bytes(b"old")
    with pytest.raises(DigestMismatchError) as caught:
        download_wheel(pin, cellar / "blob", offline=False)
    assert caught.value.expected == str(pin.digest)
    assert caught.value.actual == str(Digest.of(changed.read_bytes()))
    assert caught.value.where == "the index that pip asked"
    assert caught.value.hint is not None
    assert caught.value.hint.startswith("was the lock edited?")
    assert (cellar / "blob").read_bytes() == b"old"
    assert [path.name for path in cellar.iterdir()] == ["blob"]


def test_a_wrong_size_is_a_mismatch_even_if_the_digest_fits(index: Path, cellar: Path) -> None:
    wheel = make_wheel(index, FILENAME)
    with pytest.raises(DigestMismatchError, match="another size"):
        download_wheel(pin_of(wheel, size=wheel.stat().st_size + 1), cellar / "blob", offline=False)
    assert list(cellar.iterdir()) == []


def test_a_wheel_far_over_its_size_is_stopped(index: Path, cellar: Path) -> None:
    wheel = make_wheel(index, FILENAME, payload=bytes(300_000))
    with pytest.raises(IntegrityError, match="larger than it may be"):
        download_wheel(pin_of(wheel, size=1000), cellar / "blob", offline=False)
    assert list(cellar.iterdir()) == []


def test_offline_refuses_without_starting_pip(cellar: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "Popen", None)
    pin = WheelPin(name="demo-lib", version="1.2.0", filename=FILENAME, digest=Digest("sha256", "0" * 64), size=None)
    with pytest.raises(OfflineMissError):
        download_wheel(pin, cellar / "blob", offline=True)
    with pytest.raises(OfflineMissError):
        resolve_wheel("demo-lib", "1.2.0", platforms=("any",), offline=True)


def test_resolving_gives_a_pin_that_downloads(index: Path, cellar: Path) -> None:
    wheel = make_wheel(index, FILENAME)
    make_wheel(index, "demo_lib-1.2.0-py3-none-any.whl")
    make_wheel(index, "demo_lib-1.3.0-py3-none-any.whl")
    pin = resolve_wheel("Demo.Lib", "1.2", platforms=(PLATFORM,), offline=False)
    assert (pin.filename, pin.digest) == (FILENAME, Digest.of(wheel.read_bytes()))
    assert download_wheel(pin, cellar / "blob", offline=False) == wheel.stat().st_size


def test_resolving_with_a_folder_keeps_the_file_and_measures_it(index: Path, cellar: Path) -> None:
    wheel = make_wheel(index, FILENAME)
    pin = resolve_wheel("demo-lib", "1.2.0", platforms=(PLATFORM,), offline=False, keep=cellar)
    assert pin == pin_of(wheel)
    assert [path.name for path in cellar.iterdir()] == [FILENAME]


def test_requires_python_counts_when_a_version_is_given(index: Path) -> None:
    make_wheel(index, FILENAME, requires_python=">=3.12")
    pin = resolve_wheel("demo-lib", "1.2.0", platforms=(PLATFORM,), python_version="3.12", offline=False)
    assert pin.filename == FILENAME
    with pytest.raises(ToolError, match=r"3\.12"):
        resolve_wheel("demo-lib", "1.2.0", platforms=(PLATFORM,), python_version="3.11", offline=False)


def test_a_wheel_that_is_nowhere_is_a_tool_error_with_pips_words(index: Path) -> None:
    with pytest.raises(ToolError, match="No matching distribution") as caught:
        resolve_wheel("demo-lib", "9", platforms=("any",), offline=False)
    assert "\n" not in str(caught.value)


def test_passwords_in_urls_do_not_reach_the_message(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("PIP_INDEX_URL", "http://user:can@ry@127.0.0.1:9/simple?token=canary")
    with pytest.raises(ToolError) as caught:
        resolve_wheel("demo-lib", "9", platforms=("any",), offline=False)
    assert "ry@" not in str(caught.value)
    assert "canary" not in str(caught.value)


def test_urls_lose_their_secrets() -> None:
    text = "from https://user:p@ss@host.example/simple?X-Sig=abc#sha256=1 and https://tok@b.example/x"
    assert pipprocess.redacted(text) == "from https://***@host.example/simple?... and https://***@b.example/x"


def test_the_child_sees_no_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ACTIONS_ID_TOKEN_REQUEST_TOKEN", "GITHUB_TOKEN", "PIP_TARGET", "PIP_PRE", "PYTHONSTARTUP"):
        monkeypatch.setenv(name, "canary")
    monkeypatch.setenv("PIP_INDEX_URL", "kept")
    seen = pipprocess.environment(tmp_path)
    assert "canary" not in seen.values()
    assert seen["PIP_INDEX_URL"] == "kept"


@pytest.mark.parametrize("name", ["-e", "--pre", "a b", "a\nb", "", "a;b", "a[b]", "a@b", "ä", "a==1", "x" * 200])
def test_what_is_no_project_name_is_refused(name: str) -> None:
    with pytest.raises(DocumentError):
        resolve_wheel(name, "1", platforms=("any",), offline=False)


@pytest.mark.parametrize("version", ["", "*", "1.*", ">=1", "1 --pre", "1\n-e .", " 1", "1; x", "latest", "1" * 200])
def test_what_is_no_version_is_refused(version: str) -> None:
    with pytest.raises(DocumentError):
        resolve_wheel("demo-lib", version, platforms=("any",), offline=False)


@pytest.mark.parametrize("platforms", [(), ("",), ("any --pre",), ("any\n",), ("-x",), ("ANY",)])
def test_what_is_no_platform_tag_is_refused(platforms: tuple[str, ...]) -> None:
    with pytest.raises(DocumentError):
        resolve_wheel("demo-lib", "1", platforms=platforms, offline=False)


@pytest.mark.parametrize(
    "changes",
    [
        {"filename": "other-1.2.0-py3-none-any.whl"},
        {"filename": "demo_lib-1.2.1-py3-none-any.whl"},
        {"filename": "demo_lib-1.2.0.tar.gz"},
        {"filename": "../demo_lib-1.2.0-py3-none-any.whl"},
        {"filename": "demo_lib-1.2.0-py3-none-any\n.whl"},
        {"filename": ""},
        {"digest": Digest("sha512", "0" * 128)},
        {"size": 0},
        {"size": -1},
        {"size": 2**62},
    ],
)
def test_a_pin_that_contradicts_itself_is_refused(changes: dict[str, Any]) -> None:
    fields: dict[str, Any] = {
        "name": "demo-lib",
        "version": "1.2.0",
        "filename": FILENAME,
        "digest": Digest("sha256", "0" * 64),
        "size": 1,
    }
    with pytest.raises(DocumentError):
        WheelPin(**(fields | changes))


def fake_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    program = tmp_path / "python"
    program.write_text(f"#!{sys.executable}\nimport os, sys, time\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))


def test_a_pip_that_stands_still_is_stopped(tmp_path: Path, cellar: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_pip(tmp_path, monkeypatch, "time.sleep(60)")
    monkeypatch.setattr(pipprocess, "STALL_SECONDS", 0.3)
    started = time.monotonic()
    with pytest.raises(ToolError, match="was stopped"):
        resolve_wheel("demo-lib", "1", platforms=("any",), offline=False)
    assert time.monotonic() - started < 10


@pytest.mark.parametrize(
    "report",
    ["", "[]", "{}", '{"install": []}', '{"install": [{"download_info": 1}]}', "[" * 100_000, "\\xff"],
)
def test_a_report_of_another_shape_is_an_integrity_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, report: str
) -> None:
    script = "path = next(a for a in sys.argv if a.startswith('--report=')).removeprefix('--report=')\n"
    fake_pip(tmp_path, monkeypatch, f"{script}open(path, 'w').write({report!r})")
    with pytest.raises(IntegrityError):
        resolve_wheel("demo-lib", "1", platforms=("any",), offline=False)


def test_a_missing_interpreter_is_a_tool_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "none"))
    with pytest.raises(ToolError, match="cannot be started"):
        resolve_wheel("demo-lib", "1", platforms=("any",), offline=False)


def test_a_folder_that_is_not_there_is_a_storage_error(index: Path, tmp_path: Path) -> None:
    pin = pin_of(make_wheel(index, FILENAME))
    with pytest.raises(StorageError):
        download_wheel(pin, tmp_path / "none" / "blob", offline=False)


def test_an_interrupt_ends_pip_and_leaves_no_file(tmp_path: Path, cellar: Path) -> None:
    fake = tmp_path / "python"
    fake.write_text(
        f"#!{sys.executable}\nimport os, time\n"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\n"
        "open('half.whl', 'wb').write(bytes(1000))\ntime.sleep(60)\n"
    )
    fake.chmod(0o755)
    code = (
        "import sys, pathlib\nfrom imgbuild.adapters.fetch import *\nfrom imgbuild.digest import Digest\n"
        f"sys.executable = {str(fake)!r}\n"
        f"pin = WheelPin(name='demo-lib', version='1.2.0', filename={FILENAME!r},"
        " digest=Digest('sha256', '0' * 64), size=9000)\n"
        f"download_wheel(pin, pathlib.Path({str(cellar / 'blob')!r}), offline=False)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE)
    deadline = time.monotonic() + 10
    while not ((tmp_path / "pid").exists() and (tmp_path / "pid").read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    parent.send_signal(signal.SIGINT)
    _, text = parent.communicate(timeout=20)
    assert b"KeyboardInterrupt" in text
    assert list(cellar.iterdir()) == []
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_the_digest_of_the_report_is_that_of_the_file(index: Path) -> None:
    wheel = make_wheel(index, FILENAME)
    pin = resolve_wheel("demo-lib", "1.2.0", platforms=(PLATFORM,), offline=False)
    assert pin.digest.encoded == hashlib.sha256(wheel.read_bytes()).hexdigest()

"""What the shell offers for the words of a command line."""

from __future__ import annotations

import os
import pty
import select
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest
from click.shell_completion import ShellComplete
from imgbuild.cli import group
from imgbuild.cli.options import complete_output, complete_platform

from tests.support.single import take_from

if TYPE_CHECKING:
    from imgbuild.cli.options import Complete

    from tests.support.tiny import Tiny


def offered(*words: str) -> list[str]:
    *before, last = words
    shell = ShellComplete(group, {}, "imgbuild", "_IMGBUILD_COMPLETE")
    return [item.value for item in shell.get_completions(list(before), last)]


@pytest.fixture(autouse=True)
def _inside(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tiny.root)


def test_verbs_and_images_are_offered() -> None:
    assert offered("pl") == ["plan"]
    assert offered("plan", "t") == ["tiny"]
    assert offered("check", "t") == ["tiny"]


def test_tags_of_the_store_are_offered(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    assert offered("inventory", "") == ["base"]
    assert offered("verify", "tiny", "--tag", "b") == ["base"]
    monkeypatch.chdir("/")
    assert offered("inventory", "") == []
    assert offered("inventory", "--project", str(tiny.root), "") == ["base"]
    monkeypatch.setenv("IMGBUILD_STORE", str(tiny.root / "nowhere"))
    assert offered("inventory", "--project", str(tiny.root), "") == []


def typed(tiny: Tiny, line: str) -> str:
    """What a real bash makes of a line and two tabs: all that it writes from there on."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    pid, terminal = pty.fork()
    if not pid:
        os.chdir(tiny.root)
        os.execve("/bin/bash", ["bash", "--norc", "--noprofile", "-i"], {"PATH": path, "PS1": "ready> "})  # noqa: S606
    try:
        until(terminal, b"ready> ")
        os.write(terminal, b'eval "$(_IMGBUILD_COMPLETE=bash_source imgbuild)"\n')
        until(terminal, b"\nready> ")
        os.write(terminal, line.encode() + b"\t\t")
        said = until(terminal, b"<")
        os.write(terminal, b"\x15\n")
        return said.decode().replace("\x07", "")
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(terminal)


def until(terminal: int, mark: bytes) -> bytes:
    """What is written up to a mark, or until nothing comes for two seconds."""
    said = b""
    while mark not in said and select.select([terminal], [], [], 2)[0]:
        said += os.read(terminal, 65_536)
    return said


@pytest.mark.parametrize(
    ("line", "whole"),
    [
        ("imgbuild lock tiny --update helpe", "imgbuild lock tiny --update helper "),
        ("imgbuild lock tiny --update pat", "imgbuild lock tiny --update patch:"),
        ("imgbuild build tiny --output oci-", "imgbuild build tiny --output oci-archive:"),
        ("imgbuild build tiny --output=oci-", "imgbuild build tiny --output=oci-archive:"),
    ],
)
def test_bash_completes_words_up_to_a_colon_or_an_equals_sign(tiny: Tiny, line: str, whole: str) -> None:
    assert whole in typed(tiny, line)


def test_bash_offers_what_may_follow_a_colon(tiny: Tiny) -> None:
    said = typed(tiny, "imgbuild lock tiny --update patch:")
    assert "\n1  2" in said.replace("\r", "")


PINS = ["adapter", "base", "helper", "nccl", "nccl-wheel", "patch:1", "patch:2"]


def test_the_pins_of_the_image_are_offered(tiny: Tiny) -> None:
    assert offered("lock", "tiny", "--update", "") == PINS
    assert offered("lock", "tiny", "--update", "base", "--update", "nccl") == ["nccl", "nccl-wheel"]
    assert offered("lock", "tiny", "--update", "pa") == ["patch:1", "patch:2"]
    assert offered("lock", "--dry-run", "--project", str(tiny.root), "tiny", "--update", "h") == ["helper"]


def test_before_an_image_is_named_the_pins_of_all_are_offered() -> None:
    assert offered("lock", "--update", "") == PINS


def test_of_an_image_that_is_not_there_or_is_broken_no_pins_are_offered(tiny: Tiny) -> None:
    assert offered("lock", "absent", "--update", "") == []
    (tiny.root / "locks" / "tiny.toml").write_text("broken")
    assert offered("lock", "tiny", "--update", "") == []
    assert offered("lock", "--update", "") == []


def completed(complete: Complete, text: str) -> list[str]:
    """What a completion offers for any option of any command."""
    context = click.Context(group, resilient_parsing=True)
    return complete(context, click.Option(["--any"]), text)


def test_the_kinds_of_output_are_offered() -> None:
    assert completed(complete_output, "") == ["docker-archive:", "oci-archive:", "oci:"]
    assert completed(complete_output, "oci") == ["oci-archive:", "oci:"]
    assert completed(complete_output, "oci:folder") == []


def test_the_sources_that_can_be_given_are_offered(tiny: Tiny) -> None:
    assert offered("build", "tiny", "--source", "") == []
    take_from(tiny, kind="file")
    assert offered("build", "tiny", "--source", "") == ["nccl="]
    assert offered("lock", "tiny", "--source", "x") == []
    assert offered("lock", "--source", "") == []


def test_platforms_are_offered() -> None:
    assert completed(complete_platform, "linux/ar") == ["linux/arm64"]
    assert completed(complete_platform, "") == ["linux/amd64", "linux/arm64"]
    assert completed(complete_platform, "windows") == []

"""What the shell offers for the words of a command line."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from click.shell_completion import ShellComplete
from imgbuild.cli import group
from imgbuild.cli.options import complete_pin

if TYPE_CHECKING:
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


def test_the_pins_of_the_image_are_offered() -> None:
    context = group.get_command(None, "lock").make_context("lock", ["tiny"], resilient_parsing=True)  # type: ignore[arg-type, union-attr]
    parameter = context.command.params[0]
    assert complete_pin(context, parameter, "") == ["adapter", "base", "helper", "nccl", "nccl-wheel"]
    assert complete_pin(context, parameter, "nccl") == ["nccl", "nccl-wheel"]

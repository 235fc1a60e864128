"""Programs from outside that tests take as judges: skopeo and umoci."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path


def tool(name: str) -> str:
    """The path of a program. Without it the test is skipped, but fails where `CI` is set: there it must be had."""
    found = shutil.which(name)
    if found is None and os.environ.get("CI"):
        pytest.fail(f"{name} is not installed, and CI must have it")
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def run(*command: str) -> subprocess.CompletedProcess[str]:
    """Run a program to its end; its answer is the caller's to judge. The umask is the usual one, 022."""
    return subprocess.run(command, capture_output=True, text=True, check=False, umask=0o022, timeout=120)


def inspect(image: str) -> Any:
    """What `skopeo inspect` says of an image."""
    answer = run(tool("skopeo"), "inspect", image)
    assert answer.returncode == 0, answer.stderr
    return json.loads(answer.stdout)


def unpack(layout: Path, tag: str, target: Path) -> None:
    """Let umoci unpack an image of an OCI layout; every DiffID is checked by it. Needs root, as owners are set."""
    answer = run(tool("umoci"), "raw", "unpack", "--image", f"{layout}:{tag}", str(target))
    assert answer.returncode == 0, answer.stderr


def need_root() -> None:
    """Skip where the owners, devices and attributes of an image cannot be set (a failure where `CI` is set)."""
    if os.geteuid() == 0:
        return
    if os.environ.get("CI"):
        pytest.fail("this test must run as root in CI")
    pytest.skip("needs root")

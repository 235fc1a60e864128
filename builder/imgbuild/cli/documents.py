"""The former name of `imgbuild.cli.results`, until `cli/lock.py` uses the new one."""

from __future__ import annotations

from imgbuild.cli.results import TOOL, ChangeBody, LockBody, LockDocument, moved_bodies

__all__ = ["TOOL", "ChangeBody", "LockBody", "LockDocument", "moved_bodies"]

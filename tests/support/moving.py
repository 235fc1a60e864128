"""What tests of moved pins need: a definition with comments, real commits, and the program's answer."""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING, Any

from imgbuild.cli import run
from imgbuild.cli.schemas import shipped
from jsonschema import Draft202012Validator

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from tests.support.tiny import Tiny


class Mover:
    """Runs `imgbuild lock` on a tiny project."""

    def __init__(self, tiny: Tiny, capture: pytest.CaptureFixture[str]) -> None:
        self.tiny = tiny
        self._capture = capture

    @property
    def definition(self) -> Path:
        return self.tiny.root / "locks/tiny.toml"

    @property
    def lock(self) -> Path:
        return self.tiny.root / "locks/tiny.lock.json"

    def both(self) -> tuple[bytes, bytes]:
        """The bytes of the definition and of its lock."""
        return self.definition.read_bytes(), self.lock.read_bytes()

    def run(self, *words: str, image: str = "tiny") -> tuple[int, str, str]:
        """Exit code, stdout and stderr."""
        self._capture.readouterr()
        where = ["--project", str(self.tiny.root), "--cache", str(self.tiny.cache_path)]
        code = run(["lock", image, *where, *words])
        out, err = self._capture.readouterr()
        return code, out, err

    def result(self, *words: str, image: str = "tiny") -> dict[str, Any]:
        """The result of a run that does what it was asked for."""
        code, out, err = self.run(*words, "--json", image=image)
        assert code == 0, err
        return _valid("lock-result", out, "result")

    def refused(self, *words: str, image: str = "tiny") -> dict[str, Any]:
        """The error of a run that refuses, after which both files are what they were."""
        before = self.both()
        code, out, err = self.run(*words, "--json", image=image)
        assert code != 0, out
        assert self.both() == before
        assert err.startswith("error["), err
        return _valid("error", out, "error")

    def pin(self, name: str) -> dict[str, Any]:
        """A source's pin."""
        pins = json.loads(self.lock.read_bytes())["pins"]["sources"]
        return next(row for row in pins if row["name"] == name)

    def base(self) -> dict[str, Any]:
        """The base's pin."""
        found: dict[str, Any] = json.loads(self.lock.read_bytes())["pins"]["base"]
        return found

    def commented(self) -> None:
        """Write the definition anew with a comment at each line, both kinds of line ends, and none at the end."""
        rows = self.definition.read_text().splitlines()
        ends = ["\n", "\r\n"]
        text = "".join(f"# {number}: «kept»{ends[number % 2]}{row}   # after\n\n" for number, row in enumerate(rows))
        self.definition.write_bytes(f"{text}\t# the end".encode())


def _valid(schema: str, out: str, field: str) -> dict[str, Any]:
    document = json.loads(out)
    Draft202012Validator(json.loads(shipped(schema))).validate(document)
    found: dict[str, Any] = document[field]
    return found


def rest(raw: bytes, *values: str) -> bytes:
    """A text without some values, to compare all else byte for byte."""
    for value in values:
        assert raw.count(value.encode()) == 1, value
        raw = raw.replace(value.encode(), b"")
    return raw


def git(work: Path, *arguments: str, date: int = 1_700_000_100) -> str:
    """Run git in a work tree of the test's."""
    who = {"NAME": "t", "EMAIL": "t@t", "DATE": f"{date} +0000"}
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(work),
        "GIT_CONFIG_NOSYSTEM": "1",
        **{f"GIT_{one}_{key}": text for one in ("AUTHOR", "COMMITTER") for key, text in who.items()},
    }
    done = subprocess.run(["git", *arguments], cwd=work, env=env, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def commit(tiny: Tiny, message: str, files: dict[str, str | None], *, date: int = 1_700_000_100) -> str:
    """Commit files (None: removed) to the adapter, and write its bundle anew; returns the commit."""
    work = tiny.root / "adapter-work"
    for path, text in files.items():
        if text is None:
            (work / path).unlink()
        else:
            (work / path).parent.mkdir(parents=True, exist_ok=True)
            (work / path).write_text(text)
    git(work, "add", "-A", ":!out.bundle", date=date)
    git(work, "commit", "-qm", message, date=date)
    bundle(tiny)
    return git(work, "rev-parse", "HEAD")


def bundle(tiny: Tiny) -> None:
    """Write the adapter's bundle, with all its branches and tags."""
    git(tiny.root / "adapter-work", "bundle", "create", "-q", str(tiny.root / "adapter.bundle"), "--all")

"""What our own texts in `layers/` do, run as they are put into images."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.standin.images.bases import _AUTH, _ENCODING

LAYERS = Path(__file__).parents[2] / "layers"
ENTRYPOINT = LAYERS / "dsv41-keys/files/entrypoint.py"


def edited(text: str, layer: str) -> str:
    """A text after all edits of a layer that fit it."""
    for step in tomllib.loads((LAYERS / layer / "layer.toml").read_text())["step"]:
        if step["kind"] == "edit" and step["find"] in text:
            text = text.replace(step["find"], step["replace"])
    return text


@pytest.fixture(scope="module")
def decide() -> Any:
    space: dict[str, Any] = {}
    exec(edited(_AUTH, "dsv41-keys"), space)  # noqa: S102 - our own text
    return space["decide"]


@pytest.mark.parametrize(
    ("shown", "keys", "admin", "expected"),
    [
        ("a", "a", None, True),
        ("b", "a,b", None, True),
        ("a,b", "a,b", None, True),
        ("c", "a,b", None, False),
        ("A", "a,b", None, False),
        ("a ", "a,b", None, False),
        ("", "a,b", None, False),
        ("", "a,", None, False),
        ("", ",", None, False),
        ("", "a,,b", None, False),
        ("\u00e9", "a,b", None, False),
    ],
)
def test_each_key_of_the_list_is_accepted_and_no_other(
    decide: Any, shown: str, keys: str, admin: str | None, expected: bool
) -> None:
    assert decide(f"Bearer {shown}", keys, admin, keys) is expected


def test_the_key_of_an_administrator_is_one_text(decide: Any) -> None:
    assert decide("Bearer a,b", "k", "a,b", "a,b") is True
    assert decide("Bearer a", "k", "a,b", "a,b") is False
    assert decide("Bearer a", "a,b", "a,b", "a,b") is False


def test_the_placeholder_of_an_image_in_a_text_is_no_error_any_more() -> None:
    space: dict[str, Any] = {}
    exec(edited(_ENCODING, "dsv41-adapter"), space)  # noqa: S102 - our own text
    block = {"type": "text", "text": "see <image> there"}
    assert space["process"]([block]) == [{"type": "text", "text": "see [image] there"}]
    assert block["text"] == "see <image> there"
    message = {"content": "a <image>", "reasoning_content": "<image> b"}
    space["validate"](message)
    assert message == {"content": "a [image]", "reasoning_content": "[image] b"}


def started(tmp_path: Path, file: str | None, **more: str) -> subprocess.CompletedProcess[str]:
    """The entrypoint, with a server that prints its key."""
    server = tmp_path / "boot.py"
    server.write_text("import os, sys\nprint(os.environ.get('API_KEY'), *sys.argv[1:])\n")
    program = tmp_path / "entrypoint.py"
    program.write_text(ENTRYPOINT.read_text().replace("/opt/dsv41/boot.py", str(server)))
    env = {"PATH": os.environ["PATH"], **more} | ({} if file is None else {"API_KEY_FILE": file})
    command = [sys.executable, "-S", str(program), "run"]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


def test_keys_reach_the_server_by_its_environment_only(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("one\ntwo\r\nthree")
    done = started(tmp_path, str(tmp_path / "keys"))
    assert (done.returncode, done.stdout) == (0, "3 keys\none,two,three run\n")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "has no key"),
        (b"one\n\ntwo\n", "line 2 is no key"),
        (b"one\none\n", "line 2 is a key that stands there before"),
        (b"a,b\n", "line 1 is no key"),
        (b"a b\n", "line 1 is no key"),
        (b"abc\x1cdef\n", "line 1 is no key"),
        ("\u00e9\n".encode(), "line 1 is no key"),
        (None, "cannot be read: No such file"),
    ],
)
def test_a_file_of_keys_that_makes_no_sense_ends_it_with_file_and_line_and_without_the_key(
    tmp_path: Path, content: bytes | None, says: str
) -> None:
    if content is not None:
        (tmp_path / "keys").write_bytes(content)
    done = started(tmp_path, str(tmp_path / "keys"))
    assert (done.returncode, done.stdout) == (1, "")
    assert f"API_KEY_FILE {tmp_path}/keys: {says}" in done.stderr
    assert "Traceback" not in done.stderr
    assert not any(word in done.stderr for word in ("abc", "def", "a,b"))


def test_without_a_file_of_keys_nothing_is_served_unless_one_says_so(tmp_path: Path) -> None:
    done = started(tmp_path, None)
    assert (done.returncode, done.stdout) == (1, "")
    assert "API_KEY_FILE is not set" in done.stderr
    done = started(tmp_path, "none")
    assert (done.returncode, done.stdout) == (0, "no keys: everybody is served\nNone run\n")

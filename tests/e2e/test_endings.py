"""How the program ends when nobody reads it, its output has no room, or a signal asks it to end."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.support.tiny import Tiny

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /dev/full and /proc")
PROGRAM = [sys.executable, "-m", "imgbuild"]
_PATIENCE = 60
"""seconds after which a test gives up; nothing here takes so long."""


def command(tiny: Tiny, *words: str) -> list[str]:
    cache = [] if words[0] in {"plan", "--help"} else ["--cache", str(tiny.cache_path)]
    return [*PROGRAM, *words, *(() if words[0] == "--help" else ("--project", str(tiny.root))), *cache]


@pytest.mark.parametrize("words", [("plan", "tiny"), ("plan", "tiny", "--json"), ("build", "tiny"), ("--help",)])
def test_a_reader_that_went_away_is_no_answer(tiny: Tiny, words: tuple[str, ...]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(command(tiny, *words), stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize("words", [("plan", "tiny"), ("plan", "tiny", "--json"), ("build", "tiny"), ("--help",)])
def test_an_output_without_room_is_a_storage_error(tiny: Tiny, words: tuple[str, ...]) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(command(tiny, *words), stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 5
    first, hint = done.stderr.splitlines()
    assert first == "error[STORAGE]: standard output: cannot be written: No space left on device"
    assert hint.startswith("  hint: ")


def test_an_output_that_is_not_open_is_missed_only_where_there_is_something_to_print(tiny: Tiny) -> None:
    for more, code in (((), 5), (("-q",), 0)):
        closed = ["sh", "-c", '"$@" >&-', "sh", *command(tiny, "plan", "tiny", *more)]
        assert subprocess.run(closed, stderr=subprocess.DEVNULL, check=False).returncode == code


@pytest.mark.parametrize("redirect", ["2>/dev/full", "2>&-"])
def test_errors_that_cannot_be_printed_keep_their_exit_code(tiny: Tiny, redirect: str) -> None:
    closed = ["sh", "-c", f'"$@" {redirect}', "sh", *command(tiny, "plan", "nope", "--json")]
    done = subprocess.run(closed, stdout=subprocess.PIPE, check=False)
    assert done.returncode == 2
    assert json.loads(done.stdout)["error"]["code"] == "USAGE"


def children(pid: int) -> list[int]:
    """The processes that a process has started and not collected, and theirs."""
    rows = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        rows[int(path.parent.name)] = int(text.rpartition(")")[2].split()[1])
    found, new = [], [pid]
    while new:
        new = [child for child, parent in rows.items() if parent in new]
        found += new
    return found


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_to_end_leaves_no_program_and_no_folder_behind(tiny: Tiny, number: signal.Signals) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        # An index that accepts and says nothing, so that pip waits for it until it is ended.
        server.settimeout(_PATIENCE)
        address = f"http://127.0.0.1:{server.getsockname()[1]}/simple"
        env = {key: value for key, value in os.environ.items() if not key.startswith("PIP_")}
        env |= {"PIP_INDEX_URL": address, "PIP_CONFIG_FILE": os.devnull, "NO_PROXY": "*", "no_proxy": "*"}
        words = command(tiny, "lock", "tiny", "--update", "helper")
        # Under nohup the tests ignore a signal, and what they start would inherit that.
        process = subprocess.Popen(
            words,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),  # noqa: PLW1509 - one thread here
        )
        connection, _ = server.accept()
        with connection:
            started = children(process.pid)
            assert started
            process.send_signal(number)
            out, err = process.communicate(timeout=_PATIENCE)
    assert process.returncode == 128 + number
    assert out == ""
    word = "interrupted" if number is signal.SIGINT else "terminated"
    assert err.strip() == f"{word}; no lock was written, the next run continues"
    limit = time.monotonic() + _PATIENCE
    while any(Path(f"/proc/{pid}").exists() for pid in started):
        assert time.monotonic() < limit
        time.sleep(0.01)
    assert [str(path) for path in tiny.root.rglob(".fetch-*")] == []


def test_a_build_that_waits_for_another_one_says_so_and_goes_on(tiny: Tiny) -> None:
    with open(tiny.store_path / ".imgbuild-build-lock", "w", encoding="ascii") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        process = subprocess.Popen(
            command(tiny, "build", "tiny", "--offline"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert process.stderr is not None
        assert process.stderr.readline() == f"waiting for another imgbuild on {tiny.store_path}\n"
        assert process.poll() is None
    assert process.communicate(timeout=_PATIENCE)[1] == ""
    assert process.returncode == 0

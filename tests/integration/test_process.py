"""Real programs: a shell that ends, hangs, floods or leaves children."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import Any, Literal

import pytest
from imgbuild.adapters import process
from imgbuild.adapters.process import Drain, Ended, run
from imgbuild.errors import IntegrityError, ToolError


def shell(folder: Path, script: str, keep: Literal["first", "last"] = "first", **more: Any) -> Ended:
    environment = {"PATH": os.environ["PATH"], "GIVEN": "yes"}
    return run("sh", ["/bin/sh", "-c", script], folder=folder, environment=environment, keep=keep, **more)


def gone(pid_file: Path) -> bool:
    """Whether the process that wrote its id has ended; init may take a moment to clear it away."""
    pid = int(pid_file.read_text())
    for _ in range(100):
        try:
            state = Path(f"/proc/{pid}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state.rpartition(")")[2].split()[0] == "Z":
            return True
        time.sleep(0.05)
    return False


def test_the_status_and_the_words_of_a_program_are_values(tmp_path: Path) -> None:
    assert shell(tmp_path, "echo lost; echo kept >&2; exit 3") == Ended(status=3, problem=None, errors="kept\n")


def test_a_program_sees_only_the_environment_that_it_is_given_no_input_and_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CANARY", "secret")
    done = shell(tmp_path, "env >&2; pwd >&2; cat >&2")
    assert "GIVEN=yes" in done.errors
    assert "CANARY" not in done.errors
    assert done.errors.splitlines()[-1] == str(tmp_path)


def test_a_program_has_no_terminal_to_ask_on(tmp_path: Path) -> None:
    assert shell(tmp_path, "echo $$ > pid; ps -o sid= -p $$ > sid").status == 0
    assert (tmp_path / "pid").read_text().strip() == (tmp_path / "sid").read_text().strip()


def test_a_program_that_is_not_there_is_a_tool_error(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="cannot be started"):
        run("x", [str(tmp_path / "none")], folder=tmp_path, environment={}, keep="first")


def test_a_program_that_takes_too_long_is_killed_with_its_children(tmp_path: Path) -> None:
    done = shell(tmp_path, "sleep 300 & echo $! > pid; wait", seconds=0.3)
    assert done.problem == "did not end within 0.3 seconds"
    assert gone(tmp_path / "pid")


def test_a_child_that_holds_the_pipe_after_its_parent_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "_DRAIN_SECONDS", 0.2)
    assert shell(tmp_path, "sleep 300 & echo $! > pid").status == 0
    assert gone(tmp_path / "pid")


@pytest.mark.parametrize("raised", [None, IntegrityError("x", "grew too much")])
def test_a_check_may_stop_a_program_by_a_word_or_an_error(tmp_path: Path, raised: IntegrityError | None) -> None:
    def check() -> str | None:
        if (tmp_path / "pid").exists() and raised is not None:
            raise raised
        return "was seen" if (tmp_path / "pid").exists() else None

    script = "echo $$ > pid.new; mv pid.new pid; exec sleep 300"
    if raised is None:
        assert shell(tmp_path, script, check=check).problem == "was seen"
    else:
        with pytest.raises(IntegrityError, match="grew too much"):
            shell(tmp_path, script, check=check)
    assert gone(tmp_path / "pid")


def test_a_check_is_made_once_more_after_the_end(tmp_path: Path) -> None:
    done = shell(tmp_path, "touch mark", check=lambda: "mark" if (tmp_path / "mark").exists() else None)
    assert (done.status, done.problem) == (0, "mark")


def test_of_a_flood_only_one_end_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "ERROR_BYTES", 100)
    script = "i=1000; while [ $i -lt 9000 ]; do echo $i; i=$((i+1)); done >&2"
    first, last = shell(tmp_path, script).errors, shell(tmp_path, script, keep="last").errors
    assert first.splitlines()[:2] == ["1000", "1001"]
    assert len(first) == 100
    assert last.splitlines()[-2:] == ["8998", "8999"]
    assert 90 <= len(last) <= 100


def drained(data: bytes, limit: int, keep: Literal["first", "last"]) -> Drain:
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        drain = Drain(child.stdout, limit, keep=keep)
        assert child.stdin is not None
        child.stdin.write(data)
        child.stdin.close()
        drain.join()
    return drain


@pytest.mark.parametrize("keep", ["first", "last"])
def test_output_of_exactly_the_limit_is_whole(keep: Literal["first", "last"]) -> None:
    drain = drained(b"a\nbcd", 5, keep)
    assert (drain.text(), drain.overflow) == ("a\nbcd", False)


def test_a_line_whose_beginning_was_lost_is_not_shown() -> None:
    drain = drained(b"https://user:canary@host\nend", 20, "last")
    assert (drain.text(), drain.overflow) == ("end", True)

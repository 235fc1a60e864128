"""A registry stalls and the user does not want to wait: the program ends at once, whatever its threads wait for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
from imgbuild.cli import run

from tests.support import fault_registry as fr
from tests.support.remote import BASE, Remote, base_to

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.tiny import Tiny

SECONDS = 2.0
"""within which the program has to end."""
STALL = 15.0


@pytest.fixture
def remote(
    tiny: Tiny, faulty: fr.FaultRegistry, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Remote:
    base_to(tiny, faulty.host, monkeypatch)
    return Remote(tiny=tiny, host=faulty.host, capture=capsys)


def interrupt(remote: Remote, registry: fr.FaultRegistry, folder: Path, *words: str) -> str:
    """Run a command until a fault fires, press Ctrl-C, and see that it ends soon; what it said on stderr."""
    command = [sys.executable, "-m", "imgbuild", words[0], "--project", str(remote.tiny.root)]
    # Under nohup the tests ignore the signal, and what they start would inherit that.
    process = subprocess.Popen(
        [*command, "--cache", str(folder / "cache"), *words[1:]],
        env=dict(os.environ),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - takes no lock
    )
    try:
        limit = time.monotonic() + 30
        while not registry.faults.fired and process.poll() is None and time.monotonic() < limit:
            time.sleep(0.01)
        # What stalls is a moment later than what can be seen of it.
        time.sleep(0.3)
        assert process.poll() is None, process.communicate()[1]
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=60)[1]
    finally:
        process.kill()
        process.communicate()
    assert time.monotonic() - began < SECONDS
    assert process.returncode == 128 + signal.SIGINT, said
    return said


@pytest.mark.parametrize(
    "action",
    [fr.Hang(seconds=STALL), fr.Stall(after_bytes=100, seconds=STALL), fr.Answer(status=503), fr.Busy(retry_after=60)],
)
@pytest.mark.parametrize("words", [("inventory",), ("verify", "--deep")])
def test_while_layers_are_read(
    remote: Remote, faulty: fr.FaultRegistry, tmp_path: Path, action: fr.Action, words: tuple[str, ...]
) -> None:
    # The first blob that is asked for is the config, by the main thread.
    faulty.faults.add(fr.Fault(action=action, kind="blob", method="GET", skip=1, times=None))
    said = interrupt(remote, faulty, tmp_path, *words, remote.reference(BASE, "v1"))
    assert said.splitlines()[-1] == "interrupted"


@pytest.mark.parametrize("kind", ["upload-post", "upload-put"])
@pytest.mark.parametrize("action", [fr.Hang(seconds=STALL), fr.Answer(status=503)])
def test_while_blobs_are_sent(
    remote: Remote, faulty: fr.FaultRegistry, tmp_path: Path, action: fr.Action, kind: fr.Kind
) -> None:
    # The first session is the question whether a push is allowed.
    faulty.faults.add(fr.Fault(action=action, kind=kind, skip=int(kind == "upload-post"), times=None))
    said = interrupt(remote, faulty, tmp_path, "build", "tiny", "--push", f"{remote.host}/llm/tiny")
    assert said.splitlines()[-1].startswith("interrupted; what was not verified has no tag")
    assert not faulty.repository("llm/tiny").tags


def test_what_is_tried_again_is_said_unless_that_is_not_wanted(
    remote: Remote, faulty: fr.FaultRegistry, tmp_path: Path
) -> None:
    for words, expected in (((), 1), (("-q",), 0), (("--json",), 1)):
        faulty.faults.clear()
        faulty.faults.once(fr.Answer(status=503), "manifest")
        shared = ["--project", str(remote.tiny.root), "--cache", str(tmp_path / "cache")]
        remote.capture.readouterr()
        assert run(["inventory", *shared, *words, remote.reference(BASE, "v1")]) == 0
        assert remote.capture.readouterr().err.count("trying again in") == expected

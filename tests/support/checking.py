"""What the tests of `imgbuild check` share: its result by pins, changes to the lock, a base in a registry, servers."""

from __future__ import annotations

import contextlib
import http.server
import threading
from typing import TYPE_CHECKING, Any

from tests.support.refusals import forge, locked, source
from tests.support.remote import BASE, Remote, base_to

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator

    import pytest

    from tests.support.tiny import Tiny

Rows = dict[str, dict[str, Any]]
WHEELS = ("helper", "nccl-wheel", "nccl")
"""The sources of a tiny project that come from wheels."""


def rows(result: dict[str, Any]) -> Rows:
    """The pins of a result by what they are."""
    found = {row["what"]: row for row in result["pins"]}
    assert len(found) == len(result["pins"])
    return found


def base_rows(result: dict[str, Any]) -> Rows:
    """The same, of the base only."""
    return {what: row for what, row in rows(result).items() if row["kind"] == "base"}


def verdicts(result: dict[str, Any], kind: str | None = None) -> set[str]:
    """The verdicts on all pins, or on those of one kind."""
    return {row["verdict"] for row in result["pins"] if kind in {None, row["kind"]}}


def one(remote: Remote, name: str, **changes: Any) -> tuple[int, dict[str, Any]]:
    """Exit code and row of one source after a change of its pin; all others must be alive."""
    value = locked(remote.tiny)
    source(value, name).update(changes)
    forge(remote.tiny, value)
    code, result = remote.run("check", "tiny")
    (row,) = [row for row in result["pins"] if row["name"] == name]
    assert {other["verdict"] for other in result["pins"] if other is not row} == {"alive"}
    return code, row


def forget(tiny: Tiny, *names: str) -> None:
    """Take sources out of the lock that a test does not look at: pip takes a second for each wheel."""
    value = locked(tiny)
    value["pins"]["sources"] = [row for row in value["pins"]["sources"] if row["name"] not in names]
    forge(tiny, value)


def at(remote: Remote, **base: Any) -> Remote:
    """The base of a lock is in the registry itself from here on, under the tag `v1`, and no mirror is known."""
    value = locked(remote.tiny)
    value["pins"]["base"] |= {"reference": f"{remote.host}/{BASE}", "tag_for_humans": "v1", **base}
    forge(remote.tiny, value)
    return remote


def based_at(
    host: str, tiny: Tiny, monkeypatch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[str], *forgotten: str
) -> Remote:
    """A tiny project whose base is in a registry only, which the lock names, without some of its sources."""
    base_to(tiny, host, monkeypatch)
    monkeypatch.delenv("IMGBUILD_REGISTRIES")
    forget(tiny, *forgotten)
    return at(Remote(tiny=tiny, host=host, capture=capture))


def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command asks a registry again at once; how long it waits is tested where patience is."""
    monkeypatch.setattr("imgbuild.cli.check._FIRST_SECONDS", 0.01)


@contextlib.contextmanager
def serving(handler: type[http.server.BaseHTTPRequestHandler], context: ssl.SSLContext | None = None) -> Iterator[int]:
    """A server on loopback, and its port."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as listening:
        if context is not None:
            listening.socket = context.wrap_socket(listening.socket, server_side=True)
        thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield int(listening.server_address[1])
        finally:
            listening.shutdown()
            thread.join()

"""A git server over HTTPS on loopback: the smart protocol by the real `git http-backend`, and statuses on request."""

from __future__ import annotations

import contextlib
import http.server
import os
import subprocess
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.support.checking import serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pytest

    from tests.support.registries import Authority


@dataclass
class GitServer:
    """Where it is, the paths that were asked for, and bytes of repositories that were sent."""

    url: str = ""
    asked: list[str] = field(default_factory=list)
    sent: int = 0


@contextlib.contextmanager
def git_server(root: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch) -> Iterator[GitServer]:
    """A server of all repositories below a folder, which every git that is started from here trusts.

    Below `/NUMBER` each answer has that status: 401 asks for Basic credentials, 302 leads to plain HTTP.
    """
    monkeypatch.setenv("GIT_SSL_CAINFO", str(authority.ca))
    monkeypatch.setenv("NO_PROXY", "localhost,127.0.0.1")
    server = GitServer()
    handler = type("Handler", (_Backend,), {"root": str(root), "server_of_test": server})
    with serving(handler, authority.server_context()) as port:
        server.url = f"https://127.0.0.1:{port}"
        yield server


class _Backend(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    root: str
    server_of_test: GitServer

    def do_GET(self) -> None:
        self.server_of_test.asked.append(self.path)
        path, _, query = self.path.partition("?")
        status = path.split("/")[1]
        if status.isdigit():
            self._refuse(int(status))
            return
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        done = subprocess.run(
            ["git", "http-backend"],
            env=self._environment(path, query),
            input=body,
            check=False,
            stdout=subprocess.PIPE,
            timeout=60,
        )
        head, _, content = done.stdout.partition(b"\r\n\r\n")
        fields = dict(line.split(": ", 1) for line in head.decode().split("\r\n"))
        self.server_of_test.sent += len(content)
        self._answer(int(fields.pop("Status", "200").split()[0]), fields, content)

    do_POST = do_GET  # noqa: N815 - the name is the base class's

    def _environment(self, path: str, query: str) -> dict[str, str]:
        """What `git http-backend` reads (RFC 3875)."""
        return {
            "PATH": os.environ["PATH"],
            "GIT_PROJECT_ROOT": self.root,
            "GIT_HTTP_EXPORT_ALL": "1",
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "REQUEST_METHOD": self.command,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
            "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
        }

    def _refuse(self, status: int) -> None:
        fields = {}
        if status == 401:
            fields["WWW-Authenticate"] = 'Basic realm="x"'
        if status == 302:
            fields["Location"] = f"http://127.0.0.1:1{self.path[4:]}"
        self._answer(status, fields, b"")

    def _answer(self, status: int, fields: dict[str, str], content: bytes) -> None:
        self.send_response(status)
        for name, value in fields.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass

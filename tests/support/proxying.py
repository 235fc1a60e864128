"""A proxy on loopback that leads every name to this machine, and certificates for names."""

from __future__ import annotations

import contextlib
import socket
import subprocess
from typing import TYPE_CHECKING

from tests.support.listening import Listener
from tests.support.outside import tool
from tests.support.registries import Authority, make_authority

if TYPE_CHECKING:
    from pathlib import Path


class Proxy(Listener):
    """Takes CONNECT and plain requests with an absolute address; whatever the host, it asks 127.0.0.1 at its port.

    `asked` has the head of each request as it came.
    """

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def serve(self, sock: socket.socket, _number: int, /) -> None:
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            data = sock.recv(65536)
            if not data:
                return
            head += data
        self.asked.append(head.decode("latin-1"))
        method, target, rest = head.split(b" ", 2)
        place = target if method == b"CONNECT" else target.split(b"/")[2]
        onward = self.keep(socket.create_connection(("127.0.0.1", int(place.rpartition(b":")[2]))))
        if method == b"CONNECT":
            sock.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
        else:
            # One request a connection is enough here.
            path = b"/" + target.split(b"/", 3)[3]
            onward.sendall(b" ".join([method, path, rest.replace(b"\r\n", b"\r\nConnection: close\r\n", 1)]))
        self.start(_pump, onward, sock)
        _pump(sock, onward)


def _pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


def authority_for(folder: Path, *names: str) -> Authority:
    """As `make_authority`, for host names."""
    made = make_authority(folder)
    certificate, key = folder / "named.pem", folder / "named.key"
    alternatives = "subjectAltName=" + ",".join(f"DNS:{name}" for name in names)
    new = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "30"]
    signed = ["-CA", str(made.ca), "-CAkey", str(folder / "ca.key"), "-addext", "basicConstraints=critical,CA:FALSE"]
    own = ["-subj", "/CN=named", "-addext", alternatives, "-keyout", str(key), "-out", str(certificate)]
    subprocess.run([tool("openssl"), *new, *signed, *own], check=True, capture_output=True, timeout=60)
    return Authority(ca=made.ca, certificate=certificate, key=key)

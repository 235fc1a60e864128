"""A server on loopback whose connections are sockets that a test reads and writes itself."""

from __future__ import annotations

import contextlib
import socket
import threading
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable


class Listener(ABC):
    """Serves each connection in a thread of its own, as a context manager; at its end no socket is left open.

    `host` is `127.0.0.1:PORT`.
    """

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.host = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._open: list[socket.socket] = [self._listener]
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        self.start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        for sock in self._open:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        for thread in self._threads:
            thread.join(timeout=5)

    @abstractmethod
    def serve(self, sock: socket.socket, number: int, /) -> None:
        """Talk on a connection; it stays open when this returns.

        Args:
            sock: the connection.
            number: how many came before it.
        """

    def start(self, target: Callable[..., None], *arguments: object) -> None:
        """Have something done in a thread that is waited for at the end."""
        self._threads.append(threading.Thread(target=target, args=arguments, daemon=True))
        self._threads[-1].start()

    def keep(self, sock: socket.socket) -> socket.socket:
        """Close a socket at the end."""
        self._open.append(sock)
        return sock

    def _accept(self) -> None:
        number = 0
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self._listener.accept()
                self.start(self.serve, self.keep(sock), number)
                number += 1

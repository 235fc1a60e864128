"""Why a connection failed: by the innermost cause of this try, not of one before."""

from __future__ import annotations

import socket

import urllib3
from imgbuild.adapters.registry.failure import failure_of
from imgbuild.errors import NetworkError


def refused() -> BaseException:
    """What urllib3 raises where nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    try:
        urllib3.PoolManager(retries=False).request("GET", f"http://127.0.0.1:{port}/")
    except urllib3.exceptions.HTTPError as error:
        return error
    raise AssertionError(port)


def test_where_nobody_listens_that_is_said() -> None:
    assert failure_of(refused()).problem == "nobody listens there"


def test_the_try_after_one_that_failed_says_its_own_reason() -> None:
    def first() -> None:
        raise NetworkError("blob", "broke")

    try:
        first()
    except NetworkError:
        assert failure_of(refused()).problem == "nobody listens there"

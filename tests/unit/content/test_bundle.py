"""Bundles of small files: made and read again, bounded, and hashed whatever they list."""

from __future__ import annotations

import gzip
import io
import random

import pytest
from imgbuild.config import CHUNK_BYTES, MIB
from imgbuild.content.bundle import Expanded, compress, pack, unpack
from imgbuild.digest import Digest, chunks
from imgbuild.errors import ArchiveError


def expanded(data: bytes, max_bytes: int = 64 * MIB) -> Expanded:
    return Expanded(io.BytesIO(data), subject="bundle", max_bytes=max_bytes)


@pytest.mark.parametrize(
    "files",
    [[], [b""], [b"one", b"two", b"one"], [random.Random(1).randbytes(3 * CHUNK_BYTES + 7), b"x", bytes(MIB)]],
    ids=["none", "empty", "twice", "large"],
)
def test_what_is_packed_is_unpacked_once_each_in_the_order_of_digests(files: list[bytes]) -> None:
    found = list(unpack(expanded(pack(files))))
    assert found == sorted((Digest.of(data), data) for data in set(files))


def test_a_list_of_files_may_be_longer_than_one_piece() -> None:
    files = [str(number).encode() for number in range(8000)]
    assert len(list(unpack(expanded(pack(files))))) == 8000


def test_what_expands_to_more_than_allowed_ends_soon_after_the_bound() -> None:
    stream = expanded(gzip.compress(bytes(32 * MIB)), MIB)
    with pytest.raises(ArchiveError, match=f"too long; expected at most {MIB} bytes"):
        for _ in chunks(stream):
            pass
    assert MIB < stream.count <= MIB + CHUNK_BYTES
    assert b"".join(chunks(expanded(compress(bytes(MIB)), MIB))) == bytes(MIB)


def test_a_bundle_that_expands_to_more_than_allowed_gives_no_more_than_that() -> None:
    data = pack([bytes([number]) * MIB for number in range(8)])
    given: list[Digest] = []
    with pytest.raises(ArchiveError, match="too long"):
        given.extend(digest for digest, _ in unpack(expanded(data, 3 * MIB)))
    assert len(given) <= 3


def test_a_line_without_end_is_refused_before_it_is_read_whole() -> None:
    stream = expanded(gzip.compress(b"x" * (16 * MIB)))
    with pytest.raises(ArchiveError, match="does not begin with a list"):
        next(unpack(stream))
    assert stream.count <= 8 * MIB + CHUNK_BYTES


@pytest.mark.parametrize(
    ("head", "says"),
    [
        (b"", "does not begin"),
        (b"[1]\n", "is no bundle"),
        (b'{"schema":"other","files":[]}\n', "is no bundle"),
        (b'{"schema":"imgbuild/files/v1","files":{}}\n', "is no bundle"),
        (b"no json\n", "not JSON"),
        (b'{"schema":"imgbuild/files/v1","files":[["sha256:1",40000000]]}\n', "too large"),
        (b'{"schema":"imgbuild/files/v1","files":[["sha256:1",-1]]}\n', "without digest or size"),
        (b'{"schema":"imgbuild/files/v1","files":[["sha256:1"]]}\n', "without digest or size"),
        (b'{"schema":"imgbuild/files/v1","files":[["sha256:1",0]]}\n', "not what it lists"),
        (b'{"schema":"imgbuild/files/v1","files":[]}\nmore', "goes on"),
    ],
)
def test_what_breaks_the_format_is_refused(head: bytes, says: str) -> None:
    with pytest.raises(ArchiveError, match=says):
        list(unpack(expanded(compress(head))))

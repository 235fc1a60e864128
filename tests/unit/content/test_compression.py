from __future__ import annotations

import gzip
import io
import os
import subprocess
import sys
import time
import tracemalloc
import zlib

import pytest
from imgbuild.config import CHUNK_BYTES, MIB, Limits
from imgbuild.content.compression import EMPTY_PARTS, compression_of, decompress
from imgbuild.digest import Digest, Readable, VerifiedReader, chunks
from imgbuild.errors import ArchiveError, DigestMismatchError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

TEXT = b"the quick brown fox " * 5000
SKIPPABLE = b"\x50\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"hello"


class Dribble:
    """Answers with one to seven bytes."""

    def __init__(self, data: bytes) -> None:
        self._inner = io.BytesIO(data)
        self._turn = 0

    def read(self, size: int, /) -> bytes:
        self._turn += 1
        return self._inner.read(min(size, 1 + self._turn % 7))


def everything(stream: Readable, size: int = CHUNK_BYTES) -> bytes:
    return b"".join(chunks(stream, size))


def plain(data: bytes, limits: Limits | None = None) -> bytes:
    return everything(decompress(io.BytesIO(data), subject="layer 1", limits=limits or Limits()))


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        pytest.param(gzip.compress(b"x")[:4], "gzip", id="gzip"),
        pytest.param(zstd.compress(b"x")[:4], "zstd", id="zstd"),
        pytest.param(SKIPPABLE[:4], "zstd", id="zstd-skippable-0"),
        pytest.param(b"\x5f\x2a\x4d\x18", "zstd", id="zstd-skippable-15"),
        pytest.param(b"\x60\x2a\x4d\x18", "none", id="one-past-skippable"),
        pytest.param(b"", "none", id="empty"),
        pytest.param(b"\x1f", "none", id="half-a-magic"),
        pytest.param(b"usr/", "none", id="tar"),
        pytest.param(b"\xfd7zX", "none", id="xz-is-not-known"),
        pytest.param(b"BZh9", "none", id="bzip2-is-not-known"),
    ],
)
def test_compression_is_told_by_the_first_bytes(head: bytes, kind: str) -> None:
    assert compression_of(head) == kind


@pytest.mark.parametrize(
    ("data", "content"),
    [
        pytest.param(TEXT, TEXT, id="plain"),
        pytest.param(b"", b"", id="plain-empty"),
        pytest.param(b"\x1f", b"\x1f", id="plain-one-byte"),
        pytest.param(gzip.compress(TEXT), TEXT, id="gzip"),
        pytest.param(gzip.compress(b""), b"", id="gzip-empty"),
        pytest.param(zlib.compress(TEXT, 0, wbits=31), TEXT, id="gzip-stored"),
        pytest.param(gzip.compress(TEXT) + gzip.compress(b"") + gzip.compress(b"tail"), TEXT + b"tail", id="members"),
        pytest.param(zstd.compress(TEXT), TEXT, id="zstd"),
        pytest.param(zstd.compress(TEXT) + zstd.compress(b"tail"), TEXT + b"tail", id="zstd-frames"),
        pytest.param(SKIPPABLE + zstd.compress(TEXT) + SKIPPABLE, TEXT, id="zstd-skippable-around"),
    ],
)
def test_C26_all_members_and_frames_are_read(data: bytes, content: bytes) -> None:
    assert plain(data) == content
    assert everything(decompress(Dribble(data), subject="layer 1")) == content


def test_C26_many_members_as_pigz_and_estargz_write_them() -> None:
    parts = [os.urandom(i % 700) for i in range(3000)]
    assert plain(b"".join(gzip.compress(part) for part in parts)) == b"".join(parts)


def test_C26_gzip_of_the_gzip_program_and_its_own_reading_agree() -> None:
    data = b"".join(subprocess.run(["gzip", "-c"], input=part, stdout=-1, check=True).stdout for part in (TEXT, b"2"))
    assert plain(data) == subprocess.run(["gzip", "-dc"], input=data, stdout=-1, check=True).stdout


def test_reads_are_never_longer_than_asked_and_content_is_the_same_for_every_read_size() -> None:
    data = gzip.compress(TEXT)
    for size in (1, 7, 512, 100_000):
        stream = decompress(io.BytesIO(data), subject="layer 1")
        pieces = list(chunks(stream, size))
        assert max(map(len, pieces)) <= size
        assert b"".join(pieces) == TEXT
        assert stream.read(size) == b""


def test_a_read_of_no_bytes_is_a_mistake_and_not_an_end() -> None:
    with pytest.raises(ValueError, match="positive"):
        decompress(io.BytesIO(TEXT), subject="layer 1").read(0)


def test_the_gzip_header_may_carry_name_comment_and_extra() -> None:
    raw = zlib.compress(TEXT, wbits=-15)
    extra = b"\x1f\x8b\x08\x1c" + bytes(6) + b"\x03\0abc" + b"name\0" + b"comment\0"
    trailer = zlib.crc32(TEXT).to_bytes(4, "little") + len(TEXT).to_bytes(4, "little")
    assert plain(extra + raw + trailer) == TEXT


GZIP, ZSTD = gzip.compress(TEXT), zstd.compress(TEXT)


def flipped(data: bytes, index: int) -> bytes:
    changed = bytearray(data)
    changed[index] ^= 0x40
    return bytes(changed)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        pytest.param(GZIP[:-1], "truncated.* 1?[0-9]+ bytes read", id="gzip-trailer-cut"),
        pytest.param(GZIP[:200], "truncated.* 200 bytes read.*gzip member 1", id="gzip-cut"),
        pytest.param(GZIP[:2], "truncated", id="gzip-magic-only"),
        pytest.param(GZIP + GZIP[:5], "truncated.*gzip member 2", id="gzip-second-member-cut"),
        pytest.param(flipped(GZIP, -6), "not valid gzip: Incorrect checksum found", id="gzip-crc"),
        pytest.param(flipped(GZIP, -1), "not valid gzip: Incorrect checksum found", id="gzip-length"),
        pytest.param(b"\x1f\x8b\x00" + GZIP[3:], "not valid gzip", id="gzip-unknown-method"),
        pytest.param(GZIP + b"x", "trailing garbage after its last gzip member", id="gzip-garbage"),
        pytest.param(GZIP + b"\x1f", "trailing garbage", id="gzip-half-a-magic"),
        pytest.param(GZIP + ZSTD, "trailing garbage", id="zstd-behind-gzip"),
        pytest.param(GZIP + bytes(512), "zero bytes after its last gzip member; padding is refused", id="gzip-padding"),
        pytest.param(ZSTD[:-1], "truncated", id="zstd-cut"),
        pytest.param(ZSTD[:4], "truncated", id="zstd-magic-only"),
        pytest.param(SKIPPABLE[:-1], "truncated", id="zstd-skippable-cut"),
        pytest.param(ZSTD + b"x", "trailing garbage after its last zstd frame", id="zstd-garbage"),
        pytest.param(ZSTD + bytes(3), "zero bytes after its last zstd frame", id="zstd-padding"),
        pytest.param(b"\x28\xb5\x2f\xfd" + b"\xff" * 40, "not valid zstd", id="zstd-nonsense"),
    ],
)
def test_broken_streams_are_archive_errors(data: bytes, words: str) -> None:
    for stream in (io.BytesIO(data), Dribble(data)):
        with pytest.raises(ArchiveError, match=f"^layer 1: .*{words}"):
            everything(decompress(stream, subject="layer 1"))


def test_every_truncation_of_a_small_stream_is_an_archive_error() -> None:
    for data in (gzip.compress(b"abc" * 20), zstd.compress(b"abc" * 20)):
        for length in range(4, len(data)):
            with pytest.raises(ArchiveError, match=f"actual {length} bytes read"):
                plain(data[:length])


def test_a_zstd_window_above_the_limit_is_refused_by_name() -> None:
    compressor = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: 28})
    data = compressor.compress(TEXT) + compressor.flush()
    with pytest.raises(ArchiveError, match=r"2\^27 bytes \(zstd_window_log\)") as caught:
        plain(data)
    assert caught.value.hint is not None
    assert plain(data, Limits(zstd_window_log=28)) == TEXT


@pytest.mark.parametrize("data", [TEXT, GZIP, ZSTD], ids=["plain", "gzip", "zstd"])
def test_output_is_limited_to_layer_bytes_exactly(data: bytes) -> None:
    assert plain(data, Limits(layer_bytes=len(TEXT))) == TEXT
    with pytest.raises(ArchiveError, match="layer_bytes"):
        plain(data, Limits(layer_bytes=len(TEXT) - 1))


def test_a_bomb_ends_at_the_ratio_and_only_above_the_floor() -> None:
    bomb = zstd.compress(bytes(64 * MIB))
    assert 2000 * len(bomb) < 64 * MIB
    with pytest.raises(ArchiveError, match="compression_ratio"):
        plain(bomb, Limits(ratio_floor=16 * MIB))
    small = Limits(ratio_floor=64 * MIB)
    assert sum(map(len, chunks(decompress(io.BytesIO(bomb), subject="x", limits=small)))) == 64 * MIB


def test_a_bomb_is_read_in_bounded_memory() -> None:
    bomb = zlib.compress(bytes(256 * MIB), 9, wbits=31)
    tracemalloc.start()
    try:
        total = sum(map(len, chunks(decompress(io.BytesIO(bomb), subject="x"))))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert total == 256 * MIB
    assert peak < 8 * CHUNK_BYTES


@pytest.mark.parametrize(
    "empty", [gzip.compress(b""), zstd.compress(b""), SKIPPABLE], ids=["gzip", "zstd", "skippable"]
)
def test_empty_members_and_frames_are_accepted_up_to_a_number_in_a_row(empty: bytes) -> None:
    assert plain(empty * EMPTY_PARTS) == b""
    endless = io.BytesIO(empty * 300_000)
    with pytest.raises(ArchiveError, match="too many empty"):
        everything(decompress(endless, subject="layer 1"))
    assert endless.tell() <= EMPTY_PARTS * len(empty) + 2 * CHUNK_BYTES


def test_members_are_limited_like_entries() -> None:
    data = gzip.compress(b"a") * 10
    assert plain(data, Limits(layer_entries=10)) == b"a" * 10
    with pytest.raises(ArchiveError, match="layer_entries"):
        plain(data, Limits(layer_entries=9))


def test_tiny_members_do_not_hang_the_reader() -> None:
    data = gzip.compress(b"a", 1) * 100_000
    started = time.process_time()
    assert plain(data) == b"a" * 100_000
    assert time.process_time() - started < 5  # quadratic time would be a denial of service


@pytest.mark.parametrize("data", [TEXT, GZIP, ZSTD], ids=["plain", "gzip", "zstd"])
def test_the_stream_below_is_read_to_its_end_so_that_its_digest_is_checked(data: bytes) -> None:
    wrong = VerifiedReader(io.BytesIO(data), Digest.of(b"other"), len(data), subject="blob")
    with pytest.raises(DigestMismatchError):
        everything(decompress(wrong, subject="layer 1"))

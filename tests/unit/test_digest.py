from __future__ import annotations

import hashlib
import io
import random
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from imgbuild.digest import BesideHash, Digest, VerifiedReader, chunks, digest_of
from imgbuild.errors import DigestMismatchError, DocumentError

HEX = "0123456789abcdef" * 4
BAD = {
    "empty": "",
    "no algorithm": HEX,
    "empty algorithm": f":{HEX}",
    "empty hex": "sha256:",
    "one digit short": f"sha256:{HEX[1:]}",
    "one digit long": f"sha256:{HEX}0",
    "upper case": f"sha256:{HEX.upper()}",
    "upper-case algorithm": f"SHA256:{HEX}",
    "a dash": f"sha256-{HEX}",
    "another algorithm": f"md5:{HEX[:32]}",
    "sha512 with the length of sha256": f"sha512:{HEX}",
    "sha256 with the length of sha512": f"sha256:{HEX}{HEX}",
    "a path": "sha256:../../../../etc/passwd",
    "a path of the right length": "sha256:" + "../" * 21 + "x",
    "a line break": f"sha256:{HEX}\n",
    "a line break inside": f"sha256:{HEX[:-1]}\n",
    "blanks": f" sha256:{HEX}",
    "NUL": f"sha256:{HEX[:-1]}\0",
    "full-width digits": "sha256:" + "\N{FULLWIDTH DIGIT ONE}" * 64,
    "arabic digits": "sha256:" + "\N{ARABIC-INDIC DIGIT ONE}" * 64,
    "two colons": f"sha256::{HEX}",
    "a megabyte": "sha256:" + "0" * 1_000_000,
}


@pytest.mark.parametrize("case", BAD)
def test_a_digest_that_is_not_exactly_one_is_refused_in_a_short_sentence(case: str) -> None:
    with pytest.raises(DocumentError) as caught:
        Digest.parse(BAD[case])
    assert len(str(caught.value)) < 400


@given(st.sampled_from([("sha256", 64), ("sha512", 128)]), st.data())
def test_what_is_parsed_is_written_back(kind: tuple[str, int], data: st.DataObject) -> None:
    algorithm, length = kind
    encoded = data.draw(st.text("0123456789abcdef", min_size=length, max_size=length))
    digest = Digest.parse(f"{algorithm}:{encoded}")
    assert (digest.algorithm, digest.encoded, str(digest)) == (algorithm, encoded, f"{algorithm}:{encoded}")
    assert digest == Digest(algorithm, encoded)
    assert hash(digest) == hash(Digest(algorithm, encoded))


@given(st.text())
def test_any_other_text_is_a_document_error(text: str) -> None:
    with pytest.raises(DocumentError):
        Digest.parse(text)


def test_C15_sha512_is_read_and_verified_and_never_made() -> None:
    data = b"layer"
    digest = Digest.parse(f"sha512:{hashlib.sha512(data).hexdigest()}")
    VerifiedReader(io.BytesIO(data), digest, len(data), subject="layer").drain()
    with pytest.raises(DigestMismatchError):
        VerifiedReader(io.BytesIO(b"LAYER"), digest, len(data), subject="layer").drain()
    assert Digest.of(data).algorithm == "sha256"
    assert digest_of([data])[0].algorithm == "sha256"


def test_digests_sort_by_algorithm_and_hex_and_differ_from_their_text() -> None:
    low, high = Digest("sha256", "0" * 64), Digest("sha256", "f" * 64)
    assert sorted([high, low]) == [low, high]
    assert low != str(low)
    assert len({low, high, Digest("sha256", "0" * 64)}) == 2


@given(st.lists(st.binary(max_size=20)))
def test_the_pieces_of_a_stream_do_not_matter(pieces: list[bytes]) -> None:
    whole = b"".join(pieces)
    assert digest_of(pieces) == (Digest.of(whole), len(whole))
    assert b"".join(chunks(io.BytesIO(whole), 3)) == whole


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"conten", "is shorter than recorded"),
        (b"", "is shorter than recorded"),
        (b"contents", "is longer than recorded"),
        (b"cOntent", "does not have the recorded digest"),
    ],
)
def test_a_stream_that_is_not_what_was_asked_for_says_so_at_its_end(data: bytes, problem: str) -> None:
    reader = VerifiedReader(io.BytesIO(data), Digest.of(b"content"), 7, subject="blob")
    with pytest.raises(DigestMismatchError, match=problem) as caught:
        reader.drain()
    assert caught.value.expected
    assert caught.value.actual


def test_a_longer_stream_is_left_after_one_byte_too_many() -> None:
    stream = io.BytesIO(b"content" + b"x" * 1_000_000)
    with pytest.raises(DigestMismatchError):
        VerifiedReader(stream, Digest.of(b"content"), 7, subject="blob").drain()
    assert stream.tell() == 8


@pytest.mark.parametrize("size", [0, 1, 1_000, 5_000_000])
@pytest.mark.parametrize("piece", [1_000, 700_000, 3_000_000])
def test_a_hash_beside_is_the_same_hash(size: int, piece: int) -> None:
    data = random.Random(size).randbytes(size)
    for algorithm in ("sha256", "sha512"):
        found, model = BesideHash(algorithm), hashlib.new(algorithm)
        for start in range(0, 2 * size, piece):
            found.update((data + data)[start : start + piece])
            model.update((data + data)[start : start + piece])
            if start % 3 == 0:
                assert found.hexdigest() == model.hexdigest()
        assert found.hexdigest() == model.hexdigest()


def test_the_thread_of_a_hash_ends_with_it_also_where_nobody_asked_for_the_result() -> None:
    before = threading.active_count()
    found = BesideHash()
    for _ in range(20):
        found.update(bytes(1_000_000))
    assert threading.active_count() == before + 1
    del found
    deadline = time.monotonic() + 10
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() == before

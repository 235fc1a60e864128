from __future__ import annotations

import io
import itertools
import random

import pytest
from imgbuild.content import elftexts
from imgbuild.content.elftexts import _TEXT, Inside, Texts, variable_names

VERSION = b"NCCL version 2.30.7+cuda13.0"
NAME = b"NCCL_SWITCHLESS_RING_ONLY"


WORDS = (b"NCCL version ", b"NCCL_", b"NCCL git version ")


@pytest.fixture(params=["by the C library", "by Python"], autouse=True)
def search(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways to search, also for what is short."""
    if request.param == "by Python":
        monkeypatch.setattr(elftexts, "_search_memory", None)
    else:
        assert elftexts._search_memory is not None
        monkeypatch.setattr(elftexts, "_SHORT", 0)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    return [data[start:end] for start, end in zip([0, *places], [*places, len(data)], strict=True)]


def found(pieces: list[bytes]) -> tuple[str, ...]:
    answers = []
    for word in WORDS:
        texts = Texts(word)
        for piece in pieces:
            texts.update(piece)
        answers.append(texts.finish())
    return tuple(itertools.chain(*answers))


def wanted(data: bytes) -> tuple[str, ...]:
    places = [[place for place in range(len(data)) if data.startswith(word, place)] for word in WORDS]
    matches = [{match[0].decode() for place in row if (match := _TEXT.match(data, place))} for row in places]
    return tuple(itertools.chain(*map(sorted, matches)))


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 65, 66, 1000])
def test_texts_are_found_whole_wherever_the_pieces_of_a_file_are_cut(size: int) -> None:
    data = b"\0" * 90 + VERSION + b"\0" + b"x" * 200 + NAME + b"\n" + b"\0" * 30 + b"NCCL_DEBUG"
    assert found(cut(data, list(range(size, len(data), size)))) == (VERSION.decode(), "NCCL_DEBUG", NAME.decode())


def test_texts_of_random_bytes_are_those_of_one_search_over_all_of_them() -> None:
    chance = random.Random(4)
    words = [
        b"NCCL",
        b"_",
        b" version ",
        b" git version ",
        b"main ab",
        b"2",
        b"A",
        b"\0",
        b"NCCL_A_",
        b"NCCL version 2",
        b"Z" * 30,
        b".",
    ]
    for _ in range(1_000):
        data = b"".join(chance.choice(words) for _ in range(chance.randrange(60)))
        cuts = sorted(chance.randrange(len(data) + 1) for _ in range(chance.randrange(8)))
        assert found(cut(data, cuts)) == wanted(data)


def test_a_file_is_searched_for_names_from_its_beginning() -> None:
    file = io.BytesIO(VERSION + b"\0" + NAME + b"\0NCCL_DEBUG")
    file.read(5)
    assert variable_names(file) == ("NCCL_DEBUG", NAME.decode())


@pytest.mark.parametrize("data", [b"", b"NCCL", b"NCCL version mismatch", b"nccl_debug", b"NCCL_x", b"NCCL_A"])
def test_what_names_nothing_is_not_kept(data: bytes) -> None:
    assert found([data]) == ()


def test_a_file_of_nothing_but_texts_gives_a_thousand() -> None:
    data = b"\0".join(b"NCCL_%06d" % number for number in range(5_000))
    assert len(found([data[start : start + 999] for start in range(0, len(data), 999)])) == 1_000


@pytest.mark.parametrize("size", [1, 3, 4, 9, 100])
def test_a_script_is_an_archive_only_with_a_zip_behind_it(size: int) -> None:
    script = b"#!/usr/bin/env python3\n" + b"y" * 30 + b"libnccl.so.2"
    for data, expected in ((script, ()), (script + b"PK\x03\x04", ("libnccl.so",))):
        inside = Inside(data[:8])
        for piece in cut(data, list(range(size, len(data), size))):
            inside.update(piece)
        assert inside.finish() == expected


@pytest.mark.parametrize("size", [1, 3, 9, 13, 14, 100])
def test_what_an_archive_holds_is_found_wherever_its_pieces_are_cut(size: int) -> None:
    data = b"x" * 20 + b"libnccl.so.2" + b"y" * 30 + b"ncclGetVersion" + b"z"
    inside = Inside(b"PK\x03\x04")
    for piece in cut(data, list(range(size, len(data), size))):
        inside.update(piece)
    assert inside.finish() == ("libnccl.so", "ncclGetVersion")
    other = Inside(b"PK\x03\x04")
    other.update(data.replace(b"nccl", b"cubl"))
    assert other.finish() == ()

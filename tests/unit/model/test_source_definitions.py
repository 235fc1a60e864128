"""Definitions and locks of sources that are one file: what is refused, and that no secret is repeated."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from imgbuild.errors import DocumentError, InputError, StepError, UnpinnedError
from imgbuild.model.lockfile import parse_lock

from tests.support.refusals import locked

if TYPE_CHECKING:
    from imgbuild.model.image import ImageDefinition

    from tests.support.tiny import Tiny

ZERO = "sha256:" + "0" * 64
LONG = "sha512:" + "0" * 128
IMAGE = f"host.example/team/other@{ZERO}"


def define(tiny: Tiny, **source: Any) -> ImageDefinition:
    tiny.image = {"sources": {"extra": {"digest": ZERO, **source}}}
    tiny.write_definition()
    return tiny.project().load("tiny").definition


@pytest.mark.parametrize(
    "source",
    [
        {"kind": "file"},
        {"kind": "file", "size": 0},
        {"kind": "url", "url": "https://files.example/a/@b/c%20d"},
        {"kind": "url", "url": "https://files.example:8443/", "size": 2**53},
        {"kind": "url", "url": "http://127.0.0.1:80/x"},
        {"kind": "url", "url": "http://localhost/x"},
        {"kind": "url", "url": "http://[::1]:8080/x"},
        {"kind": "image-member", "image": IMAGE, "path": "/usr/lib/x"},
        {"kind": "image-member", "image": IMAGE, "path": "/x", "platform": "linux/amd64", "size": 1},
    ],
)
def test_what_is_right_is_taken(tiny: Tiny, source: dict[str, Any]) -> None:
    assert "extra" in define(tiny, **source).sources


@pytest.mark.parametrize(
    "url",
    [
        "http://files.example/x",
        "http://127.0.0.1.files.example/x",
        "http://localhost.files.example/x",
        "https://user:secret@files.example/x",
        "https://secret@files.example/x",
        "http://localhost:secret@files.example/x",
        "https://files.example/x?sig=secret",
        "https://files.example/x#secret",
        "https://files.example",
        "https:///secret",
        "ftp://files.example/secret",
        "HTTPS://files.example/secret",
        "https://files.example/secret\n",
        "https://files.example/a b-secret",
        "https://files.example/\u2028secret",
        "https://files.example\\@secret/x",
        "https://files.example/" + "secret" * 1000,
        "secret",
        "",
    ],
)
def test_an_address_that_is_not_open_is_refused_and_not_repeated(tiny: Tiny, url: str) -> None:
    with pytest.raises(DocumentError, match=r"sources\.extra\.url: is no https address") as caught:
        define(tiny, kind="url", url=url)
    assert "secret" not in f"{caught.value} {caught.value.fields()}".replace("what is secret there", "")


@pytest.mark.parametrize(
    ("source", "kind", "problem"),
    [
        ({"kind": "file", "digest": LONG}, DocumentError, "is sha512; a file is pinned by its sha256"),
        ({"kind": "file", "digest": "sha256:0"}, DocumentError, "sources.extra.digest"),
        ({"kind": "file", "size": -1}, DocumentError, "sources.extra.size"),
        ({"kind": "file", "size": 2**54}, DocumentError, "sources.extra.size"),
        ({"kind": "file", "url": "https://files.example/x"}, DocumentError, "unknown key 'url'"),
        ({"kind": "url"}, DocumentError, "'url' is a required property"),
        ({"kind": "image-member", "image": "host.example/a:v1", "path": "/x"}, UnpinnedError, "names a tag"),
        ({"kind": "image-member", "image": "host.example/a", "path": "/x"}, UnpinnedError, "a digest is needed"),
        ({"kind": "image-member", "image": f"other@{ZERO}", "path": "/x"}, InputError, "does not name its registry"),
        ({"kind": "image-member", "image": IMAGE.replace("@", ":v1@"), "path": "/x"}, DocumentError, "holds a tag"),
        ({"kind": "image-member", "image": IMAGE, "path": "x"}, DocumentError, "sources.extra.path"),
        ({"kind": "image-member", "image": IMAGE, "path": "/a/../x"}, StepError, "component"),
        ({"kind": "image-member", "image": IMAGE, "path": "/x", "platform": "linux/s390x"}, DocumentError, "platform"),
    ],
)
def test_what_is_wrong_is_refused(tiny: Tiny, source: dict[str, Any], kind: type[InputError], problem: str) -> None:
    with pytest.raises(kind) as caught:
        define(tiny, **source)
    assert problem in str(caught.value)


@pytest.mark.parametrize("kind", ["file", "url", "image-member"])
def test_the_digest_is_required(tiny: Tiny, kind: str) -> None:
    rest = {"url": {"url": "https://files.example/x"}, "image-member": {"image": IMAGE, "path": "/x"}}.get(kind, {})
    tiny.image = {"sources": {"extra": {"kind": kind, **rest}}}
    tiny.write_definition()
    with pytest.raises(DocumentError, match="'digest' is a required property"):
        tiny.project().load("tiny")


def test_an_address_with_a_secret_in_a_lock_is_refused_and_not_repeated(tiny: Tiny) -> None:
    value = locked(tiny)
    value["pins"]["sources"].append(
        {"kind": "url", "name": "x", "url": "https://u:hunter2@files.example/x", "digest": ZERO, "size": 1}
    )
    raw = json.dumps(value, sort_keys=True, indent=2).encode() + b"\n"
    with pytest.raises(DocumentError, match=r"pins\.sources\[x\]\.url: is no https address") as caught:
        parse_lock(raw, subject="lock")
    assert "hunter2" not in str(caught.value)

"""Registries and token services that repeat what they were shown, wherever they can: none of it is ever printed."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest
from imgbuild.adapters.registry.blobs import blob_size, has_blob, mount, read_blob
from imgbuild.adapters.registry.referrers import referrers
from imgbuild.adapters.registry.uploads import Upload
from imgbuild.adapters.registry.uploadsession import ask_to_push
from imgbuild.adapters.registry.uploadstate import UploadMemory
from imgbuild.errors import ImgbuildError

from tests.support.reading import Client, Scripted, all_text, described

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from pathlib import Path

    from imgbuild.adapters.registry.repository import Repository

SECRET = "s3cr3t/Pass+word=="  # noqa: S105
PAIR = base64.b64encode(f"user:{SECRET}".encode()).decode()
TOKEN = "Tok-ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"  # noqa: S105
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
BLOB = described(f"sha256:{hashlib.sha256(b'x').hexdigest()}", 1)


def quoted(text: str) -> str:
    return quote(text, safe="")


def lower_escapes(text: str) -> str:
    return quote(text, safe="").replace("%2F", "%2f").replace("%2B", "%2b").replace("%3D", "%3d")


def b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


FORMS: list[Callable[[str], str]] = [str, str.lower, quoted, lower_escapes, b64, lambda text: "x" * 20 + text]


def answer(status: int = 200, body: object = b"{}", **headers: str) -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} X", *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, f"Content-Length: {len(data)}", "", ""]).encode() + data


PLACES: dict[str, Callable[[str], bytes]] = {
    "digest": lambda said: answer(Docker_Content_Digest=said),
    "type": lambda said: answer(Content_Type=said),
    "encoding": lambda said: answer(Content_Encoding=said),
    "location": lambda said: answer(307, Location=f"ftp://host/{said}"),
    "upload": lambda said: answer(202, Location=f"ftp://host/{said}"),
    "away": lambda said: answer(202, Location=f"http://127.0.0.1:1/{said}"),
    "refusal": lambda said: answer(403, {"errors": [{"code": said, "message": f"not {said}"}]}),
    "bare": lambda said: answer(400, f"no: {said}".encode()),
    "media type": lambda said: answer(200, {"schemaVersion": 2, "mediaType": said}, Content_Type=MANIFEST),
    "config": lambda said: answer(
        200,
        {"schemaVersion": 2, "config": {"mediaType": said, "digest": said, "size": 1}, "layers": []},
        Content_Type=MANIFEST,
    ),
    "row": lambda said: answer(
        200,
        {"schemaVersion": 2, "manifests": [{"mediaType": said, "digest": said, "size": 1}]},
        Content_Type=INDEX,
    ),
    "no json": lambda said: answer(200, f'{{"{said}": 1, "{said}": 2}}'.encode(), Content_Type=INDEX),
}


class _Source:
    def open(self, offset: int) -> object:
        raise AssertionError(offset)


def asks(target: Repository, folder: Path) -> list[Callable[[], object]]:
    memory = UploadMemory(folder)
    return [
        lambda: target.manifest("t"),
        lambda: target.manifest(BLOB.digest),
        lambda: target.manifest_digest("t"),
        lambda: target.put_manifest(b"{}", MANIFEST),
        lambda: target.put_manifest(b"{}", MANIFEST, tag="t"),
        lambda: blob_size(target, BLOB),
        lambda: has_blob(target, BLOB),
        lambda: read_blob(target, BLOB, 1),
        lambda: mount(target, BLOB, "other"),
        lambda: referrers(target, BLOB.digest),
        lambda: ask_to_push(target),
        lambda: Upload(target, BLOB, _Source(), memory=memory, advance=lambda _: None).run(),  # type: ignore[arg-type]
    ]


def check_all(client: Client, host: str, folder: Path, said: str) -> int:
    """Make every request; how many were refused, none of them with what was shown."""
    refused = 0
    for ask in asks(client.at(host), folder):
        try:
            ask()
        except ImgbuildError as error:
            refused += 1
            text = f"{all_text(error)} {error.__context__!r}".lower()
            assert said.lower() not in text
    assert not [note for note in client.notes if said.lower() in note.lower()]
    return refused


@pytest.mark.parametrize(("secret", "form"), [*((SECRET, form) for form in FORMS), (PAIR, str), (PAIR, str.lower)])
@pytest.mark.parametrize("place", PLACES)
def test_a_registry_that_repeats_a_password_does_not_get_it_printed(
    login: Callable[..., None], tmp_path: Path, place: str, form: Callable[[str], str], secret: str
) -> None:
    def serve(sock: socket.socket) -> None:
        shown = b"\r\nAuthorization: Basic" in server.asked[-1]
        sock.sendall(PLACES[place](form(secret)) if shown else answer(401, WWW_Authenticate='Basic realm="x"'))

    with Scripted(serve) as server, Client() as client:
        login(server.host, auth=PAIR)
        assert check_all(client, server.host, tmp_path / "uploads", form(secret)) > 0


@pytest.mark.parametrize("form", [str, str.lower])
@pytest.mark.parametrize("place", PLACES)
def test_a_registry_that_repeats_a_token_does_not_get_it_printed(
    login: Callable[..., None], tmp_path: Path, place: str, form: Callable[[str], str]
) -> None:
    def serve(sock: socket.socket) -> None:
        head = server.asked[-1]
        if head.startswith(b"GET /token"):
            sock.sendall(answer(200, {"token": TOKEN}))
        elif b"\r\nAuthorization: Bearer" in head:
            sock.sendall(PLACES[place](form(TOKEN)))
        else:
            sock.sendall(answer(401, WWW_Authenticate=f'Bearer realm="http://{server.host}/token"'))

    with Scripted(serve) as server, Client() as client:
        login(server.host, auth=PAIR)
        assert check_all(client, server.host, tmp_path / "uploads", form(TOKEN)) > 0


@pytest.mark.parametrize("form", [*FORMS, lambda text: f"grant_type=x&refresh_token={quoted(text)}"])
@pytest.mark.parametrize("status", [400, 401, 404, 503])
def test_a_token_service_that_repeats_what_was_sent_does_not_get_it_printed(
    login: Callable[..., None], tmp_path: Path, form: Callable[[str], str], status: int
) -> None:
    def serve(sock: socket.socket) -> None:
        if server.asked[-1].startswith(b"POST /token"):
            sock.sendall(answer(status, {"errors": [{"code": "DENIED", "message": f"bad request: {form(SECRET)}"}]}))
        else:
            sock.sendall(answer(401, WWW_Authenticate=f'Bearer realm="http://{server.host}/token"'))

    with Scripted(serve) as server, Client() as client:
        login(server.host, identitytoken=SECRET)
        assert check_all(client, server.host, tmp_path / "uploads", form(SECRET)) > 8
        assert quoted(SECRET).lower() not in "".join(client.notes).lower()

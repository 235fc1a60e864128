"""The fault registry is strict, and each of its faults does what it says. Only http.client is used here."""

from __future__ import annotations

import base64
import contextlib
import gzip
import hashlib
import http.client
import json
import random
import socket
import ssl
import struct
import time
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, quote, urlencode, urlsplit

import pytest

from tests.support import fault_registry as fr
from tests.support import outside
from tests.support.fault_registry import Auth, Fault, FaultRegistry
from tests.support.registries import PASSWORD, USER, LocalRegistry, any_registry, docker_registry, make_authority

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

OCI = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
DOCKER = "application/vnd.docker.distribution.manifest.v2+json"
OCTETS = {"Content-Type": "application/octet-stream"}
DATA = random.Random(7).randbytes(300_000)
DIGEST = fr.digest_of(DATA)


@dataclass(frozen=True)
class Reply:
    status: int
    headers: http.client.HTTPMessage
    body: bytes

    def code(self) -> str:
        return str(json.loads(self.body)["errors"][0]["code"])

    @property
    def location(self) -> str:
        return str(self.headers["Location"])


def ask(
    registry: FaultRegistry | LocalRegistry | str,
    method: str,
    address: str,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    *,
    context: ssl.SSLContext | None = None,
) -> Reply:
    """One request on a connection of its own. An answer that comes while the body is still sent is taken too."""
    host = registry if isinstance(registry, str) else registry.host
    parts = urlsplit(address)
    target = parts.path + (f"?{parts.query}" if parts.query else "")
    connection: http.client.HTTPConnection
    if context is None:
        connection = http.client.HTTPConnection(host, timeout=10)
    else:
        connection = http.client.HTTPSConnection(host, timeout=10, context=context)
    with contextlib.closing(connection):
        with contextlib.suppress(BrokenPipeError):
            connection.request(method, target, body, dict(headers or {}))
        answer = connection.getresponse()
        return Reply(answer.status, answer.headers, answer.read())


def chunk(start: int, stop: int) -> dict[str, str]:
    return {**OCTETS, "Content-Range": f"{start}-{stop - 1}"}


def begin(registry: FaultRegistry | LocalRegistry, repository: str = "a/b") -> str:
    answer = ask(registry, "POST", f"/v2/{repository}/blobs/uploads/", b"")
    assert answer.status == 202
    return answer.location


def close(location: str, digest: str = DIGEST) -> str:
    return f"{location}{'&' if '?' in location else '?'}digest={quote(digest)}"


def cut_patch(host: str, location: str, start: int, sent: bytes, announced: int) -> None:
    """A PATCH of which only the first bytes are sent; then the connection is reset."""
    parts = urlsplit(location)
    with socket.create_connection(tuple(host.split(":")), timeout=5) as sock:  # type: ignore[arg-type]
        head = f"PATCH {parts.path}?{parts.query} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {announced}\r\n"
        head += f"Content-Type: application/octet-stream\r\nContent-Range: {start}-{start + announced - 1}\r\n\r\n"
        sock.sendall(head.encode() + sent)
        time.sleep(0.1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    time.sleep(0.1)


@pytest.fixture
def registry() -> Iterator[FaultRegistry]:
    with FaultRegistry() as made:
        yield made


# what every registry does


@pytest.mark.parametrize("kind", ["fault", "docker-registry"])
def test_chunks_with_the_newest_location_make_a_blob(kind: Any, tmp_path: Path) -> None:
    with any_registry(kind, tmp_path) as found:
        first = begin(found)
        status = ask(found, "GET", first)
        assert (status.status, status.headers["Range"]) == (204, "0-0")
        one = ask(found, "PATCH", status.location, DATA[:100_000], chunk(0, 100_000))
        assert (one.status, one.headers["Range"]) == (202, "0-99999")
        two = ask(found, "PATCH", one.location, DATA[100_000:], chunk(100_000, 300_000))
        assert two.status == 202
        stale = ask(found, "PATCH", one.location, b"x", chunk(100_000, 100_001))
        assert stale.status == 404
        made = ask(found, "PUT", close(two.location), b"")
        assert (made.status, made.headers["Docker-Content-Digest"]) == (201, DIGEST)
        got = ask(found, "GET", made.location, headers={"Range": "bytes=5-9"})
        assert (got.status, got.body, got.headers["Content-Range"]) == (206, DATA[5:10], "bytes 5-9/300000")
        assert ask(found, "HEAD", made.location).headers["Content-Length"] == "300000"


@pytest.mark.parametrize("kind", ["fault", "docker-registry"])
def test_a_range_past_the_end_announces_a_whole_blob_on_distribution_2_8(kind: Any, tmp_path: Path) -> None:
    """Measured: Content-Length is the blob's, the body a line of text, and the connection ends there."""
    with any_registry(kind, tmp_path) as found:
        made = ask(found, "PUT", close(begin(found)), DATA).location
        if found.fault is not None:
            assert ask(found, "GET", made, headers={"Range": "bytes=300000-"}).status == 416
            found.fault.switches.long_416 = True
        with contextlib.closing(http.client.HTTPConnection(found.host, timeout=5)) as connection:
            connection.request("GET", urlsplit(made).path, headers={"Range": "bytes=300000-"})
            answer = connection.getresponse()
            assert (answer.status, answer.headers["Content-Length"]) == (416, "300000")
            assert answer.headers["Content-Range"] == "bytes */300000"
            with pytest.raises(http.client.IncompleteRead):
                answer.read()


@pytest.mark.parametrize("kind", ["fault", "docker-registry"])
def test_a_mount_links_a_blob_of_another_repository_and_else_opens_an_upload(kind: Any, tmp_path: Path) -> None:
    with any_registry(kind, tmp_path) as found:
        assert ask(found, "PUT", close(begin(found, "src")), DATA).status == 201
        assert ask(found, "HEAD", f"/v2/dst/blobs/{DIGEST}").status == 404
        assert ask(found, "POST", f"/v2/dst/blobs/uploads/?mount={DIGEST}", b"").status == 202
        assert ask(found, "POST", f"/v2/dst/blobs/uploads/?mount={DIGEST}&from=none", b"").status == 202
        mounted = ask(found, "POST", f"/v2/dst/blobs/uploads/?mount={DIGEST}&from=src", b"")
        assert (mounted.status, mounted.headers["Docker-Content-Digest"]) == (201, DIGEST)
        assert ask(found, "HEAD", f"/v2/dst/blobs/{DIGEST}").status == 200


@pytest.mark.parametrize("kind", ["fault", "docker-registry"])
def test_a_manifest_without_accept_is_404_and_its_raw_bytes_are_kept(kind: Any, tmp_path: Path) -> None:
    with any_registry(kind, tmp_path) as found:
        raw = push_image(found, "a/b")
        made = ask(found, "PUT", "/v2/a/b/manifests/t1", raw, {"Content-Type": OCI})
        assert (made.status, made.headers["Docker-Content-Digest"]) == (201, fr.digest_of(raw))
        assert ask(found, "HEAD", "/v2/a/b/manifests/t1").status == 404
        for reference in ("t1", fr.digest_of(raw)):
            got = ask(found, "GET", f"/v2/a/b/manifests/{reference}", headers={"Accept": f"{INDEX}, {OCI}"})
            assert (got.status, got.body, got.headers["Content-Type"]) == (200, raw, OCI)
        assert json.loads(ask(found, "GET", "/v2/a/b/tags/list").body)["tags"] == ["t1"]


@pytest.mark.parametrize("kind", ["fault", "docker-registry"])
def test_basic_credentials_are_asked_for(kind: Any, tmp_path: Path) -> None:
    with any_registry(kind, tmp_path, basic=True) as found:
        assert ask(found, "GET", "/v2/").headers["WWW-Authenticate"].startswith("Basic realm=")
        assert ask(found, "GET", "/v2/", headers=basic(USER, "wrong")).status == 401
        assert ask(found, "GET", "/v2/", headers=basic(USER, PASSWORD)).status == 200


@pytest.mark.parametrize("kind", ["fault", "docker-registry"])
def test_a_break_in_a_patch_loses_the_upload_of_distribution_2_8(kind: Any, tmp_path: Path) -> None:
    """Measured: the bytes stay on the disk, and no Location that a client can have leads to them any more."""
    with any_registry(kind, tmp_path) as found:
        if found.fault is not None:
            found.fault.switches.sessions = "distribution-2.8"
        first = begin(found)
        one = ask(found, "PATCH", first, DATA[:100_000], chunk(0, 100_000))
        cut_patch(found.host, one.location, 100_000, DATA[100_000:150_000], 200_000)
        for location in (first, one.location):
            status = ask(found, "GET", location)
            assert (status.status, status.code()) == (404, "BLOB_UPLOAD_INVALID")
        assert ask(found, "PATCH", one.location, DATA[100_000:], chunk(100_000, 300_000)).status == 404
        assert ask(found, "PUT", close(one.location), DATA[100_000:]).status == 404
        if found.storage is not None:
            kept = [path.stat().st_size for path in found.storage.rglob("_uploads/*/data")]
            assert kept == [150_000]


@pytest.mark.parametrize("kind", ["fault", "docker-registry"])
def test_a_break_before_the_first_byte_of_a_patch_loses_nothing(kind: Any, tmp_path: Path) -> None:
    with any_registry(kind, tmp_path) as found:
        if found.fault is not None:
            found.fault.switches.sessions = "distribution-2.8"
        one = ask(found, "PATCH", begin(found), DATA[:100_000], chunk(0, 100_000))
        cut_patch(found.host, one.location, 100_000, b"", 200_000)
        status = ask(found, "GET", one.location)
        assert (status.status, status.headers["Range"]) == (204, "0-99999")
        assert ask(found, "PUT", close(status.location), DATA[100_000:], chunk(100_000, 300_000)).status == 201


def test_both_registries_speak_tls_with_a_certificate_of_an_own_authority(tmp_path: Path) -> None:
    authority = make_authority(tmp_path / "ca")
    context = ssl.create_default_context(cafile=str(authority.ca))
    with FaultRegistry(ssl_context=authority.server_context()) as own:
        own.put_blob("a", DATA)
        assert ask(own, "GET", f"/v2/a/blobs/{DIGEST}", context=context).body == DATA
        with pytest.raises(ssl.SSLCertVerificationError):
            ask(own, "GET", "/v2/", context=ssl.create_default_context())
        own.faults.once(fr.ResetInAnswer(after_bytes=10))
        with pytest.raises((ConnectionResetError, http.client.IncompleteRead)):  # Python's ssl makes an end of a reset
            ask(own, "GET", f"/v2/a/blobs/{DIGEST}", context=context)
    with docker_registry(tmp_path / "real", tls=authority) as real:
        assert real.url.startswith("https://")
        assert ask(real, "GET", "/v2/", context=context).status == 200


# How strict it is about blobs and uploads


def test_a_break_in_a_patch_keeps_the_bytes_and_the_last_location_tells_the_offset(registry: FaultRegistry) -> None:
    one = ask(registry, "PATCH", begin(registry), DATA[:100_000], chunk(0, 100_000))
    cut_patch(registry.host, one.location, 100_000, DATA[100_000:150_000], 200_000)
    status = ask(registry, "GET", one.location)
    assert (status.status, status.headers["Range"]) == (204, "0-149999")
    wrong = ask(registry, "PATCH", status.location, DATA[100_000:], chunk(100_000, 300_000))
    assert (wrong.status, wrong.headers["Range"]) == (416, "0-149999")
    rest = ask(registry, "PATCH", wrong.location, DATA[150_000:], chunk(150_000, 300_000))
    assert ask(registry, "PUT", close(rest.location), b"").status == 201
    assert b"".join(registry.repository("a/b").blobs[DIGEST].read(0, 300_000)) == DATA


def test_a_status_request_overtakes_a_writer_that_hangs(registry: FaultRegistry) -> None:
    location = begin(registry)
    parts = urlsplit(location)
    with socket.create_connection(("127.0.0.1", registry.port), timeout=5) as sock:
        head = f"PATCH {parts.path}?{parts.query} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n"
        sock.sendall(head.encode() + DATA[:10])
        time.sleep(0.05)
        status = ask(registry, "GET", location)
        assert status.headers["Range"] == "0-9"
        sock.sendall(DATA[10:1000])
        with pytest.raises(ConnectionResetError):
            sock.recv(100)
    assert ask(registry, "PUT", close(status.location), DATA[10:], chunk(10, 300_000)).status == 201


def test_a_lost_answer_leaves_the_last_location_good_for_a_question_only(registry: FaultRegistry) -> None:
    location = begin(registry)
    registry.faults.once(fr.Reset(handled=True), "upload-patch")
    with pytest.raises((ConnectionResetError, http.client.RemoteDisconnected)):
        ask(registry, "PATCH", location, DATA[:1000], chunk(0, 1000))
    assert ask(registry, "PATCH", location, DATA[1000:], chunk(1000, 300_000)).status == 404
    status = ask(registry, "GET", location)
    assert (status.status, status.headers["Range"]) == (204, "0-999")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({**OCTETS, "Content-Range": "bytes 0-9/*"}, 400),
        ({**OCTETS, "Content-Range": "0-10"}, 400),
        ({**OCTETS, "Content-Range": "9-0"}, 400),
        ({**OCTETS, "Content-Range": "5-14"}, 416),
        ({"Content-Range": "0-9"}, 400),
        ({**OCTETS, "Content-Range": "0-9"}, 202),
        ({}, 202),
    ],
)
def test_a_first_chunk_says_where_it_is_or_is_a_stream(
    registry: FaultRegistry, headers: dict[str, str], status: int
) -> None:
    assert ask(registry, "PATCH", begin(registry), DATA[:10], headers).status == status


def test_a_later_chunk_must_say_where_it_is(registry: FaultRegistry) -> None:
    one = ask(registry, "PATCH", begin(registry), DATA[:10])
    assert ask(registry, "PATCH", one.location, DATA[10:20], OCTETS).status == 400


def test_uploads_end_and_are_unknown_then(registry: FaultRegistry) -> None:
    location = begin(registry)
    assert ask(registry, "DELETE", location).status == 204
    gone = ask(registry, "GET", location)
    assert (gone.status, gone.code()) == (404, "BLOB_UPLOAD_UNKNOWN")
    other = begin(registry)
    assert ask(registry, "GET", other.replace("/v2/a/b/", "/v2/c/")).status == 404
    registry.uploads.expire()
    assert ask(registry, "PATCH", other, b"x").status == 404


def test_a_wrong_digest_ends_the_upload(registry: FaultRegistry) -> None:
    location = begin(registry)
    wrong = ask(registry, "PUT", close(location), DATA[:-1])
    assert (wrong.status, wrong.code()) == (400, "DIGEST_INVALID")
    assert ask(registry, "PUT", close(location), DATA).status == 404
    assert ask(registry, "PUT", begin(registry), b"").code() == "DIGEST_INVALID"
    registry.switches.mismatch_keeps_upload = True
    location = begin(registry)
    assert ask(registry, "PUT", close(location), b"").status == 400
    assert ask(registry, "GET", location).status == 204


def test_a_monolithic_post_is_stored_or_opens_an_upload(registry: FaultRegistry) -> None:
    path = f"/v2/a/blobs/uploads/?digest={DIGEST}"
    assert ask(registry, "POST", path, DATA, OCTETS).status == 201
    registry.switches.monolithic_post = False
    assert ask(registry, "POST", path, DATA, OCTETS).status == 202


def test_a_small_chunk_may_only_be_the_last_where_a_minimum_is_announced(registry: FaultRegistry) -> None:
    registry.switches.chunk_min_bytes = 1000
    first = ask(registry, "POST", "/v2/a/blobs/uploads/", b"")
    assert first.headers["OCI-Chunk-Min-Length"] == "1000"
    one = ask(registry, "PATCH", first.location, DATA[:999], chunk(0, 999))
    assert ask(registry, "PATCH", one.location, DATA[999:], chunk(999, 300_000)).status == 400


def test_big_uploads_need_no_memory_and_are_checked(registry: FaultRegistry) -> None:
    registry.switches.keep_bytes = False
    assert ask(registry, "PUT", close(begin(registry)), DATA[1:]).status == 400
    assert ask(registry, "PUT", close(begin(registry)), DATA).status == 201
    assert ask(registry, "HEAD", f"/v2/a/b/blobs/{DIGEST}").headers["Content-Length"] == "300000"
    assert registry.repository("a/b").blobs[DIGEST].piece is None


def test_a_chunked_body_is_counted_without_its_framing(registry: FaultRegistry) -> None:
    parts = urlsplit(begin(registry))
    connection = http.client.HTTPConnection(registry.host, timeout=5)
    with contextlib.closing(connection):
        pieces = (DATA[start : start + 70_000] for start in range(0, 300_000, 70_000))
        connection.request("PUT", close(f"{parts.path}?{parts.query}"), pieces, OCTETS, encode_chunked=True)
        assert connection.getresponse().status == 201
    assert registry.requests("upload-put")[0].body_bytes_read == 300_000


def test_generated_blobs_are_served_and_synthetic_ones_are_only_known(registry: FaultRegistry) -> None:
    blob = fr.repeated(b"0123456789", 1_000_003)
    registry.add_blob("a", blob)
    whole = ask(registry, "GET", f"/v2/a/blobs/{blob.digest}").body
    assert (len(whole), fr.digest_of(whole)) == (1_000_003, blob.digest)
    assert ask(registry, "GET", f"/v2/a/blobs/{blob.digest}", headers={"Range": "bytes=-3"}).body == b"012"
    registry.add_synthetic("a", DIGEST, 33_000_000_000)
    assert ask(registry, "HEAD", f"/v2/a/blobs/{DIGEST}").headers["Content-Length"] == "33000000000"
    assert ask(registry, "POST", f"/v2/b/blobs/uploads/?mount={DIGEST}&from=a", b"").status == 201


def test_a_get_of_a_synthetic_blob_fails_the_test() -> None:
    with pytest.raises(AssertionError, match="whose bytes"), FaultRegistry() as registry:  # noqa: PT012
        registry.add_synthetic("a", DIGEST, 5)
        assert ask(registry, "GET", f"/v2/a/blobs/{DIGEST}").status == 500


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v2/UPPER/tags/list", 400),
        ("GET", "/v2/a/blobs/sha256:00", 400),
        ("GET", f"/v2/a/blobs/{DIGEST}", 404),
        ("GET", "/v2/none/tags/list", 404),
        ("POST", f"/v2/a/blobs/{DIGEST}", 404),
        ("GET", "/v2/a/manifests/.x", 400),
        ("GET", "/v1/", 404),
        ("GET", "/v2/a/blobs/uploads/", 405),
    ],
)
def test_names_and_ways_are_checked(registry: FaultRegistry, method: str, path: str, status: int) -> None:
    answer = ask(registry, method, path, b"" if method == "POST" else None)
    assert answer.status == status
    assert answer.code()


@pytest.mark.parametrize(
    "head",
    [
        b"\x16\x03\x01\x02\x00\x01",
        b"GET /v2/ HTTP/1.0\r\nHost: x\r\n\r\n",
        b"GET /v2/ HTTP/1.1\r\n\r\n",
        b"GET /v2/ HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
        b"GET /v2/ HTTP/1.1\r\nHost: x\r\nBad header: y\r\n\r\n",
        b"PUT /v2/ HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"PUT /v2/ HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
    ],
)
def test_what_is_not_http_is_refused(registry: FaultRegistry, head: bytes) -> None:
    with socket.create_connection(("127.0.0.1", registry.port), timeout=5) as sock:
        sock.sendall(head)
        assert sock.recv(1000).startswith(b"HTTP/1.1 400 ")


# How strict it is about manifests, referrers and tags


def push_image(found: FaultRegistry | LocalRegistry, repository: str) -> bytes:
    """Push the blobs of an image of one layer; its manifest."""
    config = json.dumps({"architecture": "arm64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": []}}).encode()
    for blob in (config, DATA):
        assert ask(found, "PUT", close(begin(found, repository), fr.digest_of(blob)), blob).status == 201
    return json.dumps(image(fr.digest_of(config), len(config))).encode()


def image(config: str, size: int, **more: Any) -> dict[str, Any]:
    layer = {"mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": DIGEST, "size": len(DATA)}
    return {
        "schemaVersion": 2,
        "mediaType": OCI,
        "config": {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": config, "size": size},
        "layers": [layer],
        **more,
    }


def change(document: dict[str, Any], *path: str | int, value: Any) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(json.dumps(document))
    place: Any = made
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return made


@pytest.mark.parametrize(
    ("path", "value", "status", "code"),
    [
        (("layers", 0, "size"), 1, 400, "MANIFEST_INVALID"),
        (("layers", 0, "size"), "1", 400, "MANIFEST_INVALID"),
        (("layers", 0, "digest"), "sha256:" + "0" * 64, 400, "MANIFEST_BLOB_UNKNOWN"),
        (("layers", 0, "digest"), "sha256:0", 400, "MANIFEST_INVALID"),
        (("layers", 0, "data"), base64.b64encode(b"x").decode(), 400, "MANIFEST_INVALID"),
        (("config", "size"), True, 400, "MANIFEST_INVALID"),
        (("config",), None, 400, "MANIFEST_INVALID"),
        (("layers",), {}, 400, "MANIFEST_INVALID"),
        (("layers", 0, "mediaType"), "application/vnd.docker.image.rootfs.diff.tar.gzip", 400, "MANIFEST_INVALID"),
        (("mediaType",), DOCKER, 400, "MANIFEST_INVALID"),
        (("schemaVersion",), 1, 400, "MANIFEST_INVALID"),
        (("manifests",), [], 400, "MANIFEST_INVALID"),
        (("subject",), {"digest": DIGEST}, 400, "MANIFEST_INVALID"),
    ],
)
def test_a_manifest_is_checked(registry: FaultRegistry, path: tuple[str], value: Any, status: int, code: str) -> None:
    document = json.loads(push_image(registry, "a"))
    raw = json.dumps(change(document, *path, value=value)).encode()
    answer = ask(registry, "PUT", "/v2/a/manifests/t", raw, {"Content-Type": OCI})
    assert (answer.status, answer.code()) == (status, code)


def test_a_manifest_must_have_its_digest_and_type_and_a_bounded_size(registry: FaultRegistry) -> None:
    raw = push_image(registry, "a")
    kind = {"Content-Type": OCI}
    assert ask(registry, "PUT", f"/v2/a/manifests/{DIGEST}", raw, kind).code() == "DIGEST_INVALID"
    assert ask(registry, "PUT", "/v2/a/manifests/t", raw, {"Content-Type": INDEX}).code() == "MANIFEST_INVALID"
    assert ask(registry, "PUT", "/v2/a/manifests/t", raw).code() == "MANIFEST_INVALID"
    assert ask(registry, "PUT", "/v2/a/manifests/t", b" " * (4 << 20) + raw, kind).status == 413
    assert ask(registry, "PUT", "/v2/b/manifests/t", raw, kind).code() == "MANIFEST_BLOB_UNKNOWN"
    assert ask(registry, "PUT", f"/v2/a/manifests/{fr.digest_of(raw)}", raw, kind).status == 201


def test_an_index_needs_its_children(registry: FaultRegistry) -> None:
    seeded = registry.seed_image("a")
    entry = {"mediaType": OCI, "digest": seeded.digest, "size": len(seeded.raw)}
    for changed, status in ((entry, 201), ({**entry, "digest": DIGEST}, 404), ({**entry, "size": 1}, 400)):
        raw = json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": [changed]}).encode()
        assert ask(registry, "PUT", "/v2/a/manifests/i", raw, {"Content-Type": INDEX}).status == status


def test_docker_images_are_of_one_family(registry: FaultRegistry) -> None:
    seeded = registry.seed_image("a", docker=True)
    kind = {"Content-Type": DOCKER}
    assert ask(registry, "PUT", "/v2/a/manifests/t", seeded.raw, kind).status == 201
    mixed = change(json.loads(seeded.raw), "layers", 0, "mediaType", value="application/vnd.oci.image.layer.v1.tar")
    assert ask(registry, "PUT", "/v2/a/manifests/t", json.dumps(mixed).encode(), kind).status == 400


def attach(registry: FaultRegistry, subject: str, kind: str) -> Reply:
    seeded = registry.seed_image("a")
    more = {
        "artifactType": kind,
        "subject": {"mediaType": OCI, "digest": subject, "size": 5},
        "annotations": {"k": kind},
    }
    raw = json.dumps({**json.loads(seeded.raw), **more}).encode()
    return ask(registry, "PUT", f"/v2/a/manifests/{fr.digest_of(raw)}", raw, {"Content-Type": OCI})


def test_referrers_are_listed_filtered_and_paged(registry: FaultRegistry) -> None:
    assert attach(registry, DIGEST, "text/x").headers["OCI-Subject"] == DIGEST
    attach(registry, DIGEST, "text/y")
    path = f"/v2/a/referrers/{DIGEST}"
    found = ask(registry, "GET", path)
    assert found.headers["Content-Type"] == INDEX
    assert {one["artifactType"] for one in json.loads(found.body)["manifests"]} == {"text/x", "text/y"}
    one = ask(registry, "GET", path + "?artifactType=text/x")
    assert one.headers["OCI-Filters-Applied"] == "artifactType"
    assert [entry["annotations"] for entry in json.loads(one.body)["manifests"]] == [{"k": "text/x"}]
    registry.switches.referrers_page = 1
    first = ask(registry, "GET", path)
    second = ask(registry, "GET", first.headers["Link"].split(">")[0][1:])
    assert len(json.loads(first.body)["manifests"] + json.loads(second.body)["manifests"]) == 2
    assert "Link" not in second.headers
    assert json.loads(ask(registry, "GET", f"/v2/new/referrers/{DIGEST}").body)["manifests"] == []


def test_referrers_can_be_missing_unfiltered_or_of_a_wrong_type(registry: FaultRegistry) -> None:
    path = f"/v2/a/referrers/{DIGEST}?artifactType=text/x"
    attach(registry, DIGEST, "text/y")
    registry.switches.referrers_filter = False
    answer = ask(registry, "GET", path)
    assert "OCI-Filters-Applied" not in answer.headers
    assert len(json.loads(answer.body)["manifests"]) == 1
    registry.switches.referrers_type = "text/plain"
    assert ask(registry, "GET", path).headers["Content-Type"] == "text/plain"
    registry.switches.referrers = False
    assert ask(registry, "GET", path).status == 404
    assert "OCI-Subject" not in attach(registry, DIGEST, "text/z").headers


def test_tags_come_in_pages(registry: FaultRegistry) -> None:
    for tag in ("c", "a", "b"):
        registry.seed_image("r", tag)
    first = ask(registry, "GET", "/v2/r/tags/list?n=2")
    assert json.loads(first.body) == {"name": "r", "tags": ["a", "b"]}
    second = ask(registry, "GET", first.headers["Link"].split(">")[0][1:])
    assert json.loads(second.body)["tags"] == ["c"]
    assert "Link" not in second.headers


def test_deletes(registry: FaultRegistry) -> None:
    seeded = registry.seed_image("a", "t")
    assert ask(registry, "DELETE", f"/v2/a/blobs/{seeded.layers[0]}").status == 202
    assert ask(registry, "DELETE", f"/v2/a/blobs/{seeded.layers[0]}").status == 404
    assert ask(registry, "DELETE", f"/v2/a/manifests/{seeded.digest}").status == 202
    assert registry.repository("a").tags == {}
    registry.switches.delete = False
    assert ask(registry, "DELETE", f"/v2/a/blobs/{seeded.config}").status == 405


@pytest.mark.parametrize("status", [400, 403, 409, 412])
def test_C55_an_immutable_tag_takes_its_digest_again_and_no_other(registry: FaultRegistry, status: Any) -> None:
    registry.switches.immutable = status
    kind = {"Content-Type": OCI}
    first, second = registry.seed_image("a", "t"), registry.seed_image("a", layers=(b"other",))
    assert ask(registry, "PUT", "/v2/a/manifests/t", first.raw, kind).status == 201
    assert ask(registry, "PUT", "/v2/a/manifests/t", second.raw, kind).status == status
    registry.switches.immutable_same = True
    assert ask(registry, "PUT", "/v2/a/manifests/t", first.raw, kind).status == status


def test_C52_another_writer_may_come_between(registry: FaultRegistry) -> None:
    first, second = registry.seed_image("a", "t"), registry.seed_image("a", layers=(b"other",))
    seen: list[str] = []
    registry.switches.before_put_tag = lambda repository, tag: seen.append(repository.tags[tag])
    registry.switches.after_put_tag = lambda repository, tag: repository.tags.update({tag: first.digest})
    assert ask(registry, "PUT", "/v2/a/manifests/t", second.raw, {"Content-Type": OCI}).status == 201
    assert (seen, registry.repository("a").tags["t"]) == ([first.digest], first.digest)


# who may


def basic(user: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


def challenge(answer: Reply) -> dict[str, str]:
    scheme, _, rest = answer.headers["WWW-Authenticate"].partition(" ")
    assert scheme == "Bearer"
    return {key: value.strip('"') for key, value in (part.split("=", 1) for part in rest.split('",'))}


def token(registry: FaultRegistry, scope: str, headers: dict[str, str] | None = None) -> dict[str, str]:
    query = urlencode({"service": "fault registry", "scope": scope})
    answer = ask(registry, "GET", f"/token?{query}", headers=headers)
    assert answer.status == 200
    return {"Authorization": "Bearer " + json.loads(answer.body)["token"]}


@pytest.fixture
def guarded() -> Iterator[FaultRegistry]:
    with FaultRegistry(auth=Auth(mode="bearer", users={USER: PASSWORD}, anonymous=frozenset({"open"}))) as made:
        yield made


def test_a_token_has_scopes_for_repositories_and_actions(guarded: FaultRegistry) -> None:
    guarded.put_blob("a", DATA)
    refused = ask(guarded, "GET", f"/v2/a/blobs/{DIGEST}")
    asked = challenge(refused)
    assert refused.status == 401
    assert asked == {"realm": f"{guarded.url}/token", "service": "fault registry", "scope": "repository:a:pull"}
    mine = basic(USER, PASSWORD)
    pull = token(guarded, "repository:a:pull", mine)
    assert ask(guarded, "GET", f"/v2/a/blobs/{DIGEST}", headers=pull).body == DATA
    other = ask(guarded, "GET", f"/v2/b/blobs/{DIGEST}", headers=pull)
    assert challenge(other)["error"] == "insufficient_scope"
    refused = ask(guarded, "POST", "/v2/a/blobs/uploads/", b"", pull)
    assert challenge(refused)["scope"] == "repository:a:pull,push"
    push = token(guarded, "repository:a:pull,push", mine)
    assert ask(guarded, "POST", "/v2/a/blobs/uploads/", b"", push).status == 202
    assert guarded.requests("token")[0].headers["authorization"] == mine["Authorization"]


def test_nobody_gets_a_token_that_pulls_what_is_open_only(guarded: FaultRegistry) -> None:
    guarded.put_blob("open", DATA)
    mine = token(guarded, "repository:open:pull,push")
    assert ask(guarded, "GET", f"/v2/open/blobs/{DIGEST}", headers=mine).status == 200
    assert ask(guarded, "POST", "/v2/open/blobs/uploads/", b"", mine).status == 401
    wrong = ask(guarded, "GET", "/token?service=fault+registry", headers=basic(USER, "wrong"))
    assert wrong.status == 401


def test_C44_a_mount_needs_pull_on_its_source(guarded: FaultRegistry) -> None:
    guarded.put_blob("src", DATA)
    path = f"/v2/dst/blobs/uploads/?mount={DIGEST}&from=src"
    mine = basic(USER, PASSWORD)
    asked = challenge(ask(guarded, "POST", path, b""))
    assert asked["scope"] == "repository:dst:pull,push repository:src:pull"
    narrow = token(guarded, "repository:dst:pull,push", mine)
    assert ask(guarded, "POST", path, b"", narrow).status == 202
    guarded.switches.mount_unreadable = 401
    assert ask(guarded, "POST", path, b"", narrow).status == 401
    assert ask(guarded, "POST", path, b"", token(guarded, asked["scope"], mine)).status == 201


def test_C46_tokens_expire_by_time_requests_and_bytes(guarded: FaultRegistry) -> None:
    guarded.put_blob("a", DATA)
    path, scope = f"/v2/a/blobs/{DIGEST}", "repository:a:pull,push"
    mine = basic(USER, PASSWORD)
    guarded.auth.expire_after_requests = 1
    held = token(guarded, scope, mine)
    assert [ask(guarded, "HEAD", path, headers=held).status for _ in range(2)] == [200, 401]
    guarded.auth.expire_after_requests = None
    guarded.auth.lifetime = -1
    assert ask(guarded, "HEAD", path, headers=token(guarded, scope, mine)).status == 401
    guarded.auth.lifetime = 300
    guarded.auth.expire_after_bytes = 200_000
    held = token(guarded, scope, mine)
    assert [ask(guarded, "GET", path, headers=held).status for _ in range(2)] == [200, 401]
    held = token(guarded, scope, mine)
    location = ask(guarded, "POST", "/v2/a/blobs/uploads/", b"", held).location
    cut = ask(guarded, "PATCH", location, DATA, {**chunk(0, 300_000), **held})
    assert challenge(cut)["error"] == "invalid_token"
    status = ask(guarded, "GET", location, headers=token(guarded, scope, mine))
    assert 200_000 <= int(status.headers["Range"][2:]) < 300_000


def test_a_fault_expires_the_token_of_a_request(guarded: FaultRegistry) -> None:
    held = token(guarded, "repository:a:pull", basic(USER, PASSWORD))
    guarded.faults.once(fr.ExpireToken(), "tags", skip=1)
    guarded.seed_image("a", "t")
    assert [ask(guarded, "GET", "/v2/a/tags/list", headers=held).status for _ in range(2)] == [200, 401]


def test_refresh_tokens_by_oauth2(guarded: FaultRegistry) -> None:
    query = "service=fault+registry&scope=repository:a:pull&offline_token=true"
    given = json.loads(ask(guarded, "GET", f"/token?{query}", headers=basic(USER, PASSWORD)).body)
    form = {
        "grant_type": "refresh_token",
        "service": "fault registry",
        "client_id": "test",
        "scope": "repository:a:pull",
        "refresh_token": given["refresh_token"],
    }
    answer = ask(guarded, "POST", "/token", urlencode(form).encode())
    held = {"Authorization": "Bearer " + json.loads(answer.body)["access_token"]}
    guarded.seed_image("a", "t")
    assert ask(guarded, "GET", "/v2/a/tags/list", headers=held).status == 200
    wrong = ask(guarded, "POST", "/token", urlencode({**form, "refresh_token": "x"}).encode())
    assert wrong.status == 401
    guarded.auth.oauth2 = False
    assert ask(guarded, "POST", "/token", urlencode(form).encode()).status == 404


def test_the_realm_can_be_another_origin() -> None:
    auth = Auth(mode="bearer", users={USER: PASSWORD})
    with FaultRegistry(auth=auth) as registry, FaultRegistry(auth=auth) as issuer:
        auth.realm = f"{issuer.url}/token"
        assert challenge(ask(registry, "GET", "/v2/"))["realm"].startswith(issuer.url)
        held = token(issuer, "repository:a:pull", basic(USER, PASSWORD))
        assert ask(registry, "GET", "/v2/", headers=held).status == 200


# faults


@pytest.fixture
def filled(registry: FaultRegistry) -> FaultRegistry:
    registry.put_blob("a", DATA)
    return registry


BLOB = f"/v2/a/blobs/{DIGEST}"
BROKEN = (ConnectionResetError, http.client.RemoteDisconnected)


def test_resets_and_closes_in_an_answer(filled: FaultRegistry) -> None:
    filled.faults.once(fr.Reset())
    filled.faults.once(fr.Reset(handled=True))
    filled.faults.once(fr.ResetInAnswer(after_bytes=100_001))
    filled.faults.once(fr.CloseInAnswer(after_bytes=100_001))
    for expected in (BROKEN, BROKEN, ConnectionResetError):
        with pytest.raises(expected):
            ask(filled, "GET", BLOB)
    with pytest.raises(http.client.IncompleteRead) as cut:
        ask(filled, "GET", BLOB)
    assert len(cut.value.partial) == 100_001
    assert [one.sent for one in filled.log] == [0, 0, 100_001, 100_001]
    assert [one.fault for one in filled.log] == ["Reset", "Reset", "ResetInAnswer", "CloseInAnswer"]
    assert filled.faults.pending() == []
    assert ask(filled, "GET", BLOB).body == DATA


@pytest.mark.parametrize("how", ["reset", "close", 413, 502])
def test_C47_a_request_is_cut_and_the_registry_keeps_what_it_got(registry: FaultRegistry, how: Any) -> None:
    location = begin(registry)
    registry.faults.once(fr.CutRequest(after_bytes=70_001, how=how), "upload-patch")
    if isinstance(how, int):
        assert ask(registry, "PATCH", location, DATA, chunk(0, 300_000)).status == how
    else:
        with pytest.raises((*BROKEN, BrokenPipeError)):
            ask(registry, "PATCH", location, DATA, chunk(0, 300_000))
    assert ask(registry, "GET", location).headers["Range"] == "0-70000"
    assert registry.requests("upload-patch")[0].body_bytes_read == 70_001


def test_one_bit_is_flipped(filled: FaultRegistry) -> None:
    filled.faults.once(fr.FlipBit(at=290_000))
    got = ask(filled, "GET", BLOB).body
    assert [at for at in range(len(DATA)) if got[at] != DATA[at]] == [290_000]


def test_answers_are_slow(filled: FaultRegistry) -> None:
    filled.faults.once(fr.Stall(after_bytes=1000, seconds=0.2))
    filled.faults.once(fr.Drip(seconds=0.001))
    for least in (0.2, 0.1):
        before = time.monotonic()
        assert ask(filled, "GET", BLOB).body == DATA
        assert time.monotonic() - before > least
    filled.faults.once(fr.Hang(seconds=0.1))
    with pytest.raises(BROKEN):
        ask(filled, "GET", BLOB)


def test_the_end_does_not_wait_for_slow_answers() -> None:
    before = time.monotonic()
    with FaultRegistry() as registry, socket.create_connection(("127.0.0.1", registry.port)) as sock:
        registry.faults.once(fr.Hang(seconds=60))
        sock.sendall(b"GET /v2/ HTTP/1.1\r\nHost: x\r\n\r\n")
        time.sleep(0.05)
        assert len(registry.log) == 1
    assert time.monotonic() - before < 2


def test_C51_busy_in_all_forms(filled: FaultRegistry) -> None:
    filled.faults.once(fr.Busy(retry_after=3), times=2)
    filled.faults.once(fr.Busy(retry_after=60, form="date", status=503))
    filled.faults.once(fr.Busy(retry_after=None))
    answers = [ask(filled, "GET", BLOB) for _ in range(5)]
    assert [one.status for one in answers] == [429, 429, 503, 429, 200]
    assert [answers[at].headers["Retry-After"] for at in (0, 3)] == ["3", None]
    assert 50 < parsedate_to_datetime(answers[2].headers["Retry-After"]).timestamp() - time.time() <= 60


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 416, 500, 502, 503, 504])
def test_any_status_can_be_answered(filled: FaultRegistry, status: int) -> None:
    filled.faults.add(Fault(action=fr.Answer(status=status, code="DENIED"), method="GET", path="sha256:", times=2))
    assert ask(filled, "HEAD", BLOB).status == 200
    assert [ask(filled, "GET", BLOB).status for _ in range(3)] == [status, status, 200]


def test_errors_can_be_anything(filled: FaultRegistry) -> None:
    filled.faults.once(fr.Answer(status=502, body=fr.NOT_JSON))
    filled.faults.once(fr.Answer(status=403, body=fr.CONTROL, media_type="application/json"))
    filled.faults.once(fr.HugeError(size=1 << 30))
    assert ask(filled, "GET", BLOB).body == fr.NOT_JSON
    assert b"\x1b" in ask(filled, "GET", BLOB).body
    assert take(filled, 100_000).startswith(b"HTTP/1.1 500 Internal Server Error\r\n")


def take(registry: FaultRegistry, size: int) -> bytes:
    """The first bytes of the answer to GET of the blob, head and all; then the connection is closed."""
    with socket.create_connection(("127.0.0.1", registry.port), timeout=5) as sock:
        sock.sendall(f"GET {BLOB} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        data = b""
        while len(data) < size and (piece := sock.recv(65536)):
            data += piece
    return data


def test_bodies_without_length_or_without_end(filled: FaultRegistry) -> None:
    filled.faults.once(fr.Chunked())
    filled.faults.once(fr.Unframed())
    filled.faults.once(fr.Endless())
    for name, value in (("Transfer-Encoding", "chunked"), ("Connection", "close")):
        answer = ask(filled, "GET", BLOB)
        assert (answer.body, answer.headers[name], answer.headers["Content-Length"]) == (DATA, value, None)
    assert len(take(filled, 2_000_000)) >= 2_000_000
    filled.faults.once(fr.HugeHeaders(count=3, size=100_000))
    with pytest.raises(http.client.LineTooLong):
        ask(filled, "GET", BLOB)


def test_C43_headers_are_dropped_or_wrong(filled: FaultRegistry) -> None:
    filled.faults.once(fr.DropHeader(name="docker-content-digest"))
    filled.faults.once(fr.SetHeader(name="Docker-Content-Digest", value="sha256:" + "0" * 64))
    assert "Docker-Content-Digest" not in ask(filled, "HEAD", BLOB).headers
    assert ask(filled, "HEAD", BLOB).headers["Docker-Content-Digest"].endswith("000")
    assert ask(filled, "HEAD", BLOB).headers["Docker-Content-Digest"] == DIGEST
    filled.switches.content_digest = False
    assert "Docker-Content-Digest" not in ask(filled, "HEAD", BLOB).headers


def test_C56_gzip_where_the_client_allows_it(filled: FaultRegistry) -> None:
    filled.faults.always(fr.Gzip(), "blob")
    plain = ask(filled, "GET", BLOB, headers={"Accept-Encoding": "identity"})
    packed = ask(filled, "GET", BLOB, headers={"Accept-Encoding": "gzip"})
    assert ("Content-Encoding" not in plain.headers, plain.body) == (True, DATA)
    assert (packed.headers["Content-Encoding"], gzip.decompress(packed.body)) == ("gzip", DATA)
    filled.faults.clear()
    filled.faults.once(fr.Gzip(force=True))
    assert ask(filled, "GET", BLOB).headers["Content-Encoding"] == "gzip"


def test_ranges_are_answered_wrongly(filled: FaultRegistry) -> None:
    for action in (
        fr.IgnoreRange(),
        fr.ShiftRange(by=5),
        fr.ShiftRange(by=5, honest=False),
        fr.DropHeader(name="Content-Range"),
    ):
        filled.faults.once(action)
    found = [ask(filled, "GET", BLOB, headers={"Range": "bytes=10-19"}) for _ in range(4)]
    assert [one.status for one in found] == [200, 206, 206, 206]
    assert [one.headers["Content-Range"] for one in found] == [
        None,
        "bytes 15-19/300000",
        "bytes 10-19/300000",
        None,
    ]
    assert [one.body for one in found] == [DATA, DATA[15:20], DATA[15:20], DATA[10:20]]


def test_C50_a_redirect_leads_to_an_origin_that_refuses_credentials(filled: FaultRegistry) -> None:
    with FaultRegistry(storage=filled.storage) as bucket:
        filled.faults.always(fr.Redirect(to=f"{bucket.url}/cdn/{{digest}}"), "blob", method="GET")
        moved = ask(filled, "GET", BLOB, headers=basic(USER, PASSWORD))
        assert moved.status == 307
        assert ask(bucket, "GET", moved.location).body == DATA
        assert ask(bucket, "GET", moved.location, headers=basic(USER, PASSWORD)).status == 400
        assert [("authorization" in one.headers) for one in bucket.requests("cdn")] == [False, True]


def test_redirects_can_be_loops_and_lead_inside(filled: FaultRegistry) -> None:
    filled.faults.once(fr.Redirect(to="{base}{path}", status=308))
    filled.faults.once(fr.Redirect(to="http://169.254.169.254/", status=302))
    assert ask(filled, "GET", BLOB + "?x=1").location == f"{filled.url}{BLOB}?x=1"
    assert ask(filled, "GET", BLOB).location == "http://169.254.169.254/"


def test_locations_take_all_forms(registry: FaultRegistry) -> None:
    registry.faults.once(fr.LocationForm(form="relative"), "upload-post")
    registry.faults.once(fr.LocationForm(form="origin", origin="http://other.example"), "upload-post")
    registry.faults.once(fr.DropHeader(name="Location"), "upload-post")
    found = [ask(registry, "POST", "/v2/a/blobs/uploads/", b"").headers["Location"] for _ in range(4)]
    assert found[0].startswith("/v2/a/blobs/uploads/")
    assert found[1].startswith("http://other.example/v2/a/blobs/uploads/")
    assert found[2] is None
    assert found[3].startswith(registry.url)


@pytest.mark.parametrize(("form", "expected"), [("first", "0-9"), ("last", "0-19")])
def test_C48_a_range_that_counts_wrongly(registry: FaultRegistry, form: Any, expected: str) -> None:
    registry.faults.always(fr.WrongCount(form=form))
    one = ask(registry, "PATCH", begin(registry), DATA[:10], chunk(0, 10))
    two = ask(registry, "PATCH", one.location, DATA[10:30], chunk(10, 30))
    assert two.headers["Range"] == expected
    assert ask(registry, "PUT", close(two.location, fr.digest_of(DATA[:30])), b"").status == 201


def test_C49_sizes_are_limited_and_patch_can_be_unknown(registry: FaultRegistry) -> None:
    registry.faults.always(fr.RefuseOver(limit=1000), "upload-put")
    registry.faults.always(fr.Answer(status=405, code="UNSUPPORTED"), "upload-patch")
    location = begin(registry)
    assert ask(registry, "PATCH", location, b"x").status == 405
    assert ask(registry, "PUT", close(location), DATA).status == 413
    small = DATA[:1000]
    assert ask(registry, "PUT", close(location, fr.digest_of(small)), small).status == 201


@pytest.mark.parametrize("status", [202, 400, 401, 403, 404])
def test_C45_a_mount_is_refused(filled: FaultRegistry, status: Any) -> None:
    filled.faults.always(fr.RefuseMount(status=status))
    assert ask(filled, "POST", f"/v2/b/blobs/uploads/?mount={DIGEST}&from=a", b"").status == status
    assert ask(filled, "POST", "/v2/b/blobs/uploads/", b"").status == 202


def test_C54_content_vanishes(registry: FaultRegistry) -> None:
    raw = push_image(registry, "a")
    registry.faults.once(fr.VanishBlob(), "manifest")
    registry.faults.once(fr.VanishManifest(), "manifest", skip=1)
    answers = []
    for _ in range(3):
        answers.append(ask(registry, "PUT", "/v2/a/manifests/t", raw, {"Content-Type": OCI}).status)
        registry.put_blob("a", DATA)
    found = ask(registry, "GET", "/v2/a/manifests/t", headers={"Accept": OCI}).status
    assert (answers, found) == ([400, 201, 201], 200)
    registry.faults.once(fr.VanishManifest(), "manifest")
    assert ask(registry, "PUT", "/v2/a/manifests/t", raw, {"Content-Type": OCI}).status == 201
    assert (registry.repository("a").tags, registry.repository("a").manifests) == ({}, {})


def test_a_tag_is_forgotten_and_a_manifest_altered(registry: FaultRegistry) -> None:
    seeded = registry.seed_image("a")
    registry.faults.once(fr.ForgetTag(), "manifest")
    assert ask(registry, "PUT", "/v2/a/manifests/t", seeded.raw, {"Content-Type": OCI}).status == 201
    assert registry.repository("a").tags == {}
    registry.faults.once(fr.Reformat(), "manifest")
    got = ask(registry, "GET", f"/v2/a/manifests/{seeded.digest}", headers={"Accept": OCI})
    assert (json.loads(got.body) == json.loads(seeded.raw), got.body == seeded.raw) == (True, False)


def test_faults_by_probability_repeat_with_their_seed(filled: FaultRegistry) -> None:
    def run() -> list[int]:
        filled.faults.clear()
        filled.faults.add(Fault(action=fr.Answer(status=500), times=None, probability=0.5, seed=3))
        return [ask(filled, "HEAD", BLOB).status for _ in range(20)]

    first = run()
    assert set(first) == {200, 500}
    assert run() == first


def test_random_faults_are_of_all_kinds_and_repeat_with_their_seed() -> None:
    one, two = random.Random(1), random.Random(1)
    found = [fr.random_fault(one) for _ in range(2000)]
    assert found == [fr.random_fault(two) for _ in range(2000)]
    # Other tests have actions of their own.
    ours = fr.Action.__module__.rpartition(".")[0]
    everything = {kind.__name__ for kind in fr.Action.__subclasses__() if kind.__module__.startswith(ours)}
    assert everything - {type(fault.action).__name__ for fault in found} == {"Hang"}
    assert all(fault.times is not None and fault.times <= 4 for fault in found)


# the log


def test_the_log_has_what_was_sent_where_and_how_much(filled: FaultRegistry) -> None:
    ask(filled, "GET", BLOB + "?a=1&a=2", headers=basic(USER, PASSWORD))
    ask(filled, "PUT", close(begin(filled)), DATA, OCTETS)
    get, post, put = filled.log
    assert (get.kind, get.repository, get.reference, get.status, get.sent) == ("blob", "a", DIGEST, 200, 300_000)
    assert (get.pairs, get.headers["authorization"]) == (
        (("a", "1"), ("a", "2")),
        basic(USER, PASSWORD)["Authorization"],
    )
    assert (post.kind, post.status, put.kind, put.body_bytes_read) == ("upload-post", 202, "upload-put", 300_000)
    assert (filled.bytes_sent, filled.bytes_received) == (300_000, 300_000)
    assert put.query["digest"] == DIGEST
    assert parse_qs(f"digest={DIGEST}")["digest"] == [put.query["digest"]]


def test_a_connection_is_kept_and_one_that_waits_for_100_gets_it(filled: FaultRegistry) -> None:
    with contextlib.closing(http.client.HTTPConnection(filled.host, timeout=5)) as connection:
        connection.connect()
        mine = connection.sock.getsockname()
        for _ in range(3):
            connection.request("GET", BLOB)
            assert connection.getresponse().read() == DATA
            assert connection.sock.getsockname() == mine
    parts = urlsplit(close(begin(filled)))
    with socket.create_connection(("127.0.0.1", filled.port), timeout=5) as sock:
        head = f"PUT {parts.path}?{parts.query} HTTP/1.1\r\nHost: x\r\nContent-Length: 300000\r\n"
        sock.sendall(f"{head}Expect: 100-continue\r\n\r\n".encode())
        assert sock.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        sock.sendall(DATA)
        assert sock.recv(1000).startswith(b"HTTP/1.1 201 ")


def test_two_origins_can_share_their_content_and_sha512_is_hashed(filled: FaultRegistry) -> None:
    digest = "sha512:" + hashlib.sha512(DATA).hexdigest()
    with FaultRegistry(storage=filled.storage, sha512=True) as other:
        assert ask(other, "HEAD", BLOB).status == 200
        assert ask(other, "PUT", close(begin(other), digest), DATA).status == 201
        assert ask(filled, "HEAD", f"/v2/a/b/blobs/{digest}").status == 200


@pytest.mark.tools
@pytest.mark.parametrize("mode", ["none", "basic", "bearer"])
def test_skopeo_pushes_and_pulls(mode: Any, tmp_path: Path) -> None:
    """Another client than ours finds nothing to complain about, nor does the registry about it."""
    skopeo = outside.tool("skopeo")
    credentials = f"{USER}:{PASSWORD}"
    with FaultRegistry(auth=Auth(mode=mode, users={USER: PASSWORD})) as registry:
        seeded = registry.seed_image("a/b", "t", layers=(gzip.compress(bytes(10240)),))
        here, there = f"docker://{registry.host}/a/b:t", f"docker://{registry.host}/c:t"
        out = ["--src-tls-verify=false", "--src-creds", credentials]
        back = ["--dest-tls-verify=false", "--dest-creds", credentials]
        for command in (["copy", *out, here, f"oci:{tmp_path}:t"], ["copy", *back, f"oci:{tmp_path}:t", there]):
            answer = outside.run(skopeo, "--insecure-policy", *command)
            assert answer.returncode == 0, answer.stderr
        assert registry.repository("c").tags == {"t": seeded.digest}
        assert {one.status for one in registry.log if one.status >= 400} <= {401, 404}

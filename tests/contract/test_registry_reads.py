"""Reading from registries: the bytes are right or there is one typed error, whatever the registry and the way do."""

from __future__ import annotations

import hashlib
import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from imgbuild.config import DEFAULT_LIMITS, MIB
from imgbuild.digest import Digest, VerifiedReader, chunks
from imgbuild.errors import (
    DigestMismatchError,
    ImgbuildError,
    LayoutError,
    MissingError,
    NetworkError,
    ProtocolError,
)
from imgbuild.model.ociindex import Index

from tests.support import fault_registry as fr
from tests.support.fault_registry import FaultRegistry
from tests.support.reading import DATA, DIGEST, NAME, SIZE, Client, Scripted
from tests.support.registries import KINDS, any_registry, make_authority

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.registries import RegistryKind

OCI = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"


def upload(url: str, path: str, data: bytes, kind: str) -> None:
    """PUT and POST by curl's simplest means: not by the client under test."""
    import urllib.request

    if kind == "blob":
        start = urllib.request.Request(f"{url}/v2/{NAME}/blobs/uploads/", method="POST", data=b"")  # noqa: S310
        with urllib.request.urlopen(start) as answer:  # noqa: S310
            place = answer.headers["Location"]
        place += ("&" if "?" in place else "?") + f"digest={fr.digest_of(data)}"
        kind = "application/octet-stream"
    else:
        place = f"{url}/v2/{NAME}/manifests/{path}"
    done = urllib.request.Request(place, data=data, method="PUT", headers={"Content-Type": kind})  # noqa: S310
    with urllib.request.urlopen(done) as answer:  # noqa: S310
        assert answer.status == 201


# both kinds of registry


@pytest.mark.parametrize("kind", KINDS)
def test_C43_manifests_and_blobs_are_read_as_the_bytes_that_were_pushed(kind: RegistryKind, tmp_path: Path) -> None:
    config = b'{"architecture": "arm64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": []}}'
    rows = [{"mediaType": "application/vnd.oci.image.layer.v1.tar+gzip", "digest": DIGEST, "size": SIZE}]
    kind_of_config = "application/vnd.oci.image.config.v1+json"
    head = {"mediaType": kind_of_config, "digest": fr.digest_of(config), "size": len(config)}
    raw = json.dumps({"schemaVersion": 2, "mediaType": OCI, "config": head, "layers": rows}, indent=3).encode()
    with any_registry(kind, tmp_path / "r") as found, Client() as client:
        for blob in (DATA, config):
            upload(found.url, "", blob, "blob")
        upload(found.url, "t", raw, OCI)
        repository = client.at(found.host)
        manifest = repository.manifest("t")
        assert (manifest.raw, manifest.descriptor) == (raw, repository.manifest(Digest.of(raw)).descriptor)
        assert manifest.descriptor.media_type == OCI
        assert repository.manifest_digest("t") == Digest.of(raw)
        assert repository.manifest_digest("nothing") is None
        assert client.read(found.host, DIGEST, SIZE) == DATA
        with client.stream(found.host, DIGEST, SIZE, 600_000) as stream:
            assert b"".join(chunks(stream)) == DATA[600_000:]
        for missing in ("nothing", Digest.of(b"nothing")):
            with pytest.raises(MissingError, match=r"is not in the registry; actual 404 MANIFEST_UNKNOWN"):
                repository.manifest(missing)
        with pytest.raises(MissingError, match=r"404 BLOB_UNKNOWN"):
            client.read(found.host, fr.digest_of(b"x"), 1)


# manifests


def test_P25_every_manifest_request_names_all_types(seeded: FaultRegistry, client: Client) -> None:
    seeded.seed_image(NAME, "t")
    client.at(seeded.host).manifest("t")
    client.at(seeded.host).manifest_digest("t")
    for asked in seeded.requests("manifest"):
        for kind in ("oci.image.manifest.v1", "oci.image.index.v1", "distribution.manifest.v2", "manifest.list.v2"):
            assert f"{kind}+json" in asked.headers["accept"]


@pytest.mark.parametrize("status", [405, 501, None])
def test_C43_a_head_that_is_refused_or_says_no_digest_is_followed_by_a_get(
    seeded: FaultRegistry, client: Client, status: int | None
) -> None:
    image = seeded.seed_image(NAME, "t")
    action: fr.Action = fr.Answer(status=status) if status else fr.DropHeader(name="Docker-Content-Digest")
    seeded.faults.always(action, "manifest", method="HEAD")
    assert str(client.at(seeded.host).manifest_digest("t")) == image.digest
    assert [one.method for one in seeded.requests("manifest")] == ["HEAD", "GET"]


def test_C43_a_manifest_without_the_header_is_hashed(seeded: FaultRegistry, client: Client) -> None:
    image = seeded.seed_image(NAME, "t")
    seeded.switches.content_digest = False
    assert str(client.at(seeded.host).manifest("t").descriptor.digest) == image.digest


@pytest.mark.parametrize(
    ("action", "by_tag", "kind"),
    [
        (fr.FlipBit(at=40), False, DigestMismatchError),
        (fr.FlipBit(at=40), True, DigestMismatchError),
        (fr.SetHeader(name="Docker-Content-Digest", value=f"sha256:{'0' * 64}"), True, DigestMismatchError),
        (fr.SetHeader(name="Docker-Content-Digest", value="sha256:\x1b[2J"), True, ProtocolError),
        (fr.Gzip(force=True), True, ProtocolError),
        (fr.SetHeader(name="Content-Encoding", value="br"), True, ProtocolError),
        (fr.Answer(status=200, body=b"<html>log in</html>"), True, LayoutError),
        (fr.Answer(status=200, body=b"[1]", media_type=OCI), True, None),
        (fr.Answer(status=200, body=b'{"schemaVersion": 1}', media_type="application/x"), True, LayoutError),
        (fr.Answer(status=200, body=b'{"mediaType": 7}', media_type=OCI), True, LayoutError),
        (fr.Answer(status=200, body=b"", media_type=OCI), True, LayoutError),
        (fr.Answer(status=200, body=b"[" * 100_000, media_type=OCI), True, LayoutError),
        (fr.Answer(status=204), True, ProtocolError),
    ],
)
def test_an_altered_or_strange_manifest_is_refused(
    seeded: FaultRegistry, client: Client, action: fr.Action, by_tag: bool, kind: type[ImgbuildError] | None
) -> None:
    image = seeded.seed_image(NAME, "t")
    seeded.faults.always(action, "manifest")
    if kind is None:
        assert client.at(seeded.host).manifest("t").descriptor.media_type == OCI
        return
    with pytest.raises(kind) as caught:
        client.at(seeded.host).manifest("t" if by_tag else Digest.parse(image.digest))
    assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize("announced", ["text/plain; charset=utf-8", "application/octet-stream", OCI.upper(), None])
def test_the_type_in_a_manifest_counts_where_the_header_says_nothing_of_use(
    seeded: FaultRegistry, client: Client, announced: str | None
) -> None:
    seeded.seed_image(NAME, "t")
    name = "Content-Type"
    seeded.faults.always(fr.SetHeader(name=name, value=announced) if announced else fr.DropHeader(name=name))
    assert client.at(seeded.host).manifest("t").descriptor.media_type == OCI


def test_a_header_that_contradicts_the_type_in_the_manifest_is_an_error(seeded: FaultRegistry, client: Client) -> None:
    seeded.seed_image(NAME, "t")
    seeded.faults.always(fr.SetHeader(name="Content-Type", value=INDEX))
    with pytest.raises(LayoutError, match="another media type than announced"):
        client.at(seeded.host).manifest("t")


@pytest.mark.parametrize("action", [fr.Endless(), fr.HugeError(size=1 << 30, status=200)])
def test_an_oversize_or_endless_manifest_is_read_to_the_limit_only(
    seeded: FaultRegistry, client: Client, action: fr.Action
) -> None:
    seeded.seed_image(NAME, "t")
    seeded.faults.always(action, "manifest")
    with pytest.raises(LayoutError, match="is too long; expected at most 4194304 bytes"):
        client.at(seeded.host).manifest("t")
    assert client.moved(seeded.host)[0] < DEFAULT_LIMITS.manifest_bytes + MIB


def test_a_manifest_whose_body_breaks_is_asked_for_again(seeded: FaultRegistry, client: Client) -> None:
    image = seeded.seed_image(NAME, "t")
    seeded.faults.once(fr.ResetInAnswer(after_bytes=20), "manifest", times=2)
    seeded.faults.once(fr.CloseInAnswer(after_bytes=30), "manifest")
    assert client.at(seeded.host).manifest("t").raw == image.raw
    assert len(client.notes) == 3


def test_C38_P31_an_index_gives_the_child_of_the_platform_and_passes_over_attestations(
    seeded: FaultRegistry, client: Client
) -> None:
    image = seeded.seed_image(NAME)
    child = {"mediaType": OCI, "digest": image.digest, "size": len(image.raw)}
    other = {**child, "digest": f"sha256:{'1' * 64}"}
    document = {
        "schemaVersion": 2,
        "mediaType": INDEX,
        "manifests": [
            {**other, "platform": {"os": "linux", "architecture": "amd64"}},
            {**child, "platform": {"os": "linux", "architecture": "arm64", "variant": "v8"}},
            {**other, "platform": {"os": "unknown", "architecture": "unknown"}},
        ],
    }
    seeded.put_manifest(NAME, document, tag="t")
    remote = client.at(seeded.host).manifest("t")
    assert remote.is_index
    row = Index.parse(remote.raw, media_type=remote.descriptor.media_type, subject="i").select(
        "linux/arm64", subject="i"
    )
    assert client.at(seeded.host).manifest(row.descriptor.digest).raw == image.raw


# blobs


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=st.lists(st.tuples(st.integers(0, SIZE - 1), st.booleans()), max_size=3))
def test_after_resets_at_any_byte_the_bytes_are_right_and_none_is_read_twice(cuts: list[tuple[int, bool]]) -> None:
    with FaultRegistry() as registry, Client() as client:
        registry.put_blob(NAME, DATA)
        for cut, reset in cuts:
            action = fr.ResetInAnswer(after_bytes=cut) if reset else fr.CloseInAnswer(after_bytes=cut)
            registry.faults.once(action, "blob")
        assert client.read(registry.host, DIGEST, SIZE) == DATA
        requests = registry.requests("blob")
        ranges = [int(one.headers.get("range", "bytes=0-")[6:-1]) for one in requests]
        assert ranges == sorted(ranges)
        assert SIZE <= client.moved(registry.host)[0] < SIZE + 600 * len(requests)


@pytest.mark.parametrize(
    "action",
    [
        fr.IgnoreRange(),
        fr.ShiftRange(by=7),
        fr.DropHeader(name="Content-Range"),
        fr.SetHeader(name="Content-Range", value="bytes 0-9/10"),
        fr.SetHeader(name="Content-Range", value=f"bytes 100000-{SIZE}/{SIZE + 1}"),
        fr.SetHeader(name="Content-Range", value="bytes 99999999999999999999-1/2"),
        fr.Answer(status=416),
    ],
)
def test_a_wrong_answer_to_a_range_means_reading_from_the_start(
    seeded: FaultRegistry, client: Client, action: fr.Action
) -> None:
    seeded.faults.once(fr.ResetInAnswer(after_bytes=100_000), "blob")
    seeded.faults.add(fr.Fault(action=action, kind="blob", skip=1))
    assert client.read(seeded.host, DIGEST, SIZE) == DATA
    assert "range" not in seeded.requests("blob")[-1].headers or len(seeded.requests("blob")) == 2


def test_reading_from_the_start_may_break_as_well(seeded: FaultRegistry, client: Client) -> None:
    seeded.faults.once(fr.ResetInAnswer(after_bytes=100_000), "blob")
    for action in (fr.Answer(status=416), fr.CloseInAnswer(after_bytes=50_000), fr.ResetInAnswer(after_bytes=0)):
        seeded.faults.once(action, "blob")
    assert client.read(seeded.host, DIGEST, SIZE) == DATA
    assert len(client.notes) == 4


def test_a_416_that_announces_more_than_it_sends_is_not_waited_for(seeded: FaultRegistry, client: Client) -> None:
    seeded.switches.long_416 = True
    seeded.faults.once(fr.ResetInAnswer(after_bytes=100_000), "blob")
    seeded.faults.add(fr.Fault(action=fr.ShiftRange(by=SIZE), kind="blob", skip=1))
    began = time.monotonic()
    assert client.read(seeded.host, DIGEST, SIZE) == DATA
    assert time.monotonic() - began < 2


def test_a_range_that_lies_is_found_by_the_digest(seeded: FaultRegistry, client: Client) -> None:
    seeded.faults.once(fr.ResetInAnswer(after_bytes=100_000), "blob")
    seeded.faults.add(fr.Fault(action=fr.ShiftRange(by=7, honest=False), kind="blob", skip=1, times=None))
    with pytest.raises((DigestMismatchError, NetworkError)):
        client.read(seeded.host, DIGEST, SIZE)


@pytest.mark.parametrize("at", [0, 333_333, SIZE - 1])
def test_a_flipped_bit_is_found(seeded: FaultRegistry, client: Client, at: int) -> None:
    seeded.faults.always(fr.FlipBit(at=at), "blob")
    with pytest.raises(DigestMismatchError, match="does not have the recorded digest"):
        client.read(seeded.host, DIGEST, SIZE)


@pytest.mark.parametrize("action", [fr.Chunked(), fr.Unframed(), fr.Endless()])
def test_a_blob_without_a_length_or_an_end_is_read_to_its_size(
    seeded: FaultRegistry, client: Client, action: fr.Action
) -> None:
    seeded.faults.always(action, "blob")
    assert client.read(seeded.host, DIGEST, SIZE) == DATA
    assert client.moved(seeded.host)[0] < SIZE + 200_000


@pytest.mark.parametrize("size", [SIZE - 1, SIZE + 1])
def test_another_length_than_the_descriptor_says_is_refused_before_a_byte_is_read(
    seeded: FaultRegistry, client: Client, size: int
) -> None:
    with pytest.raises(DigestMismatchError, match="another length than recorded"):
        client.read(seeded.host, DIGEST, size)
    assert client.moved(seeded.host)[0] < 300_000


def test_C56_an_encoded_blob_is_refused_and_was_not_asked_for(seeded: FaultRegistry, client: Client) -> None:
    seeded.faults.always(fr.Gzip(), "blob")
    assert client.read(seeded.host, DIGEST, SIZE) == DATA
    assert seeded.requests("blob")[0].headers["accept-encoding"] == "identity"
    seeded.faults.always(fr.Gzip(force=True), "blob")
    with pytest.raises(ProtocolError, match="came encoded, which was not asked for; expected identity, actual gzip"):
        client.read(seeded.host, DIGEST, SIZE)


@pytest.mark.parametrize("framing", [fr.Unframed(), fr.Chunked(), fr.Action()])
def test_over_tls_a_reset_without_framing_is_not_taken_for_the_end(tmp_path: Path, framing: fr.Action) -> None:
    authority = make_authority(tmp_path / "ca")
    with FaultRegistry(ssl_context=authority.server_context()) as registry:
        registry.put_blob(NAME, DATA)
        (tmp_path / "r.toml").write_text(
            f'schema = "imgbuild/registries/v1"\n[registry."{registry.host}"]\nplain-http = false\nca = "ca/ca.pem"\n'
        )
        registry.faults.once(fr.ResetInAnswer(after_bytes=200_000), "blob")
        registry.faults.always(framing, "blob")
        with Client(settings=tmp_path / "r.toml") as client:
            assert client.read(registry.host, DIGEST, SIZE) == DATA
            assert len(client.notes) == 1


def test_a_blob_that_breaks_again_and_again_is_left_with_what_came(seeded: FaultRegistry, client: Client) -> None:
    seeded.faults.always(fr.CloseInAnswer(after_bytes=1000), "blob")
    with pytest.raises(NetworkError, match=rf"after 4 breaks; actual 4000 of {SIZE} bytes") as caught:
        client.read(seeded.host, DIGEST, SIZE)
    assert (caught.value.where or "").startswith(f"{seeded.url}/v2/{NAME}/blobs/sha256:")
    assert len(seeded.requests("blob")) == 4


def test_breaks_are_forgiven_while_the_blob_goes_on(client: Client) -> None:
    size = 60 * MIB
    with FaultRegistry() as registry:
        blob = fr.repeated(b"0123456789abcdef", size)
        registry.add_blob(NAME, blob)
        registry.faults.always(fr.CloseInAnswer(after_bytes=5 * MIB), "blob")
        with client.stream(registry.host, blob.digest, size) as stream:
            VerifiedReader(stream, Digest.parse(blob.digest), size, subject="blob").drain()
        assert len(client.notes) == 11


def test_parts_that_are_shorter_than_asked_for_are_put_together(client: Client) -> None:
    def part(start: int, stop: int) -> bytes:
        head = f"HTTP/1.1 206 Partial\r\nContent-Range: bytes {start}-{stop - 1}/*\r\nContent-Length: {stop - start}"
        return head.encode() + b"\r\n\r\n" + DATA[start:stop]

    first = f"HTTP/1.1 200 OK\r\nContent-Length: {SIZE}\r\n\r\n".encode() + DATA[:1000]
    with Scripted(first, part(1000, 90_000), part(90_000, SIZE)) as server:
        assert client.read(server.host, DIGEST, SIZE) == DATA
        assert [b"Range: bytes=90000-" in one for one in server.asked] == [False, False, True]


def test_blobs_of_no_bytes_and_of_sha512_are_read(seeded: FaultRegistry, client: Client) -> None:
    assert client.read(seeded.host, fr.digest_of(b""), 0) == b""
    sha512 = "sha512:" + hashlib.sha512(DATA).hexdigest()
    seeded.add_blob(NAME, fr.Blob(digest=sha512, size=SIZE, piece=lambda start, stop: DATA[start:stop]))
    assert client.read(seeded.host, sha512, SIZE) == DATA


def test_many_threads_get_each_their_own_bytes_and_leave_no_connection_open(seeded: FaultRegistry) -> None:
    blobs = {fr.digest_of(data): data for data in (bytes([index]) * (50_000 + index) for index in range(24))}
    for data in blobs.values():
        seeded.put_blob(NAME, data)
    seeded.faults.add(fr.Fault(action=fr.ResetInAnswer(after_bytes=20_000), kind="blob", probability=0.2, times=None))
    with Client() as client, ThreadPoolExecutor(12) as pool:

        def read(digest: str) -> bool:
            return client.read(seeded.host, digest, len(blobs[digest])) == blobs[digest]

        assert all(pool.map(read, [*blobs, *blobs]))

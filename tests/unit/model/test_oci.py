from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from imgbuild import jsontext
from imgbuild.config import DEFAULT_LIMITS
from imgbuild.digest import Digest
from imgbuild.errors import DocumentError, FactMismatchError, ImgbuildError, LayoutError
from imgbuild.model.oci import ConfigChanges, Descriptor, Family, ImageConfig, Manifest
from imgbuild.steps.base import check_platform

HEX = "0123456789abcdef" * 4
SHA256 = f"sha256:{HEX}"
SHA512 = f"sha512:{HEX}{HEX}"
OCI_INDEX = "application/vnd.oci.image.index.v1+json"
DOCKER_LIST = "application/vnd.docker.distribution.manifest.list.v2+json"
DELETE = object()


def descriptor(media_type: str, **changes: Any) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": SHA256, "size": 7, **changes}


def manifest(family: Family = Family.OCI, **changes: Any) -> dict[str, Any]:
    value = {
        "schemaVersion": 2,
        "mediaType": family.manifest,
        "config": descriptor(family.config),
        "layers": [descriptor(family.layer_gzip)],
        **changes,
    }
    return {key: item for key, item in value.items() if item is not DELETE}


def parse(value: Any, *, media_type: str = Family.OCI.manifest) -> Manifest:
    raw = value if isinstance(value, bytes) else json.dumps(value).encode()
    return Manifest.parse(raw, media_type=media_type, subject="manifest")


def config(**changes: Any) -> dict[str, Any]:
    value = {
        "os": "linux",
        "architecture": "arm64",
        "rootfs": {"type": "layers", "diff_ids": [SHA256, SHA256]},
        **changes,
    }
    return {key: item for key, item in value.items() if item is not DELETE}


def parse_config(value: Any) -> ImageConfig:
    raw = value if isinstance(value, bytes) else json.dumps(value).encode()
    return ImageConfig.parse(raw, subject="config")


def extended(value: dict[str, Any], changes: ConfigChanges | None = None, count: int = 1) -> dict[str, Any]:
    raw = parse_config(value).extended(
        changes or ConfigChanges(),
        tuple(Digest("sha256", f"{number:064x}") for number in range(count)),
        "2023-11-14T22:13:20Z",
        tuple(f"imgbuild: layer {number}" for number in range(count)),
    )
    result: dict[str, Any] = json.loads(raw)
    return result


# Manifests


def test_C41_the_digest_is_that_of_the_bytes_as_they_came() -> None:
    raw = b" " + json.dumps(manifest(), indent=7).encode() + b"\n\n"
    assert parse(raw).digest == Digest.of(raw)
    assert parse(raw).raw == raw
    assert parse(raw).digest != parse(manifest()).digest


MISMATCHES: dict[str, tuple[dict[str, Any], str]] = {
    "an image that also lists manifests": (manifest(manifests=[]), Family.OCI.manifest),
    "an image that lists manifests as null": (manifest(manifests=None), Family.OCI.manifest),
    "an index that also lists layers": (manifest(mediaType=OCI_INDEX, manifests=[]), OCI_INDEX),
    "an index announced as an image": (manifest(mediaType=OCI_INDEX), Family.OCI.manifest),
    "an image announced as an index": (manifest(), OCI_INDEX),
    "a Docker image announced as an OCI one": (manifest(Family.DOCKER), Family.OCI.manifest),
    "an OCI image announced as a Docker one": (manifest(), Family.DOCKER.manifest),
    "a Docker list announced as a Docker image": (
        manifest(Family.DOCKER, mediaType=DOCKER_LIST),
        Family.DOCKER.manifest,
    ),
    "a media type that is no text": (manifest(mediaType=[Family.OCI.manifest]), Family.OCI.manifest),
    "a media type of null": (manifest(mediaType=None), Family.OCI.manifest),
}


@pytest.mark.parametrize("case", MISMATCHES)
def test_CVE_2021_41190_a_body_that_can_be_read_as_something_else_is_refused(case: str) -> None:
    value, media_type = MISMATCHES[case]
    with pytest.raises(LayoutError):
        parse(value, media_type=media_type)


def test_a_body_without_a_media_type_is_what_its_descriptor_says() -> None:
    assert parse(manifest(mediaType=DELETE)).family is Family.OCI


@pytest.mark.parametrize("version", [1, 3, "2", None, DELETE, 2.5])
def test_another_schema_version_is_refused(version: Any) -> None:
    with pytest.raises(LayoutError, match="another schema version"):
        parse(manifest(schemaVersion=version))


BAD_SIZES: list[Any] = [-1, 2**53 + 1, 2**62, 2**63, -(2**63), 1.5, 1e300, True, False, None, "7", [], {}]


@pytest.mark.parametrize("size", BAD_SIZES, ids=str)
@pytest.mark.parametrize("field", ["config", "layers"])
def test_a_size_that_no_blob_can_have_is_refused_before_anything_is_read(field: str, size: Any) -> None:
    found = descriptor(Family.OCI.config if field == "config" else Family.OCI.layer_gzip, size=size)
    with pytest.raises(LayoutError):
        parse({**manifest(), field: found if field == "config" else [found]})
    if not (isinstance(size, int) and abs(size) > 2**53):
        with pytest.raises(LayoutError, match="has no valid size"):
            Descriptor.parse(found, subject="x")


def test_a_size_that_overflows_is_refused() -> None:
    with pytest.raises(LayoutError):
        parse(json.dumps(manifest()).encode().replace(b'"size": 7', b'"size": 1e400'))


@pytest.mark.parametrize("size", [0, 1, 2**31, 2**53])
def test_every_other_size_is_read(size: int) -> None:
    assert Descriptor.parse(descriptor("x", size=size), subject="x").size == size


@pytest.mark.parametrize("data", ["eQ==", "eHg=", "", "eA", "x", "\u017f", 1, ["eA=="]], ids=str)
@pytest.mark.parametrize("field", ["config", "layers"])
def test_embedded_data_that_is_not_the_blob_is_refused(field: str, data: Any) -> None:
    media_type = Family.OCI.config if field == "config" else Family.OCI.layer_gzip
    found = descriptor(media_type, digest=str(Digest.of(b"x")), size=1, data=data)
    with pytest.raises(LayoutError, match="embeds data that is not the blob"):
        parse({**manifest(), field: found if field == "config" else [found]})


def test_embedded_data_is_checked_by_the_algorithm_of_its_digest_and_null_is_none() -> None:
    digest = f"sha512:{hashlib.sha512(b'x').hexdigest()}"
    for data in ("eA==", None):
        assert Descriptor.parse(descriptor("x", digest=digest, size=1, data=data), subject="x").size == 1


@pytest.mark.parametrize("field", ["config", "layers"])
def test_CVE_2020_15157_a_descriptor_that_sends_engines_elsewhere_is_refused(field: str) -> None:
    found = descriptor(Family.OCI.config if field == "config" else Family.OCI.layer_gzip, urls=["http://[::1]/x"])
    with pytest.raises(LayoutError, match="names other places"):
        parse({**manifest(), field: found if field == "config" else [found]})


def with_key(value: dict[str, Any], path: str, key: str) -> dict[str, Any]:
    """A copy with one more key, in the object that the path leads to."""
    copy: dict[str, Any] = json.loads(json.dumps(value))
    place: Any = copy
    for part in path.split():
        place = place[int(part)] if isinstance(place, list) else place[part]
    place[key] = None
    return copy


FULL_MANIFEST = manifest(
    layers=[descriptor(Family.OCI.layer_gzip, platform={"os": "linux"})],
    subject=descriptor("x"),
    annotations={"a": "b"},
)
FULL_CONFIG = config(
    config={"Env": ["A=b"], "Labels": {"a": "b"}, "Healthcheck": {"Test": ["NONE"]}, "ExposedPorts": {"1/tcp": {}}},
    history=[{"created_by": "x"}, {"created_by": "y"}],
)
AMBIGUOUS = [
    ("", "Layers"),
    ("", "LAYERS"),
    ("", "mediatype"),
    ("", "Manifests"),
    ("", "fslayers"),
    ("config", "Digest"),
    ("layers 0", "SIZE"),
    ("layers 0", "Urls"),
    ("layers 0", "dige\u017ft"),
    ("layers 0 platform", "OS"),
    ("subject", "Data"),
]
AMBIGUOUS_IN_CONFIG = [
    ("", "Config"),
    ("", "ROOTFS"),
    ("", "rootf\u017f"),
    ("", "Architecture"),
    ("config", "ENV"),
    ("config", "env"),
    ("config", "EntryPoint"),
    ("config", "Label\u017f"),
    ("config", "Healthchec\u212a"),
    ("config", "NetworkDISABLED"),
    ("config Healthcheck", "test"),
    ("rootfs", "Diff_IDs"),
    ("history 1", "Empty_Layer"),
]


@pytest.mark.parametrize(("path", "key"), AMBIGUOUS)
def test_a_manifest_with_a_key_that_go_takes_for_another_one_is_refused(path: str, key: str) -> None:
    with pytest.raises(LayoutError, match="differs in case only") as caught:
        parse(with_key(FULL_MANIFEST, path, key))
    assert caught.value.actual == key


@pytest.mark.parametrize(("path", "key"), AMBIGUOUS_IN_CONFIG)
def test_a_config_with_a_key_that_go_takes_for_another_one_is_refused(path: str, key: str) -> None:
    with pytest.raises(LayoutError, match="differs in case only") as caught:
        parse_config(with_key(FULL_CONFIG, path, key))
    assert caught.value.actual == key


@pytest.mark.parametrize("path", ["", "config", "rootfs", "history 0"])
def test_two_unknown_keys_that_differ_in_case_only_are_refused_and_one_is_not(path: str) -> None:
    one = with_key(FULL_CONFIG, path, "x-new")
    assert parse_config(one).os == "linux"
    with pytest.raises(LayoutError, match="differs in case only"):
        parse_config(with_key(one, path, "X-New"))


def test_maps_with_free_keys_keep_their_case() -> None:
    parse(with_key(FULL_MANIFEST, "", "x"))
    assert parse(manifest(annotations={"a": "1", "A": "2"})).family is Family.OCI
    assert parse_config(config(config={"Labels": {"a": "1", "A": "2"}})).labels == (("a", "1"), ("A", "2"))


@pytest.mark.parametrize("digest", ["", "sha256:../../x", "md5:0", SHA256.upper(), SHA256 + "\n", None, 1, []])
def test_CVE_2024_3727_a_digest_that_is_none_never_becomes_a_path(digest: Any) -> None:
    for changes in (
        {"config": descriptor(Family.OCI.config, digest=digest)},
        {"layers": [descriptor("x", digest=digest)]},
    ):
        with pytest.raises(LayoutError):
            parse(manifest(**changes))


@pytest.mark.parametrize("value", [None, [], "x", 1, {}, {"mediaType": 1, "digest": SHA256, "size": 1}])
def test_what_is_no_descriptor_is_refused(value: Any) -> None:
    for changes in ({"config": value}, {"layers": [value]}):
        with pytest.raises(LayoutError):
            parse(manifest(**changes))


@pytest.mark.parametrize("layers", [[], None, DELETE, {}, "x"])
def test_C14_an_image_without_layers_is_refused_with_the_reason(layers: Any) -> None:
    with pytest.raises(LayoutError, match="has no layers") as caught:
        parse(manifest(layers=layers))
    assert "cannot be a base" in str(caught.value.hint)


def test_C15_sha512_digests_are_read_and_kept_and_ours_are_sha256() -> None:
    base = parse(manifest(layers=[descriptor(Family.OCI.layer_gzip, digest=SHA512)]))
    assert str(base.layers[0].digest) == SHA512
    ours = Descriptor(media_type=Family.OCI.layer_gzip, digest=Digest.of(b"x"), size=1)
    value = json.loads(base.extended(ours, (ours,), {}))
    assert [layer["digest"].partition(":")[0] for layer in value["layers"]] == ["sha512", "sha256"]
    assert base.digest.algorithm == "sha256"


def test_C16_as_many_layers_as_engines_can_mount_are_read_and_one_more_is_refused() -> None:
    rows = [descriptor(Family.OCI.layer_gzip)] * 128
    assert len(parse(manifest(layers=rows[:127])).layers) == 127
    with pytest.raises(LayoutError, match="too many layers") as caught:
        parse(manifest(layers=rows))
    assert (caught.value.expected, caught.value.actual) == ("at most 127", "128")


def test_C11_a_layer_that_is_listed_twice_stays_twice() -> None:
    assert len(parse(manifest(layers=[descriptor(Family.OCI.layer_gzip)] * 2)).layers) == 2


@pytest.mark.parametrize("family", Family)
def test_C36_an_image_of_one_family_is_read_and_keeps_it_when_it_is_extended(family: Family) -> None:
    base = parse(manifest(family), media_type=family.manifest)
    ours = Descriptor(media_type=family.layer_gzip, digest=Digest.of(b"x"), size=1)
    settings = Descriptor(media_type=family.config, digest=Digest.of(b"y"), size=1)
    again = Manifest.parse(base.extended(settings, (ours,), {"a": "b"}), media_type=family.manifest, subject="result")
    assert again.family is family
    assert again.layers == (*base.layers, ours)
    assert again.config == settings


@pytest.mark.parametrize("family", Family)
@pytest.mark.parametrize("field", ["config", "layers"])
def test_C36_an_image_that_mixes_the_families_is_refused(family: Family, field: str) -> None:
    other = Family.DOCKER if family is Family.OCI else Family.OCI
    found = (
        descriptor(other.config) if field == "config" else [descriptor(family.layer_gzip), descriptor(other.layer_gzip)]
    )
    with pytest.raises(LayoutError) as caught:
        parse(manifest(family, **{field: found}), media_type=family.manifest)
    assert caught.value.actual == (other.config if field == "config" else other.layer_gzip)


@pytest.mark.parametrize(
    "media_type", ["application/vnd.docker.image.rootfs.diff.tar.zstd", "application/vnd.oci.image.layer.v1.tar+zstd"]
)
def test_C37_zstd_in_a_docker_manifest_is_refused(media_type: str) -> None:
    with pytest.raises(LayoutError):
        parse(manifest(Family.DOCKER, layers=[descriptor(media_type)]), media_type=Family.DOCKER.manifest)


@pytest.mark.parametrize("suffix", ["tar", "tar+gzip", "tar+zstd"])
def test_C37_an_oci_manifest_may_have_layers_in_any_compression(suffix: str) -> None:
    media_type = f"application/vnd.oci.image.layer.v1.{suffix}"
    assert parse(manifest(layers=[descriptor(media_type)])).layers[0].media_type == media_type


def test_C38_an_artifact_is_not_taken_for_an_image() -> None:
    with pytest.raises(LayoutError, match="foreign media type"):
        parse(manifest(config=descriptor("application/vnd.oci.empty.v1+json")))


def test_C39_what_the_base_says_that_we_do_not_know_stays_in_the_manifest() -> None:
    digest = str(Digest.of(b"x"))
    layer = descriptor(Family.OCI.layer_gzip, annotations={"x": "\N{SNOWMAN}"}, digest=digest, size=1, data="eA==")
    base = parse(manifest(layers=[layer], annotations={"a": "1", "b": "2"}, artifactType="x", future=[{"k": 0.5}]))
    ours = Descriptor(media_type=Family.OCI.config, digest=Digest.of(b"y"), size=1)
    value = json.loads(base.extended(ours, (), {"b": "3", "c": "4"}))
    assert value == {**json.loads(base.raw), "config": ours.as_dict(), "annotations": {"a": "1", "b": "3", "c": "4"}}
    assert value["layers"] == [layer]


def test_a_docker_manifest_gets_no_annotations() -> None:
    base = parse(manifest(Family.DOCKER), media_type=Family.DOCKER.manifest)
    ours = Descriptor(media_type=Family.DOCKER.config, digest=Digest.of(b"y"), size=1)
    assert "annotations" not in json.loads(base.extended(ours, (), {"a": "b"}))


@pytest.mark.parametrize("annotations", [[], "x", 1, {"a": 1}, {"a": None}])
def test_annotations_of_another_shape_are_refused(annotations: Any) -> None:
    with pytest.raises(LayoutError, match="annotations"):
        parse(manifest(annotations=annotations))


def test_annotations_of_null_are_none() -> None:
    base = parse(manifest(annotations=None))
    ours = Descriptor(media_type=Family.OCI.config, digest=Digest.of(b"y"), size=1)
    assert json.loads(base.extended(ours, (), {"a": "b"}))["annotations"] == {"a": "b"}


# Both documents as hostile bytes


HOSTILE = {
    "empty": b"",
    "not JSON": b"{",
    "null": b"null",
    "a list": b"[]",
    "a text": b'"x"',
    "a key twice": b'{"schemaVersion": 2, "schemaVersion": 2}',
    "NaN": b'{"x": NaN}',
    "a byte order mark": b"\xef\xbb\xbf{}",
    "deep": b'{"a":' * 100 + b"1" + b"}" * 100,
    "half a surrogate pair": b'{"x": "\\ud800"}',
    "not UTF-8": b'{"x": "\xff"}',
}


@pytest.mark.parametrize("case", HOSTILE)
def test_what_is_not_strict_json_is_a_layout_error(case: str) -> None:
    for read in (parse, parse_config):
        with pytest.raises(LayoutError):
            read(HOSTILE[case])


def test_documents_are_limited_to_the_byte() -> None:
    room = DEFAULT_LIMITS.manifest_bytes - len(json.dumps(manifest()))
    raw = json.dumps(manifest()).encode() + b" " * room
    assert parse(raw).family is Family.OCI
    with pytest.raises(LayoutError, match="the limit is 4194304 bytes"):
        parse(raw + b" ")
    with pytest.raises(LayoutError, match="the limit is 8388608 bytes"):
        parse_config(json.dumps(config()).encode() + b" " * DEFAULT_LIMITS.config_bytes)


# Configs


@pytest.mark.parametrize(
    "value", [[1], "x", 1, True, {"Env": {"A": "1"}}, {"Env": "A=1"}, {"Env": [1]}, {"Env": 1}], ids=str
)
def test_settings_of_another_shape_are_one_typed_error(value: Any) -> None:
    with pytest.raises(LayoutError):
        parse_config(config(config=value))


@pytest.mark.parametrize("labels", [[1], "x", 1, {"a": 1}, {"a": None}], ids=str)
def test_labels_of_another_shape_are_one_typed_error(labels: Any) -> None:
    with pytest.raises(LayoutError, match="Labels"):
        parse_config(config(config={"Labels": labels}))


@pytest.mark.parametrize(
    "rootfs", [None, [], {}, {"diff_ids": None}, {"diff_ids": {}}, {"diff_ids": [1]}, {"diff_ids": ["x"]}]
)
def test_a_config_without_diff_ids_is_refused(rootfs: Any) -> None:
    with pytest.raises(LayoutError):
        parse_config(config(rootfs=rootfs))


def test_null_is_the_same_as_absent_as_in_go() -> None:
    found = parse_config(config(config={"Env": None, "Labels": None, "ExposedPorts": None}, history=None))
    assert (found.env, found.labels, found.history_layers) == ((), (), None)
    changes = ConfigChanges(env=(("A", "1"),), labels=(("l", "1"),), ports=("80/tcp",))
    value = extended(config(config={"Env": None, "Labels": None, "ExposedPorts": None}), changes)
    assert value["config"] == {"Env": ["A=1"], "Labels": {"l": "1"}, "ExposedPorts": {"80/tcp": {}}}
    assert extended(config(config=None))["config"] == {}


def test_C40_the_platform_of_the_config_decides_not_what_an_index_said() -> None:
    found = parse_config(config(architecture="amd64"))
    with pytest.raises(FactMismatchError) as caught:
        check_platform(found, "linux/arm64", subject="base")
    assert (caught.value.expected, caught.value.actual) == ("linux/arm64", "linux/amd64")
    check_platform(found, "linux/amd64", subject="base")
    with pytest.raises(FactMismatchError):
        check_platform(parse_config(config(architecture=DELETE)), "linux/arm64", subject="base")


HISTORY = [{"created_by": "FROM"}, {"created_by": "ENV", "empty_layer": True}, {"created_by": "COPY", "x": [1]}]


def test_C12_history_entries_without_a_layer_are_not_counted_and_ours_come_after_all() -> None:
    assert parse_config(config(history=HISTORY)).history_layers == 2
    value = extended(config(history=HISTORY), count=2)
    assert value["history"][:3] == HISTORY
    assert value["history"][3:] == [
        {"created": "2023-11-14T22:13:20Z", "created_by": "imgbuild: layer 0"},
        {"created": "2023-11-14T22:13:20Z", "created_by": "imgbuild: layer 1"},
    ]


@pytest.mark.parametrize("history", [DELETE, None, []])
def test_C12_where_the_base_has_no_history_none_is_begun(history: Any) -> None:
    value = extended(config(history=history))
    assert value.get("history") in (None, [])


@pytest.mark.parametrize("history", [HISTORY[:2], [*HISTORY, {"created_by": "RUN"}], [{"empty_layer": True}]])
def test_C13_a_history_that_counts_other_layers_than_there_are_is_not_built_upon(history: list[Any]) -> None:
    with pytest.raises(LayoutError, match="C13") as caught:
        extended(config(history=history))
    assert caught.value.expected is not None
    assert caught.value.actual is not None


def test_C13_what_is_built_has_as_many_history_entries_with_a_layer_as_layers() -> None:
    raw = json.dumps(extended(config(history=HISTORY), count=3)).encode()
    found = parse_config(raw)
    assert found.history_layers == len(found.diff_ids) == 5


@pytest.mark.parametrize("history", ["x", 1, {"a": 1}, [1], [[]]], ids=str)
def test_a_history_of_another_shape_is_refused(history: Any) -> None:
    with pytest.raises(LayoutError, match="history"):
        parse_config(config(history=history))


def test_C27_C39_all_that_is_not_changed_stays_as_the_base_has_it() -> None:
    settings = {
        "Healthcheck": {"Test": ["CMD", "x"], "StartInterval": 5_000_000_000},
        "OnBuild": ["RUN x"],
        "Shell": ["/bin/bash", "-c"],
        "StopSignal": "SIGTERM",
        "Volumes": {"/v": {}},
        "ArgsEscaped": True,
        "Env": ["PATH=/bin", "A=1=2"],
        "Future": {"kept": [None, 0.5, "\N{SNOWMAN}"]},
    }
    history = [{"created": "2020-01-01T00:00:00.123456789Z", "created_by": "x", "comment": "y", "author": "z"}] * 2
    value = config(
        config=settings, history=history, variant="v8", author="a", **{"os.features": ["x"], "moby.x": {"k": 1}}
    )
    result = extended(value)
    assert result == {
        **value,
        "created": "2023-11-14T22:13:20Z",
        "rootfs": {"type": "layers", "diff_ids": [SHA256, SHA256, f"sha256:{0:064x}"]},
        "history": [*history, {"created": "2023-11-14T22:13:20Z", "created_by": "imgbuild: layer 0"}],
    }
    assert list(result["config"]) == list(settings)
    assert result["history"][:2] == history


def test_the_environment_keeps_its_order_and_a_changed_variable_its_place() -> None:
    base = ["PATH=/bin", "A=old", "B=keep", "A=older", "NOVALUE"]
    changes = ConfigChanges(env=(("C", "new"), ("A", "1=2")))
    assert extended(config(config={"Env": base}), changes)["config"]["Env"] == [
        "PATH=/bin",
        "A=1=2",
        "B=keep",
        "NOVALUE",
        "C=new",
    ]


def test_the_last_of_two_values_of_a_variable_counts_as_for_the_kernel_of_a_container() -> None:
    found = parse_config(config(config={"Env": ["A=1", "AB=x", "A=2=3", "E="]}))
    assert [found.variable(name) for name in ("A", "E", "AB", "B")] == ["2=3", "", "x", None]


def test_changes_replace_what_they_name_and_nothing_else() -> None:
    changes = ConfigChanges(
        labels=(("l", "2"),),
        entrypoint=("e",),
        cmd=(),
        workdir="/w",
        user="1:1",
        ports=("1/tcp",),
        healthcheck={"Test": []},
    )
    base = {
        "Labels": {"l": "1", "k": "1"},
        "Entrypoint": ["x"],
        "Cmd": ["y"],
        "ExposedPorts": {"2/tcp": {}},
        "Domainname": "d",
    }
    assert extended(config(config=base), changes)["config"] == {
        "Labels": {"l": "2", "k": "1"},
        "Entrypoint": ["e"],
        "Cmd": [],
        "ExposedPorts": {"2/tcp": {}, "1/tcp": {}},
        "Domainname": "d",
        "WorkingDir": "/w",
        "User": "1:1",
        "Healthcheck": {"Test": []},
    }


def test_the_same_config_gives_the_same_bytes_and_they_are_strict_json() -> None:
    found = parse_config(config(history=HISTORY))
    arguments = (ConfigChanges(env=(("A", "ü"),)), (), "2023-11-14T22:13:20Z", ())
    raw = found.extended(*arguments)
    assert raw == found.extended(*arguments)
    assert jsontext.compact(jsontext.loads(raw, subject="x")) == raw


@pytest.mark.parametrize("value", [{}, [], None, "x", {"layers": 1}, {"config": {}, "layers": [{}]}], ids=str)
def test_no_document_of_any_shape_leaves_the_family_of_our_errors(value: Any) -> None:
    for read in (parse, parse_config):
        with pytest.raises(ImgbuildError) as caught:
            read(value)
        assert not isinstance(caught.value, DocumentError)
        assert caught.value.exit_code == 4

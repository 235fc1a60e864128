from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from imgbuild.errors import LayoutError
from imgbuild.model.oci import INDEX_TYPES
from imgbuild.model.ociindex import Index

OCI, DOCKER = INDEX_TYPES
MANIFEST = "application/vnd.oci.image.manifest.v1+json"


def row(number: int, platform: Any = None, **more: Any) -> dict[str, Any]:
    found = {"mediaType": MANIFEST, "digest": f"sha256:{number:064x}", "size": 7, **more}
    return found if platform is None else {**found, "platform": platform}


def on(architecture: str, variant: str | None = None, system: str = "linux") -> dict[str, str]:
    found = {"os": system, "architecture": architecture}
    return found if variant is None else {**found, "variant": variant}


def index(*rows: Any, media_type: str = OCI, **more: Any) -> Index:
    raw = json.dumps({"schemaVersion": 2, "mediaType": media_type, "manifests": rows, **more}).encode()
    return Index.parse(raw, media_type=media_type, subject="index")


ATTESTATION = row(9, on("unknown", system="unknown"), annotations={"vnd.docker.reference.type": "attestation-manifest"})


@pytest.mark.parametrize("media_type", INDEX_TYPES)
def test_the_one_row_of_a_platform_is_chosen(media_type: str) -> None:
    found = index(row(1, on("amd64")), row(2, on("arm64")), row(3, on("arm", "v7")), media_type=media_type)
    for platform, number in (("linux/amd64", 1), ("linux/arm64", 2), ("linux/arm/v7", 3)):
        assert found.select(platform, subject="i").descriptor.digest.encoded == f"{number:064x}"


@pytest.mark.parametrize(("written", "asked"), [(None, "linux/arm64/v8"), ("v8", "linux/arm64"), ("", "linux/arm64")])
def test_v8_is_meant_where_arm64_has_no_variant(written: str | None, asked: str) -> None:
    assert index(row(1, on("arm64", written))).select(asked, subject="i").platform


@pytest.mark.parametrize(
    "attestation",
    [
        ATTESTATION,
        row(9, on("unknown", system="unknown")),
        row(9, on("arm64"), annotations={"vnd.docker.reference.type": "attestation-manifest"}),
    ],
)
def test_C38_P31_attestations_are_passed_over(attestation: dict[str, Any]) -> None:
    found = index(attestation, row(1, on("arm64")), attestation)
    assert found.select("linux/arm64", subject="i").descriptor.digest.encoded == f"{1:064x}"
    assert [entry.is_attestation for entry in found.entries] == [True, False, True]


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ([], "no manifest of the platform; expected one of linux/arm64, actual none"),
        ([ATTESTATION], "no manifest of the platform; expected one of linux/arm64, actual none"),
        ([row(1, on("amd64")), row(2)], "actual linux/amd64, no platform"),
        ([row(1, on("arm64", "v9"))], "actual linux/arm64/v9"),
        ([row(1, on("ARM64"))], "actual linux/ARM64"),
        ([row(1, on("arm64")), row(2, on("arm64", "v8"))], "several manifests of the platform"),
        ([row(1, on("arm64")), row(1, on("arm64"))], "several manifests of the platform"),
    ],
)
def test_C40_P29_none_and_several_are_errors_that_say_what_there_is(rows: list[Any], problem: str) -> None:
    with pytest.raises(LayoutError, match=problem):
        index(*rows).select("linux/arm64", subject="i")


def test_the_names_of_platforms_are_made_safe_to_show() -> None:
    with pytest.raises(LayoutError) as caught:
        index(*[row(1, on("\x1b[2J" * 100))] * 500).select("linux/arm64", subject="i")
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 3000


@pytest.mark.parametrize(
    ("document", "media_type", "problem"),
    [
        ([], OCI, "is no index"),
        ({"manifests": []}, MANIFEST, "is no index"),
        ({"manifests": [], "layers": []}, OCI, "is an image manifest"),
        ({"manifests": [], "config": {}}, OCI, "is an image manifest"),
        ({"mediaType": DOCKER, "manifests": []}, OCI, "another media type"),
        ({"mediaType": 7, "manifests": []}, OCI, "another media type"),
        ({"Manifests": []}, OCI, "Manifests"),
        ({}, OCI, "no list of manifests"),
        ({"manifests": {}}, OCI, "no list of manifests"),
        ({"manifests": [0] * 10_001}, OCI, "no list of manifests"),
        ({"manifests": [0]}, OCI, r"manifests\[0\]"),
        ({"manifests": [row(1, [])]}, OCI, "platform: is not a JSON object"),
        ({"manifests": [row(1, {"os": 7})]}, OCI, "os: is not text"),
        ({"manifests": [row(1, annotations=[1])]}, OCI, "annotations: is not"),
        ({"manifests": [row(1, annotations={"a": 1})]}, OCI, "annotations: is not"),
        ({"manifests": [row(1, artifactType=[])]}, OCI, "artifactType: is not text"),
        ({"manifests": [row(1, urls=["http://a"])]}, OCI, "names other places"),
        ({"manifests": [{**row(1), "size": -1}]}, OCI, "no valid size"),
        ({"manifests": [{**row(1), "digest": "sha256:x"}]}, OCI, "digits"),
    ],
)
def test_what_is_no_index_is_refused(document: Any, media_type: str, problem: str) -> None:
    with pytest.raises(LayoutError, match=problem):
        Index.parse(json.dumps(document).encode(), media_type=media_type, subject="index")


@given(
    st.recursive(
        st.none() | st.integers() | st.text() | st.booleans(),
        lambda one: (
            st.lists(one)
            | st.dictionaries(
                st.sampled_from(["manifests", "platform", "os", "annotations", "mediaType", "digest", "size"]), one
            )
        ),
    )
)
def test_no_document_is_more_than_a_typed_error(document: Any) -> None:
    raw = json.dumps({"manifests": document} if not isinstance(document, dict) else document).encode()
    try:
        Index.parse(raw, media_type=OCI, subject="index").select("linux/arm64", subject="i")
    except LayoutError as error:
        assert str(error).isprintable()  # noqa: PT017 - nearly all are refused


@pytest.mark.parametrize("platform", ["linux", "linux/", "", "linux/arm64/v8/more"])
def test_a_platform_that_is_none_is_in_no_index(platform: str) -> None:
    with pytest.raises(LayoutError):
        index(row(1, on("amd64"))).select(platform, subject="i")

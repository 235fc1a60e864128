from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from imgbuild import jsontext
from imgbuild.digest import Digest
from imgbuild.errors import DocumentError, LockVersionError
from imgbuild.model.lockfile import Input, digest_of_inputs, parse_lock

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.tiny import Tiny

HEX = "0" * 64


@pytest.fixture
def value(tiny: Tiny) -> Any:
    return json.loads(tiny.project().lock_path("tiny").read_bytes())


def parse(value: Any) -> Any:
    return parse_lock(jsontext.dumps(value), subject="locks/tiny.lock.json")


def problems(value: Any) -> list[str]:
    with pytest.raises(DocumentError) as caught:
        parse(value)
    assert caught.value.subject == "locks/tiny.lock.json"
    return sorted({problem.partition(":")[0] for problem in caught.value.problems})


def test_a_lock_as_it_is_written_is_read_back(tiny: Tiny, value: Any) -> None:
    assert parse(value) == tiny.lock()
    assert tiny.lock().dump() == tiny.project().lock_path("tiny").read_bytes()


@pytest.mark.parametrize("schema", ["imgbuild/lock/v2", "imgbuild/lock/v10"])
def test_a_lock_of_a_newer_version_says_so_before_anything_else_is_looked_at(value: Any, schema: str) -> None:
    with pytest.raises(LockVersionError, match="reads version 1 only"):
        parse({"schema": schema, "all": {"else": "is new"}})
    with pytest.raises(LockVersionError):
        parse({**value, "schema": schema})


@pytest.mark.parametrize("number", [0, 2, -1])
def test_a_lock_for_another_format_of_layers_says_so(value: Any, number: int) -> None:
    value["pins"]["format"] = number
    with pytest.raises(LockVersionError, match=r"pins\.format"):
        parse(value)


SETTERS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "an unknown field": (lambda v: v.update(extra=1), "document"),
    "a missing field": (lambda v: v.pop("pins"), "document"),
    "a size below zero": (lambda v: v["pins"]["base"].update(manifest_size=-1), "pins.base.manifest_size"),
    "a size that is true": (lambda v: v["pins"]["base"].update(manifest_size=True), "pins.base.manifest_size"),
    "a size as text": (lambda v: v["facts"]["base_layers"][0].update(size="1"), "facts.base_layers[0].size"),
    "a layer's size below zero": (lambda v: v["result"]["layers"][0].update(size=-1), "result.layers[0].size"),
    "an epoch before 1970": (lambda v: v["pins"].update(epoch=-1), "pins.epoch"),
    "an epoch that no date has": (lambda v: v["pins"].update(epoch=2**53), "pins.epoch"),
    "a short digest": (lambda v: v["pins"]["base"].update(manifest="sha256:0"), "pins.base.manifest"),
    "a digest with a path": (lambda v: v["pins"]["base"].update(config="sha256:../x"), "pins.base.config"),
    "a digest of null": (lambda v: v["pins"]["base"].update(config=None), "pins.base.config"),
    "one state only": (lambda v: v["pins"]["files"][0].update(states=["absent"]), "pins.files[0].states"),
    "a state that is none": (
        lambda v: v["pins"]["files"][0].update(states=["absent", "sha256:0"]),
        "pins.files[0].states[1]",
    ),
    "a state with a line break": (
        lambda v: v["pins"]["files"][0].update(states=["absent", f"sha256:{HEX}\n"]),
        "pins.files[0].states[1]",
    ),
    "a relative path": (lambda v: v["pins"]["files"][0].update(path="etc/motd"), "pins.files[0].path"),
    "a branch for a commit": (lambda v: v["pins"]["sources"][0].update(commit="main"), "pins.sources[0].commit"),
    "a commit with a line break": (
        lambda v: v["pins"]["sources"][0].update(commit="0" * 40 + "\n"),
        "pins.sources[0].commit",
    ),
    "an unknown kind of source": (lambda v: v["pins"]["sources"][0].update(kind="svn"), "pins.sources[0].kind"),
    "an image name with a slash": (lambda v: v.update(image="../tiny"), "image"),
    "an image name with a line break": (lambda v: v.update(image="tiny\n"), "image"),
    "a source twice": (lambda v: v["pins"]["sources"].append(v["pins"]["sources"][0]), "pins.sources"),
    "an input that was exchanged": (lambda v: v["inputs"][0].update(digest=f"sha256:{HEX}"), "inputs_digest"),
    "another digest of the inputs": (lambda v: v.update(inputs_digest=f"sha256:{HEX}"), "inputs_digest"),
}


@pytest.mark.parametrize("case", SETTERS)
def test_a_lock_with_one_wrong_value_names_its_place(value: Any, case: str) -> None:
    change, place = SETTERS[case]
    change(value)
    assert problems(value) == [place]


def test_all_wrong_values_are_named_at_once(value: Any) -> None:
    for case in ("a size below zero", "an epoch before 1970", "an image name with a slash"):
        SETTERS[case][0](value)
    assert problems(value) == ["image", "pins.base.manifest_size", "pins.epoch"]


def test_a_key_that_stands_twice_is_refused(tiny: Tiny) -> None:
    raw = tiny.project().lock_path("tiny").read_bytes().replace(b'"epoch": ', b'"epoch": 1,\n"epoch": ', 1)
    with pytest.raises(DocumentError, match="'epoch' stands twice"):
        parse_lock(raw, subject="x")


def test_a_size_beyond_2_to_the_53_is_refused(tiny: Tiny) -> None:
    lock = tiny.lock()
    size = str(lock.pins.base.manifest_size).encode()
    raw = lock.dump().replace(b'"manifest_size": ' + size, b'"manifest_size": 9007199254740993')
    with pytest.raises(DocumentError, match="beyond 2"):
        parse_lock(raw, subject="x")


def test_a_lock_without_facts_and_result_is_still_fully_pinned(value: Any) -> None:
    del value["facts"], value["result"]
    lock = parse(value)
    assert (lock.facts, lock.result) == (None, None)
    assert lock.pins.base.manifest


def test_the_embedded_lock_has_the_facts_and_not_the_result(tiny: Tiny) -> None:
    lock = tiny.lock()
    assert lock.facts is not None
    found = parse_lock(lock.embedded(lock.facts), subject="x")
    assert found == msgspec.structs.replace(lock, result=None)


def test_a_source_is_found_by_name_and_its_absence_names_it(tiny: Tiny) -> None:
    assert tiny.lock().source("helper").name == "helper"
    with pytest.raises(DocumentError, match=r"pins\.sources: has no 'other'"):
        tiny.lock().source("other")


def test_the_digest_of_the_inputs_does_not_depend_on_their_order_but_on_every_name_and_digest() -> None:
    one, two = Input(name="a", digest=Digest.of(b"1")), Input(name="b", digest=Digest.of(b"2"))
    assert digest_of_inputs([one, two]) == digest_of_inputs([two, one])
    others = [
        [one],
        [one, Input(name="c", digest=two.digest)],
        [one, Input(name="b", digest=one.digest)],
        [Input(name="a", digest=two.digest), Input(name="b", digest=one.digest)],
    ]
    assert len({digest_of_inputs(rows) for rows in [[one, two], *others]}) == 5

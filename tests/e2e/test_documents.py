"""The documents of `--json` and the files of the repository against the schemas that are shipped."""

from __future__ import annotations

import copy
import json
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from imgbuild.cli import run
from imgbuild.cli.schemas import generated, names, shipped
from imgbuild.model.receipt import parse_receipt
from jsonschema import Draft202012Validator

from tests.support.tiny import LIBRARY

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.tiny import Tiny

SAMPLES = {
    "build-result": ["build", "tiny"],
    "build-result of a dry run": ["build", "tiny", "--dry-run"],
    "check-result": ["check", "tiny"],
    "explain-result": ["explain", "tiny", f"/{LIBRARY}"],
    "explain-result of nothing": ["explain", "tiny", "/absent"],
    "inventory-result": ["inventory", "base"],
    "inventory-result by digest": ["inventory", "DIGEST"],
    "lock-result": ["lock", "tiny"],
    "lock-result of a check": ["lock", "tiny", "--check"],
    "lock-result of a change": ["lock", "tiny", "--complete", "--dry-run"],
    "lock-result of an update": ["lock", "tiny", "--update", "base", "--dry-run"],
    "nccl-result": ["nccl", f"base:/{LIBRARY}"],
    "nccl-result of two": ["nccl", f"tiny:/{LIBRARY}", "--against", f"base:/{LIBRARY}"],
    "plan-result": ["plan", "tiny"],
    "verify-report": ["verify", "tiny"],
    "error": ["verify", "tiny", "--tag", "absent"],
    "error of usage": ["build", "tiny", "--nonsense"],
    "error of an unknown image": ["plan", "absent"],
}


def validator(name: str) -> Draft202012Validator:
    return Draft202012Validator(json.loads(shipped(name)))


def document(tiny: Tiny, capsys: pytest.CaptureFixture[str], arguments: list[str]) -> Any:
    """What a command prints with `--json`; stdout holds that and nothing else."""
    capsys.readouterr()
    arguments = [str(tiny.lock().pins.base.manifest) if word == "DIGEST" else word for word in arguments]
    cache = [] if arguments[0] == "plan" else ["--cache", str(tiny.cache_path)]
    run([*arguments, "--json", "--project", str(tiny.root), *cache])
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("sample", SAMPLES)
def test_every_document_follows_the_schema_that_it_names(
    tiny: Tiny, capsys: pytest.CaptureFixture[str], sample: str
) -> None:
    assert run(["build", "tiny", "-q", "--project", str(tiny.root), "--cache", str(tiny.cache_path)]) == 0
    name = sample.partition(" ")[0]
    found = document(tiny, capsys, SAMPLES[sample])
    assert found["schema"] == f"imgbuild/{name}/v1"
    validator(name).validate(found)


def test_the_samples_are_all_documents_of_the_program() -> None:
    files = {"image", "layer", "lock", "receipt", "registries", "stand-in"}
    assert {sample.partition(" ")[0] for sample in SAMPLES} | files == set(names())


def files_of(tiny: Tiny) -> dict[str, Any]:
    """The documents that are files, by the name of their schema."""
    context = tiny.context()
    outcome = tiny.build(context)
    workspace = outcome.assembled.workspace
    raw = workspace.read(b"usr/share/imgbuild/receipt.json", where="test")
    assert parse_receipt(raw, subject="receipt").image == "tiny"
    return {
        "image": tomllib.loads((tiny.root / "locks" / "tiny.toml").read_text()),
        "layer": tomllib.loads((tiny.root / "layers" / "tiny-app" / "layer.toml").read_text()),
        "lock": json.loads(tiny.project().lock_path("tiny").read_bytes()),
        "receipt": json.loads(raw),
        "stand-in": tomllib.loads((Path(__file__).parents[1] / "standin/images/dsv41.toml").read_text()),
        "registries": {
            "schema": "imgbuild/registries/v1",
            "registry": {
                "docker.io/lmsysorg": {"mirrors": ["head:5000/hub/lmsysorg"]},
                "head:5000": {
                    "plain-http": True,
                    "ca": "/etc/ca.pem",
                    "profile": "quay",
                    "chunk-bytes": 1,
                    "parallel": 2,
                },
            },
        },
    }


def test_the_files_follow_their_schemas(tiny: Tiny) -> None:
    for name, value in files_of(tiny).items():
        validator(name).validate(value)


@pytest.mark.parametrize("name", names())
def test_a_shipped_schema_is_what_the_classes_give(name: str) -> None:
    assert shipped(name) == generated(name), "run `make schemas` and review the difference"


@pytest.mark.parametrize("name", names())
def test_a_shipped_schema_is_one_and_has_its_name(name: str) -> None:
    schema = json.loads(shipped(name))
    Draft202012Validator.check_schema(schema)
    assert schema["$id"] == f"imgbuild/{name}/v1"


def mutations(value: Any) -> Iterator[tuple[str, Any]]:
    """The document with one unknown field in each of its objects, and without each of its outermost fields."""
    for path in _objects(value):
        changed = copy.deepcopy(value)
        inner = changed
        for part in path:
            inner = inner[part]
        inner["unknown-field"] = {"x": 1}
        yield f"a field more at {path}", changed
    for key in value:
        yield f"without {key}", {name: item for name, item in value.items() if name != key}


def _objects(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    rows = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    if isinstance(value, dict):
        yield path
    for key, item in rows:
        yield from _objects(item, (*path, key))


OPTIONAL = {"facts", "result", "sources", "library", "config", "accept_env", "format", "hosts"}
"""Fields of the outermost object that may be absent, and tables with names of the author's."""


@pytest.mark.parametrize("name", ["image", "layer", "lock", "receipt", "build-result", "error"])
def test_a_document_that_was_changed_anywhere_is_refused(
    tiny: Tiny, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    value = document(tiny, capsys, SAMPLES[name]) if name in SAMPLES else files_of(tiny)[name]
    check = validator(name)
    assert check.is_valid(value)
    changed = dict(mutations(value))
    assert len(changed) > 4
    accepted = {case for case, other in changed.items() if check.is_valid(other)}
    assert {case for case in accepted if case.removeprefix("without ") not in OPTIONAL} == set()

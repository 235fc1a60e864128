from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from imgbuild.model.lockfile import HostWheel, LockedToolchain
from imgbuild.model.plan import Plan, PlannedLayer, make_plan

if TYPE_CHECKING:
    from collections.abc import Callable

    from imgbuild.model.lockfile import Lock

    from tests.support.tiny import Tiny


def plan_of(tiny: Tiny, lock: Lock | None = None) -> Plan:
    image = tiny.project().load("tiny")
    layers = tuple(
        PlannedLayer(name=layer.name, definition=layer.definition, known=layer.known, patches={})
        for layer in image.layers
    )
    lock = lock or tiny.lock()
    return make_plan(image.definition, layers, lock, inputs=lock.inputs_digest)


def test_a_plan_needs_nothing_but_definition_and_lock_and_is_always_the_same(tiny: Tiny) -> None:
    assert plan_of(tiny) == plan_of(tiny)
    assert plan_of(tiny).digest() == plan_of(tiny).digest()


def test_a_plan_names_every_step_with_its_source_pin_and_files(tiny: Tiny) -> None:
    plan = plan_of(tiny)
    steps = {step.id: step for layer in plan.layers for step in layer.steps}
    assert [(step.id, step.kind) for step in steps.values()] == [
        ("tiny-packages/1", "wheel"),
        ("tiny-adapter/1", "git-tree"),
        ("tiny-adapter/2", "file"),
        ("tiny-app/1", "patch"),
        ("tiny-app/2", "edit"),
        ("tiny-app/3", "remove"),
        ("tiny-nccl/1", "replace"),
    ]
    commit = tiny.lock().source("adapter")
    assert steps["tiny-adapter/1"].pin == f"commit {getattr(commit, 'commit', None)}"
    assert steps["tiny-packages/1"].pin == str(getattr(tiny.lock().source("helper"), "digest", None))
    assert [file.path for file in steps["tiny-app/1"].files] == ["/srv/app/auth.py", "/srv/app/keys.py"]
    assert len(steps["tiny-app/1"].files[0].states) == 3
    assert steps["tiny-app/1"].files[1].states[0] == "absent"
    assert all(step.does for step in steps.values())


def test_every_file_that_the_lock_pins_is_in_the_plan(tiny: Tiny) -> None:
    planned = {(step.id, file.path) for layer in plan_of(tiny).layers for step in layer.steps for file in step.files}
    assert planned == {(row.step, row.path) for row in tiny.lock().pins.files}


def test_a_plan_expects_what_the_lock_says_or_nothing(tiny: Tiny) -> None:
    lock = tiny.lock()
    assert lock.result is not None
    plan = plan_of(tiny)
    assert plan.expected_manifest == lock.result.manifest
    assert [layer.diff_id for layer in plan.layers] == [layer.diff_id for layer in lock.result.layers[:-1]]
    bare = plan_of(tiny, msgspec.structs.replace(lock, facts=None, result=None))
    assert bare.expected_manifest is None
    assert all(layer.diff_id is None for layer in bare.layers)


def test_another_pin_is_another_plan(tiny: Tiny) -> None:
    lock = tiny.lock()
    base = msgspec.structs.replace(lock.pins.base, manifest=lock.pins.base.config)
    other = msgspec.structs.replace(lock, pins=msgspec.structs.replace(lock.pins, base=base))
    assert plan_of(tiny, other).digest() != plan_of(tiny).digest()


COMPILE: dict[str, Any] = {
    "kind": "compile",
    "source": "adapter",
    "toolchain": "zig",
    "sources": ["a.c"],
    "language": "c17",
} | {
    "glibc": "2.34",
    "path": "/opt/a.so",
}
CHANGES: dict[str, Callable[[Tiny], object]] = {
    "entrypoint": lambda tiny: tiny.image.update(config={"entrypoint": ["/bin/other"]}),
    "workdir": lambda tiny: tiny.image.update(config={"workdir": "/tmp"}),
    "labels": lambda tiny: tiny.image.update(config={"labels": {"a": "b"}}),
    "healthcheck": lambda tiny: tiny.image.update(config={"healthcheck": {"test": ["CMD", "true"]}}),
    "limits": lambda tiny: tiny.image.update(limits={"bytes": 123_456_789}),
    "prefix": lambda tiny: tiny.layers["tiny-adapter"][0].update(prefix="lib"),
    "exclude": lambda tiny: tiny.layers["tiny-adapter"][0].update(exclude=["README"]),
    "mode": lambda tiny: tiny.layers["tiny-adapter"][1].update(mode="0700"),
    "edit": lambda tiny: tiny.layers["tiny-app"][1].update(replace="something else"),
    "strip": lambda tiny: tiny.layers["tiny-app"][0].update(strip=2),
    "wheel": lambda tiny: tiny.layers["tiny-packages"][0].update(owner="7:7"),
    "flags": lambda tiny: tiny.layers["tiny-app"].append({**COMPILE, "flags": ["-O3"]}),
    "glibc": lambda tiny: tiny.layers["tiny-app"].append({**COMPILE, "glibc": "2.31"}),
}


@pytest.mark.parametrize("name", CHANGES)
def test_the_digest_of_a_plan_covers_every_parameter_of_steps_and_config(tiny: Tiny, name: str) -> None:
    if name in {"flags", "glibc"}:
        tiny.layers["tiny-app"].append(dict(COMPILE))
    tiny.write()
    before = plan_of(tiny)
    if name in {"flags", "glibc"}:
        tiny.layers["tiny-app"].pop()
    CHANGES[name](tiny)
    tiny.write()
    # The lock stays as it is, and with it the digest over its inputs: each parameter stands in the plan itself.
    after = plan_of(tiny)
    assert after.inputs == before.inputs
    assert after.digest() != before.digest()


def test_the_digest_of_a_plan_covers_the_pin_of_the_toolchain_and_the_inputs(tiny: Tiny) -> None:
    lock = tiny.lock()
    host = HostWheel(platforms=["any"], filename="z.whl", digest=lock.pins.base.manifest)
    zig = LockedToolchain(name="zig", distribution="ziglang", version="0.15.2", hosts={"linux-x86_64": host})
    seen = {plan_of(tiny).digest()}
    for pin in (
        zig,
        msgspec.structs.replace(zig, version="0.15.3"),
        msgspec.structs.replace(zig, hosts={"linux-x86_64": msgspec.structs.replace(host, digest=lock.inputs_digest)}),
    ):
        pins = msgspec.structs.replace(lock.pins, sources=[*lock.pins.sources, pin])
        seen.add(plan_of(tiny, msgspec.structs.replace(lock, pins=pins)).digest())
    seen.add(plan_of(tiny, msgspec.structs.replace(lock, inputs_digest=lock.pins.base.manifest)).digest())
    assert len(seen) == 5

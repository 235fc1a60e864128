"""The tiny project with its patches in the repository of its adapter."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from imgbuild.digest import Digest

from tests.support.refusals import commit_again, locked
from tests.support.tiny import FILES, FIRST_PATCH, SECOND_PATCH

if TYPE_CHECKING:
    from tests.support.tiny import Tiny


def patches_of_a_commit(tiny: Tiny) -> Tiny:
    """The patches of `tiny-app` in the adapter's repository, with the states that upstream names; not written yet."""
    commit_again(tiny, _add)
    before = {row["path"]: row["states"] for row in locked(tiny)["pins"]["files"] if row["step"] == "tiny-app/1"}
    named = {path.removeprefix("/srv/"): states for path, states in before.items()}
    tiny.files = {path: data for path, data in FILES.items() if "patches" not in path}
    tiny.files["tiny-app/states.toml"] = states_text(named)
    step = tiny.layers["tiny-app"][0]
    step.update(source="adapter", stages=["patches/1.patch", "patches/2.patch"], states="states.toml")
    digests = {"patches/1.patch": str(Digest.of(FIRST_PATCH.encode()))}
    adapter = {"kind": "git", "repository": "adapter.bundle", "ref": "main", "licence": "Apache-2.0"}
    tiny.image["sources"] = {"adapter": {**adapter, "digests": digests, "evidence": ["boot.py"]}}
    return tiny


def _add(folder: Any) -> None:
    (folder / "patches").mkdir()
    (folder / "patches/1.patch").write_text(FIRST_PATCH)
    (folder / "patches/2.patch").write_text(SECOND_PATCH)


def states_text(named: dict[str, list[str]]) -> bytes:
    """A file of states."""
    return "".join(f"{json.dumps(path)} = {json.dumps(states)}\n" for path, states in named.items()).encode()

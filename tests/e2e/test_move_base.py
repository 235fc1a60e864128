"""`imgbuild lock --update base --to VALUE`: where the pin goes, what it changes, and what it breaks."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from imgbuild.digest import Digest

from tests.support.made import files, write_image
from tests.support.moving import Mover, rest
from tests.support.tiny import SITE, base_layers

if TYPE_CHECKING:
    from imgbuild.model.oci import Descriptor

    from tests.support.tiny import Tiny

SERVER = b"import os\n\nLIMIT = 48\n\n\ndef run():\n    return LIMIT + 1\n"
BROKEN = b"import sys\n\n\ndef check(key):\n    return key == 'A'\n"


@pytest.fixture
def mover(tiny: Tiny, capsys: pytest.CaptureFixture[str]) -> Mover:
    """A project whose definition pins manifest and config of the base, and is full of comments."""
    found = Mover(tiny, capsys)
    pin = found.base()
    tiny.image["base"] = {"manifest": pin["manifest"], "config": pin["config"]}
    tiny.write_definition()
    found.commented()
    found.result()
    return found


def another_base(tiny: Tiny, tag: str, more: dict[str, bytes], **labels: str) -> Descriptor:
    """Another base in the store: the usual one, and a layer more."""
    store: Any = tiny.context().store
    settings = {"Env": tiny.base_env, "Labels": {"commit": "c0ffee", **labels}}
    return write_image(store, [*base_layers(), files(more)], tag, config=settings)


def changed(mover: Mover, step: str, path: str, now: bytes) -> dict[str, str]:
    rows = json.loads(mover.lock.read_bytes())["pins"]["files"]
    recorded = next(row["states"][0] for row in rows if (row["step"], row["path"]) == (step, path))
    return {"path": path, "step": step, "recorded": recorded, "found": str(Digest.of(now))}


def distribution(name: str, version: str) -> dict[str, bytes]:
    info = f"{SITE}/{name}-{version}.dist-info"
    return {f"{info}/METADATA": f"Name: {name}\nVersion: {version}\n".encode(), f"{info}/RECORD": b""}


def test_the_manifest_moves_with_the_config_and_what_changed_is_said(mover: Mover) -> None:
    before, old = mover.definition.read_bytes(), mover.base()
    more = {"srv/app/server.py": SERVER, **distribution("torch", "2.9"), "usr/lib/other": b"x"}
    new = another_base(mover.tiny, "newer", more, build="7")
    found = mover.result("--update", "base", "--to", str(new.digest))
    pin = mover.base()
    assert (pin["manifest"], pin["tag_for_humans"]) == (str(new.digest), "base")
    assert pin["config"] != old["config"]
    after = mover.definition.read_bytes()
    assert rest(after, pin["manifest"], pin["config"]) == rest(before, old["manifest"], old["config"])
    moved = found["moved_pin"]
    assert [row["path"] for row in moved["edits"]] == ["base.manifest", "base.config"]
    assert moved["base"]["labels"] == {"count": 1, "first": [{"path": "build", "new": "7"}]}
    assert moved["base"]["distributions"] == {"count": 1, "first": [{"path": f"torch (/{SITE})", "new": "2.9"}]}
    (row,) = moved["base"]["preimages"]
    assert (row["path"], row["step"]) == ("/srv/app/server.py", "tiny-app/2")
    assert row["new"] == str(Digest.of(SERVER))
    assert mover.run("--check")[0] == 0


def test_packages_and_labels_are_said_in_words(mover: Mover) -> None:
    first = another_base(mover.tiny, "first", {**distribution("a", "1"), **distribution("b", "1")}, one="1", two="2")
    second = another_base(
        mover.tiny, "second", {**distribution("a", "2"), **distribution("c", "1")}, one="x", three="3"
    )
    mover.result("--update", "base", "--to", str(first.digest))
    code, out, _ = mover.run("--update", "base", "--to", str(second.digest))
    assert code == 0
    assert "  labels: 1 added, 1 removed, 1 changed\n    ~ one  1  ->  x\n    + three  3\n    - two  2\n" in out
    packages = f"    ~ a (/{SITE})  1  ->  2\n    - b (/{SITE})  1\n    + c (/{SITE})  1\n"
    assert f"  Python packages: 1 added, 1 removed, 1 changed\n{packages}" in out
    assert "files that steps touch and that changed: 0" in out


def test_a_tag_is_resolved_and_is_the_tag_for_people_from_then_on(mover: Mover) -> None:
    new = another_base(mover.tiny, "newer", {"srv/app/server.py": SERVER})
    found = mover.result("--update", "base", "--to", "newer")
    assert [row["path"] for row in found["moved_pin"]["edits"]] == ["base.manifest", "base.config", "base.tag"]
    assert (mover.base()["manifest"], mover.base()["tag_for_humans"]) == (str(new.digest), "newer")
    assert mover.result()["status"] == "current"


def test_without_to_the_tag_is_followed_and_the_definition_moves_with_it(mover: Mover) -> None:
    new = another_base(mover.tiny, "base", {"srv/app/server.py": SERVER})
    before = mover.both()
    assert mover.result("--update", "base", "--dry-run")["status"] == "would-write"
    assert mover.both() == before
    mover.result("--update", "base")
    assert mover.base()["manifest"] == str(new.digest)
    assert str(new.digest).encode() in mover.definition.read_bytes()


def test_a_base_that_is_not_pinned_moves_in_the_lock_only_or_by_its_tag(mover: Mover) -> None:
    mover.tiny.image["base"] = {}
    mover.tiny.write_definition()
    mover.result()
    before = mover.definition.read_bytes()
    new = another_base(mover.tiny, "newer", {"srv/app/server.py": SERVER})
    assert mover.result("--update", "base", "--to", str(new.digest))["moved_pin"]["edits"] == []
    assert (mover.definition.read_bytes(), mover.base()["manifest"]) == (before, str(new.digest))
    newest = another_base(mover.tiny, "newest", {"srv/app/server.py": SERVER + b"\n"})
    edits = mover.result("--update", "base", "--to", "newest")["moved_pin"]["edits"]
    assert edits == [{"path": "base.tag", "old": "base", "new": "newest"}]
    assert mover.base()["manifest"] == str(newest.digest)


def test_a_move_that_breaks_a_patch_writes_nothing_and_shows_the_hunk(mover: Mover) -> None:
    recorded = next(
        row["states"][0] for row in json.loads(mover.lock.read_bytes())["pins"]["files"] if row["step"] == "tiny-app/1"
    )
    more = {"srv/app/auth.py": BROKEN, "srv/app/server.py": SERVER, "opt/unused/file": b"2", "usr/lib/other": b"x"}
    new = another_base(mover.tiny, "newer", more)
    error = mover.refused("--update", "base", "--to", str(new.digest))
    assert error["code"] == "PATCH_REFUSED"
    assert error["patch"] == {
        "path": "/srv/app/auth.py",
        "step": "tiny-app/1",
        "recorded": recorded,
        "found": str(Digest.of(BROKEN)),
        "hunk": {
            "number": 1,
            "header": "@@ -1,2 +1,2 @@",
            "lines": [" def check(key):", "-    return key == 'a'", "+    return key in ('a', 'b')"],
            "at": 4,
            "there": [" def check(key):", "!    return key == 'A'"],
        },
        "changed": [
            changed(mover, "tiny-app/1", "/srv/app/auth.py", BROKEN),
            changed(mover, "tiny-app/2", "/srv/app/server.py", SERVER),
        ],
    }
    code, _, err = mover.run("--update", "base", "--to", str(new.digest))
    assert code == 3
    assert f"\n  file /srv/app/auth.py  (tiny-app/1)\n      is now    {Digest.of(BROKEN)}\n" in err
    assert f"      lock has  {recorded}\n  hunk 1  @@ -1,2 +1,2 @@\n       def check(key):\n      -    return" in err
    assert "  there, from line 4 (! is not what the hunk expects)\n       def check(key):\n      !    return" in err
    *_, heading, row, hint = err.splitlines()
    assert heading == "  the base has 1 more file otherwise that steps touch"
    assert row == "      /srv/app/server.py  (tiny-app/2)"
    assert hint.startswith("  hint: ")


def test_a_move_that_breaks_an_edit_writes_nothing_and_shows_the_text_and_what_is_nearest(mover: Mover) -> None:
    recorded = next(
        row["states"][0] for row in json.loads(mover.lock.read_bytes())["pins"]["files"] if row["step"] == "tiny-app/2"
    )
    server = SERVER.replace(b"LIMIT = 48", b"LIMIT = 64")
    new = another_base(mover.tiny, "newer", {"srv/app/server.py": server})
    error = mover.refused("--update", "base", "--to", str(new.digest))
    assert (error["code"], error["subject"]) == ("STEP_REFUSED", "edit of /srv/app/server.py")
    assert error["patch"] == {
        "path": "/srv/app/server.py",
        "step": "tiny-app/2",
        "recorded": recorded,
        "found": str(Digest.of(server)),
        "hunk": {"lines": ["-LIMIT = 48"], "at": 1, "there": [" import os", " ", "!LIMIT = 64", " ", " "]},
        "changed": [changed(mover, "tiny-app/2", "/srv/app/server.py", server)],
    }
    code, _, err = mover.run("--update", "base", "--to", str(new.digest))
    assert code == 3
    assert f"\n  file /srv/app/server.py  (tiny-app/2)\n      is now    {Digest.of(server)}\n" in err
    assert f"      lock has  {recorded}\n  text to find\n      -LIMIT = 48\n" in err
    assert "  nearest to it, from line 1 (! is not in that text)\n       import os\n       \n      !LIMIT = 64\n" in err


def test_a_move_that_leaves_an_edit_nothing_like_its_text_says_so(mover: Mover) -> None:
    new = another_base(mover.tiny, "newer", {"srv/app/server.py": b"import sys\n"})
    code, _, err = mover.run("--update", "base", "--to", str(new.digest))
    assert code == 3
    assert "      (nothing like it is in the file)\n" in err


def test_a_patch_that_was_edited_shows_its_hunk_at_a_plain_lock_too(mover: Mover) -> None:
    path = mover.tiny.root / "layers/tiny-app/patches/2.patch"
    path.write_text(path.read_text().replace("'b')\n+", "'c')\n+"))
    error = mover.refused()
    assert error["patch"]["recorded"] == error["patch"]["found"]
    assert error["patch"]["hunk"]["there"] == [" def check(key):", "!    return key in ('a', 'b')"]


def test_a_required_label_that_differs_refuses_the_move(mover: Mover) -> None:
    new = another_base(mover.tiny, "newer", {}, commit="other")
    assert "label commit of the base" in mover.refused("--update", "base", "--to", str(new.digest))["subject"]


def test_an_old_base_that_is_gone_is_no_obstacle(mover: Mover) -> None:
    tiny = mover.tiny
    new = another_base(tiny, "newer", {"srv/app/server.py": SERVER})
    old = mover.base()
    (tiny.store_path / "blobs/sha256" / old["manifest"].removeprefix("sha256:")).unlink()
    base = mover.result("--update", "base", "--to", str(new.digest))["moved_pin"]["base"]
    assert ("labels" in base, "distributions" in base) == (False, False)
    assert base["problem"]
    assert [row["path"] for row in base["preimages"]] == ["/srv/app/server.py"]


@pytest.mark.parametrize(
    ("value", "code", "says"),
    [
        (f"sha256:{'0' * 64}", 5, ""),
        ("sha256:12", 2, "is not a digest"),
        ("md5:" + "0" * 32, 2, "is not a digest"),
        ("absent", 5, ""),
        ("../x", 2, ""),
        ("", 2, ""),
        ("\x1b[2J", 2, ""),
    ],
)
def test_what_is_no_base_is_refused(mover: Mover, value: str, code: int, says: str) -> None:
    error = mover.refused("--update", "base", f"--to={value}")
    assert error["exit_code"] == code
    assert says in error["problem"]


def test_a_manifest_without_a_tag_has_nothing_to_follow(mover: Mover) -> None:
    pin = mover.base()
    mover.tiny.image["base"] = {"manifest": pin["manifest"]}
    mover.tiny.write_definition()
    text = mover.definition.read_text()
    mover.definition.write_text(text.replace('"tag" = "base", ', ""))
    mover.result()
    error = mover.refused("--update", "base")
    assert (error["exit_code"], error["hint"]) == (2, "say where to: --to DIGEST or --to TAG")
    new = another_base(mover.tiny, "newer", {"srv/app/server.py": SERVER})
    mover.result("--update", "base", "--to", "newer")
    assert mover.base()["manifest"] == str(new.digest)
    assert "tag_for_humans" not in mover.base()

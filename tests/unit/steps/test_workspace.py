"""What steps refuse in a workspace: paths outside, and swaps of what is not theirs or is the same already."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from imgbuild.digest import Digest
from imgbuild.errors import StepError
from imgbuild.steps.lock import make_lock, write_lock
from imgbuild.steps.sources import locate

from tests.support.made import library
from tests.support.refusals import locked, source, states, swap_library
from tests.support.tiny import LIBRARY, SITE, Tiny, base_layers

if TYPE_CHECKING:
    from pathlib import Path

    from imgbuild.model.lockfile import Lock


def made(tiny: Tiny) -> Lock:
    """The lock of a project that was changed; nothing is asked for."""
    tiny.write()
    project = tiny.project()
    context = tiny.context(offline=False)
    return make_lock(context, project.load("tiny"), project.lock("tiny"), update=frozenset({"base"})).lock


# replace


@pytest.mark.parametrize(
    ("path", "distribution", "actual"),
    [
        (f"/{LIBRARY}", "helper", "nccl-like"),
        (f"/{LIBRARY}", "nccl_like", "nccl-like"),
        (f"/{SITE}/helper/__init__.py", "nccl-like", "helper"),
        ("/etc/motd", "nccl-like", "no distribution"),
    ],
)
def test_only_the_distribution_that_owns_a_file_may_have_it_swapped(
    tiny: Tiny, path: str, distribution: str, actual: str
) -> None:
    tiny.layers["tiny-nccl"][0].update(path=path, distribution=distribution)
    with pytest.raises(StepError) as caught:
        made(tiny)
    assert caught.value.subject == f"file {path}"
    assert caught.value.problem == "is not owned by the distribution that the step names"
    assert (caught.value.expected, caught.value.actual) == (distribution, actual)
    assert caught.value.where == "tiny-nccl/1"


def shared(tiny: Tiny, claim: str) -> None:
    """Another distribution claims the library, too, with this hash and size."""
    folder = f"{SITE}/other-1.0.dist-info"
    row = f"{LIBRARY.removeprefix(f'{SITE}/')},{claim}\n".encode()
    tiny.base = base_layers(
        extra={f"{folder}/METADATA": b"Metadata-Version: 2.1\nName: other\nVersion: 1.0\n", f"{folder}/RECORD": row}
    )


def test_a_file_of_two_distributions_is_not_swapped_for_one_of_them(tiny: Tiny) -> None:
    shared(tiny, ",")
    with pytest.raises(StepError, match="is not owned by the distribution that the step names alone") as caught:
        made(tiny)
    assert (caught.value.expected, caught.value.actual) == ("nccl-like", "nccl-like, other")
    assert "shared_with" in str(caught.value.hint)


@pytest.mark.parametrize("claim", [",", f"sha256={'A' * 43},5"], ids=["nothing of its content", "another content"])
def test_a_file_of_two_distributions_that_are_named_is_swapped_and_both_say_what_it_is(tiny: Tiny, claim: str) -> None:
    shared(tiny, claim)
    tiny.layers["tiny-nccl"][0]["shared_with"] = ["other"]
    write_lock(tiny.project().lock_path("tiny"), made(tiny), old=tiny.project().lock("tiny"))
    report = tiny.build(dry_run=True).report
    assert report.ok, [row for row in report.findings if row.required and row.verdict.value != "match"]
    tiny.layers["tiny-nccl"][0]["shared_with"] = ["another"]
    with pytest.raises(StepError, match="the step names alone"):
        made(tiny)


def test_a_swap_that_changes_nothing_is_refused(tiny: Tiny) -> None:
    with pytest.raises(StepError) as caught:
        swap_library(tiny, library("2.29.7"))
    assert caught.value.subject == f"file /{LIBRARY}"
    assert caught.value.problem == "is the same already, so the swap does nothing"
    assert caught.value.actual == states(locked(tiny), f"/{LIBRARY}")[0]


def test_a_swap_is_pinned_by_what_it_found_and_left(tiny: Tiny) -> None:
    value = locked(tiny)
    assert states(value, f"/{LIBRARY}") == [str(Digest.of(library("2.29.7"))), source(value, "nccl")["digest"]]


# Sources in the repository


@pytest.mark.parametrize(
    "text", ["https://host/a.git", "ssh://git@host/a", "file:///srv/a", "https://host/../a", "git://host/a"]
)
def test_a_url_of_a_source_stays_as_it_is(tiny: Tiny, text: str) -> None:
    assert locate(tiny.context(), text) == text


@pytest.mark.parametrize("text", ["adapter.bundle", "./adapter.bundle", "wheels/../adapter.bundle", "inside/way"])
def test_a_path_of_a_source_becomes_absolute(tiny: Tiny, text: str) -> None:
    (tiny.root / "inside").mkdir()
    (tiny.root / "inside" / "way").symlink_to("../adapter.bundle")
    assert locate(tiny.context(), text) == str((tiny.root / "adapter.bundle").resolve())


@pytest.mark.parametrize(
    "text",
    [
        "..",
        "../outside",
        "wheels/../../outside",
        "/etc",
        "{root}/adapter.bundle",
        "../project-of-another",
        "away/sources",
        "absolute",
    ],
)
def test_a_path_of_a_source_that_leaves_the_repository_is_refused(tiny: Tiny, text: str, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "project-of-another").mkdir()
    (tiny.root / "away").symlink_to("../outside")
    (tiny.root / "absolute").symlink_to(tmp_path / "outside")
    text = text.format(root=tiny.root)
    with pytest.raises(StepError) as caught:
        locate(tiny.context(), text)
    assert caught.value.subject == f"repository {text!r}"
    assert caught.value.problem == "is neither a URL nor a path below the repository's own folder"


def test_a_source_outside_of_the_repository_is_refused_when_a_lock_is_made(tiny: Tiny) -> None:
    (tiny.root / "adapter.bundle").rename(tiny.root.parent / "adapter.bundle")
    path = tiny.root / "locks" / "tiny.toml"
    path.write_text(path.read_text().replace('"adapter.bundle"', '"../adapter.bundle"'))
    project = tiny.project()
    with pytest.raises(StepError, match="nor a path below the repository's own folder"):
        make_lock(tiny.context(offline=False), project.load("tiny"), project.lock("tiny"), update=frozenset())

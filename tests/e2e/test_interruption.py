"""A run is killed, or meets a full disk, at every write there is (cases C58, C59; design.md, section 1, promises 3, 5).

What is on disk after a kill just after one write is what is there just before the next one. So killing before every
write, and half-way through those that write bytes, covers both; after the last one the run is over.
"""

from __future__ import annotations

import collections
import errno
import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest
from imgbuild.adapters import durable
from imgbuild.adapters.store import Store
from imgbuild.cli import run
from imgbuild.digest import Digest
from imgbuild.ledger import Ledger
from imgbuild.model.oci import Descriptor

from tests.support import outside
from tests.support.faults import Fault, Outcome, run_child
from tests.support.scratch import Scratch, forget_derived
from tests.support.sources import PACKAGE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="names open files by /proc/self/fd")
CHECKOUT = Path(__file__).resolve().parents[2]
Way = Literal["kill", "fail"]
OLD = Descriptor(media_type="application/vnd.oci.image.manifest.v1+json", digest=Digest.of(b"an older image"), size=1)


@pytest.fixture(scope="module")
def scratch(tiny_locked: Path) -> Iterator[Scratch]:
    """A locked project in three states.

    `fresh` has no tag, and all in the cache; in `old` another image has the tag, and the cache has nothing that can be
    derived; in `stale` the definition has changed since the lock was made.
    """
    with Scratch(tiny_locked) as scratch:
        # Afterwards everything is imported, and git's repository is in the cache; nothing of it is in the store.
        assert build(scratch, "--quiet", "--dry-run") == 0
        scratch.keep("fresh")
        forget_derived(scratch.cache, scratch.tiny.lock())
        Store(scratch.store, ledger=Ledger()).tag("tiny", OLD)
        scratch.keep("old")
        scratch.restore("fresh")
        definition = scratch.root / "locks" / "tiny.toml"
        text = definition.read_text().replace("a tiny image", "a tiny image, as it is wanted now")
        definition.unlink()
        definition.write_text(text)
        scratch.keep("stale")
        yield scratch


def build(scratch: Scratch, *more: str) -> int:
    return run(["build", "tiny", "--offline", "--project", str(scratch.root), "--cache", str(scratch.cache), *more])


def lock(scratch: Scratch, *more: str) -> int:
    return run(["lock", "tiny", "--offline", "--project", str(scratch.root), "--cache", str(scratch.cache), *more])


def as_a_new_process() -> None:
    """With one thread the writes of two runs are the same, in the same order; and nothing is known of earlier runs."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    os.cpu_count = lambda: 1
    durable._SWEPT.clear()


def child(scratch: Scratch, work: Callable[[], int], fault: Fault | None = None) -> Outcome:
    return run_child(work, scratch.root, fault, log=scratch.folder / "calls", preamble=as_a_new_process)


def leftovers(scratch: Scratch) -> list[str]:
    """Files that no run needs: without a final name, or staged."""
    found = [
        path for path in scratch.root.rglob(".*-*") if path.name.startswith((".imgbuild-pending-", ".fetch-", ".work-"))
    ]
    found += (scratch.store / ".imgbuild-staging").rglob("[0-9a-f]*[0-9a-f]")
    return [str(path.relative_to(scratch.root)) for path in found if path.is_file()]


def damaged(scratch: Scratch) -> list[str]:
    """Blobs whose content is not what their name says."""
    found = [*scratch.store.glob("blobs/sha256/[0-9a-f]*"), *scratch.cache.glob("blobs/sha256/[0-9a-f]*")]
    assert len(found) > 5
    return [str(path) for path in found if hashlib.sha256(path.read_bytes()).hexdigest() != path.name]


def tags(scratch: Scratch) -> dict[str, Descriptor]:
    return Store(scratch.store, ledger=Ledger()).tags()


def holes(scratch: Scratch) -> list[str]:
    """What an image that has a tag names, and others do not find in the store."""
    store = Store(scratch.store, ledger=Ledger())
    found = []
    for name, descriptor in store.tags().items():
        if descriptor == OLD:
            continue
        manifest = store.manifest(descriptor) if store.has(descriptor.digest, descriptor.size) else None
        parts = [descriptor] if manifest is None else [manifest.config, *manifest.layers]
        found += [f"{name}: {part.digest}" for part in parts if not store.has(part.digest, part.size)]
    return found


def given_its_name(calls: tuple[tuple[str, str], ...], folder: Path) -> bool:
    """Whether a new file in a folder replaced the old one among these calls."""
    return any(name == "replace" and Path(path).parent == folder for name, path in calls)


def went_wrong(number: int, way: Way) -> Fault:
    if way == "kill":
        return Fault(at=number)
    return Fault(at=number, errno=(errno.ENOSPC, errno.EIO)[number % 2])


def check_end(outcome: Outcome, way: Way) -> None:
    """A killed process says nothing; one whose write failed says one typed error with its exit code."""
    if way == "kill":
        assert outcome.status is None
        return
    assert outcome.status == 5, outcome.output
    document, end = json.JSONDecoder().raw_decode(outcome.output)
    assert document["error"]["code"] == "STORAGE"
    assert outcome.output[end:].count("error[STORAGE]") == 1
    assert "Traceback" not in outcome.output


def test_the_fault_is_where_it_was_asked_for(scratch: Scratch) -> None:
    scratch.restore("fresh")
    clean = child(scratch, lambda: build(scratch))
    scratch.restore("fresh")
    outcome = child(scratch, lambda: build(scratch), Fault(at=9))
    assert outcome.status is None
    assert kinds(outcome.calls) == kinds(clean.calls[:10])
    assert leftovers(scratch)


def kinds(calls: tuple[tuple[str, str], ...]) -> list[str]:
    return [name for name, _ in calls]


@pytest.mark.parametrize("way", ["kill", "fail"])
@pytest.mark.parametrize("state", ["fresh", "old"])
def test_C58_a_build_that_ends_at_any_write_has_no_new_tag_and_no_damage_and_the_next_one_succeeds(
    scratch: Scratch, state: str, way: Way
) -> None:
    scratch.restore(state)
    before = scratch.content(state)
    locked = scratch.tiny.lock().result
    assert locked is not None
    tagged = tags(scratch)
    for number in places(scratch, state, way):
        scratch.restore(state)
        outcome = child(scratch, lambda: build(scratch, "--json"), went_wrong(number, way))
        case = f"{number}: {outcome.calls[-1]}"
        check_end(outcome, way)
        named = given_its_name(outcome.calls[:number], scratch.store)
        assert {name: found.digest for name, found in tags(scratch).items()} == {
            **{name: found.digest for name, found in tagged.items()},
            **({"tiny": locked.manifest} if named else {}),
        }, case
        assert not damaged(scratch), case
        assert not holes(scratch), case
        assert child(scratch, lambda: build(scratch)).status == 0, case
        assert tags(scratch)["tiny"].digest == locked.manifest, case
        assert not damaged(scratch), case
        assert not holes(scratch), case
        assert not leftovers(scratch), case
    assert scratch.content(state) == before


def places(scratch: Scratch, state: str, way: Way) -> list[int]:
    """The numbers of the writes at which a build from that state is to end.

    From `fresh` they are all; from `old` those to the cache, which `fresh` does not make, and those of the tag. A kill
    before fsync finds on disk what a kill before the next call finds. A failure of the same call in the same folder
    takes the same way through the program, so from `old` the first and the last of them will do.
    """
    clean = child(scratch, lambda: build(scratch))
    assert clean.status == 0, clean.output
    calls = clean.calls
    assert 50 < len(calls) < 300
    numbers = [n for n in range(len(calls)) if way == "fail" or calls[n][0] != "fsync"]
    if state == "fresh":
        return numbers
    first = next(n for n in numbers if calls[n] == ("open", str(scratch.store / ".imgbuild-lock")))
    numbers = [n for n in numbers if n >= first or Path(calls[n][1]).is_relative_to(scratch.cache)]
    if way == "fail":
        kinds = [(calls[n][0], Path(calls[n][1]).parent) for n in numbers]
        numbers = [n for i, n in enumerate(numbers) if kinds[i] not in kinds[:i] or kinds[i] not in kinds[i + 1 :]]
    assert len(numbers) > 20
    return numbers


@pytest.mark.parametrize("way", ["kill", "fail"])
def test_C58_a_build_that_ends_while_it_clears_up_after_a_killed_one_leaves_that_to_the_next(
    scratch: Scratch, way: Way
) -> None:
    scratch.restore("fresh")
    clean = child(scratch, lambda: build(scratch))
    last_staged = max(n for n, call in enumerate(clean.calls) if call[0] == "open" and ".imgbuild-staging" in call[1])
    scratch.restore("fresh")
    assert child(scratch, lambda: build(scratch), Fault(at=last_staged + 2)).status is None
    left = leftovers(scratch)
    assert len(left) > 5
    scratch.keep("dirty")
    numbers = [n for n, call in enumerate(child(scratch, lambda: build(scratch)).calls) if call[0] == "unlink"]
    assert len(numbers) == len(left)
    for number in numbers:
        scratch.restore("dirty")
        outcome = child(scratch, lambda: build(scratch, "--json"), went_wrong(number, way))
        pending = ".imgbuild-pending-" in outcome.calls[number][1]
        if way == "fail" and pending:
            # Clearing up a file without a name is no one's order: it is tried again by the next run.
            assert outcome.status == 0
        else:
            check_end(outcome, way)
            assert "tiny" not in tags(scratch)
        assert child(scratch, lambda: build(scratch)).status == 0
        assert not leftovers(scratch)
        assert not damaged(scratch)


@pytest.mark.parametrize("way", ["kill", "fail"])
def test_a_lock_that_ends_at_any_write_leaves_the_old_lock_or_the_new_one_and_no_tag(
    scratch: Scratch, way: Way
) -> None:
    scratch.restore("stale")
    path = scratch.root / "locks" / "tiny.lock.json"
    old = path.read_bytes()
    clean = child(scratch, lambda: lock(scratch))
    assert clean.status == 0, clean.output
    new = path.read_bytes()
    assert new != old
    every = range(len(clean.calls))
    numbers = [n for n in every if clean.calls[n][0] != "fsync"] if way == "kill" else every[-12:]
    for number in numbers:
        scratch.restore("stale")
        outcome = child(scratch, lambda: lock(scratch, "--json"), went_wrong(number, way))
        case = f"{number}: {outcome.calls[-1]}"
        check_end(outcome, way)
        named = given_its_name(outcome.calls[:number], path.parent)
        assert path.read_bytes() == (new if named else old), case
        assert set(tags(scratch)) == {"base"}, case
        assert not damaged(scratch), case
        assert child(scratch, lambda: lock(scratch)).status == 0, case
        assert path.read_bytes() == new, case
        # A lock that was written to its end is current: nothing is left to do, nor to clear up, until a build.
        assert named or not leftovers(scratch), case


def test_a_store_whose_making_ends_at_any_write_is_made_by_the_next_one(scratch: Scratch) -> None:
    scratch.restore("fresh")
    root = scratch.root / "another" / "store"

    def create() -> int:
        Store(root, ledger=Ledger()).create()
        return 0

    clean = child(scratch, create)
    assert len(clean.calls) > 10
    for number in range(len(clean.calls)):
        scratch.restore("fresh")
        assert child(scratch, create, Fault(at=number)).status is None
        again = child(scratch, create)
        assert again.status == 0, f"{number}: {clean.calls[number]}: {again.output}"
        assert Store(root, ledger=Ledger()).tags() == {}
        assert not leftovers(scratch)


def test_C59_every_file_is_on_disk_before_it_gets_its_name_and_every_name_before_the_run_goes_on(
    scratch: Scratch,
) -> None:
    # A kill does not show what a power cut would: the order of the calls does.
    scratch.restore("old")
    calls = child(scratch, lambda: build(scratch)).calls
    named = [number for number, (name, _) in enumerate(calls) if name == "replace"]
    # Small files of the cache are not synced: who reads one checks it.
    cached = [number for number in named if calls[number][1].startswith(f"{scratch.cache}/blobs/")]
    assert len(set(named) - set(cached)) > 25
    for number in named:
        _, path = calls[number]
        before = [name for name, other in calls[:number] if other == path]
        staged = ".imgbuild-pending-" not in path
        synced = ["open", *["write"] * (len(before) - 3), "fchmod", "fsync"]
        if number in cached and before[-1] != "fsync":
            continue
        assert staged or before == synced
        name, folder = calls[number + 1]
        assert name == "fsync"
        assert Path(folder).is_dir()


KERNEL = re.compile(r"^(?P<pid>\d+) +(?P<call>[a-z0-9_]+)\((?P<arguments>.*)\) += (?P<result>-?\d+)")
TARGET = re.compile(r'(?:AT_FDCWD(?:<[^>]*>)?, )?"(?P<path>[^"]*)"|\d+<(?P<open>[^>]*)>')
CUT = re.compile(r"^(?P<pid>\d+) +(?:<\.\.\. [a-z0-9_]+ resumed>(?P<end>.*)|(?P<start>.*) <unfinished \.\.\.>)$")
SAME = {
    "openat": "open",
    "pwrite64": "pwrite",
    "renameat": "rename",
    "renameat2": "rename",
    "unlinkat": "unlink",
    "mkdirat": "mkdir",
    "linkat": "link",
    "symlinkat": "symlink",
    "fchmodat": "chmod",
    "utimensat": "utime",
    "replace": "rename",
}
WRITES = (
    "open,openat,openat2,creat,write,pwrite64,writev,pwritev,pwritev2,rename,renameat,renameat2,unlink,unlinkat,rmdir,"
    "mkdir,mkdirat,link,linkat,symlink,symlinkat,mknod,mknodat,chmod,fchmod,fchmodat,chown,fchown,lchown,fchownat,"
    "truncate,ftruncate,fallocate,utime,utimes,utimensat,futimesat,setxattr,fsetxattr,lsetxattr,fsync,fdatasync,"
    "copy_file_range,sendfile,splice,mmap,execve"
)
PROGRAM = """
import os, sys
from pathlib import Path
from imgbuild.cli import run
from tests.support.faults import count_writes
root, log, *arguments = sys.argv[1:]
count_writes(Path(root), os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600))
sys.exit(run(arguments))
"""


@pytest.mark.tools
def test_the_kernel_sees_no_write_of_the_program_that_is_not_among_the_counted_ones(scratch: Scratch) -> None:
    outside.tool("strace")
    scratch.restore("old")
    trace, log = scratch.folder / "trace", scratch.folder / "counted"
    command = ["strace", "-f", "-y", "-qq", "-s", "0", "-e", f"trace={WRITES}", "-e", "signal=none", "-o", str(trace)]
    arguments = ["build", "tiny", "-q", "--project", str(scratch.root), "--cache", str(scratch.cache)]
    subprocess.run(
        [*command, sys.executable, "-c", PROGRAM, str(scratch.root), str(log), *arguments],
        cwd=CHECKOUT,
        env={**os.environ, "PYTHONPATH": f"{CHECKOUT}{os.pathsep}{PACKAGE.parent}"},
        check=True,
    )
    seen = seen_by_kernel(trace.read_text(), scratch.root)
    counted = collections.Counter(
        (SAME.get(name, name), path) for name, path in map(json.loads, log.read_text().splitlines())
    )
    assert sum(seen.values()) > 100
    assert seen == counted


def seen_by_kernel(trace: str, root: Path) -> collections.Counter[tuple[str, str]]:
    """The successful calls of our own process that change something below `root`; those of git are git's."""
    programs: dict[str, None] = {}
    found: collections.Counter[tuple[str, str]] = collections.Counter()
    for line in whole_lines(trace):
        match = KERNEL.match(line)
        if match is None or int(match["result"]) < 0:
            continue
        call, arguments = match["call"], match["arguments"]
        if call == "execve":
            programs[match["pid"]] = None
            continue
        target = TARGET.search(arguments)
        path = "" if target is None else target["path"] or target["open"] or ""
        reads = {
            "mmap": not ("PROT_WRITE" in arguments and "MAP_SHARED" in arguments),
            "open": not re.search(r"O_(WRONLY|RDWR|CREAT|TRUNC|APPEND)", arguments),
        }.get(SAME.get(call, call), False)
        if path.startswith(str(root)) and match["pid"] not in list(programs)[1:] and not reads:
            found[SAME.get(call, call), path] += 1
    return found


def whole_lines(trace: str) -> Iterator[str]:
    """The calls of a trace; those that strace cut in two because another thread came between are put together."""
    begun: dict[str, str] = {}
    for line in trace.splitlines():
        cut = CUT.match(line)
        if cut is None:
            yield line
        elif cut["start"] is not None:
            begun[cut["pid"]] = cut["start"]
        else:
            yield f"{cut['pid']} {begun.pop(cut['pid'])}{cut['end']}"


def test_the_reading_of_the_trace_finds_a_write_that_was_not_counted() -> None:
    trace = """\
10 execve("/usr/bin/python3", [...], 0x1 /* 38 vars */) = 0
10 openat(AT_FDCWD</w>, "/r/read", O_RDONLY|O_CLOEXEC) = 3</r/read>
10 openat(AT_FDCWD</w>, "/r/new", O_WRONLY|O_CREAT, 0600) = 4</r/new>
11 write(4</r/new>, ""..., 9 <unfinished ...>
10 mkdir("/r/folder", 0777) = -1 EEXIST (File exists)
11 <... write resumed>) = 9
12 execve("/usr/bin/git", [...], 0x1 /* 38 vars */) = 0
12 write(4</r/new>, ""..., 3) = 3
10 mmap(NULL, 4096, PROT_READ|PROT_WRITE, MAP_SHARED, 5</r/mapped>, 0) = 0x7f
10 rename("/r/new", "/r/name") = 0
10 write(1</dev/null>, ""..., 3) = 3
"""
    assert seen_by_kernel(trace, Path("/r")) == collections.Counter(
        [("open", "/r/new"), ("write", "/r/new"), ("mmap", "/r/mapped"), ("rename", "/r/new")]
    )

"""The stand-ins of other people's repositories and of the patched library: the same paths, texts of ours."""

from __future__ import annotations

import difflib
import json
import tempfile
from pathlib import Path

from imgbuild.digest import Digest

from tests.standin.adapter.make_bundle import git
from tests.support.made import library

DATE = 1_767_225_600
PATCHES = "runtime/deepseek-v41-sglang/patches"
NEW = frozenset(
    {
        "python/sglang/kernels/ops/attention/dsv4/indexer_postprocess.py",
        "python/sglang/kernels/ops/attention/dsv4/q_rope_store.py",
        "python/sglang/srt/layers/quantization/mxfp8_input.py",
        "test/registered/kernels/benchmark/attention/bench_c2_verify.py",
        "test/registered/kernels/ops/attention/dsv4/test_c2_verify.py",
        "test/registered/kernels/test_dsv4_indexer_postprocess.py",
        "test/registered/kernels/test_dsv4_q_rope_store.py",
    }
)
"""Files that the first patch makes."""
CHANGED = frozenset(
    {
        "python/sglang/kernels/jit/csrc/deepseek_v4/c2.cuh",
        "python/sglang/kernels/ops/attention/dsv4/c2.py",
        "python/sglang/kernels/ops/attention/dsv4/candidate_blocks.py",
        "python/sglang/kernels/ops/attention/dsv4/wo_a_bf16_small_batch.py",
        "python/sglang/srt/layers/attention/deepseek_v4_backend.py",
        "python/sglang/srt/layers/quantization/fp8.py",
        "python/sglang/srt/models/deepseek_v4.py",
        "test/registered/attention/unittests/dsv4/test_dsv41_fused_compress.py",
        "test/registered/quant/test_block_fp8_as_mxfp8.py",
    }
)
TWICE = "python/sglang/srt/layers/attention/deepseek_v4_backend.py"
"""The one that the second patch changes again."""

_STORE = """#include <cstdint>

extern "C" std::uint64_t row_store_rows(std::uint64_t low, std::uint64_t high) {
    return high - low;
}
"""
_ROWS = """#include <stdint.h>

uint64_t engram_rows(uint64_t low, uint64_t high) {
    return high - low;
}
"""
ADAPTER = {
    "LICENSE": "A stand-in for the text of a licence.\n",
    "README.md": "A stand-in for the adapter.\n",
    "Dockerfile": "FROM lmsysorg/sglang:dev-dsv41\nCOPY adapter /opt/dsv41/adapter\n",
    "boot.py": "print('stand-in')\n",
    "adapter/sitecustomize.py": "HOOKS = ()\n",
    "adapter/row_store.cpp": _STORE,
    "benchmarks/bench.py": "RUNS = 1\n",
    "scripts/remote.py": "HOSTS = ()\n",
    "tests/test_loop_abort.py": "def test() -> None: ...\n",
    "runtime/flash_mla_sm120.py": "KERNEL = 'adapter'\n",
    "runtime/patch_encoding_dsv41.py": "# A stand-in: the layer has an edit step instead.\n",
}
RECIPES = {
    f"recipes/deepseek-v4.1-flash/sglang/{path}": text
    for path, text in {
        "Dockerfile": "ARG BASE=lmsysorg/sglang\nFROM ${BASE}\n",
        "LICENSE": "A stand-in for the text of a licence.\n",
        "NOTICE": "A stand-in for a notice.\n",
        "README.md": "A stand-in for the overlay.\n",
        "overlay/sitecustomize.py": "HOOKS = ()\n",
        "overlay/engram_rows.c": _ROWS,
        "tests/test_engram_rows.py": "def test() -> None: ...\n",
    }.items()
}


def before(path: str) -> str:
    """What the base has at one of the 16 paths."""
    return "".join(f"# {path}, line {number}\n" for number in range(1, 41))


def _first(path: str) -> str:
    if path in NEW:
        return f"# new: {path}\nVALUE = 1\n"
    return before(path).replace("line 20\n", "line 20, changed\n")


def _second(path: str) -> str:
    return _first(path).replace("line 30\n", "line 30, changed again\n")


def _diff(path: str, old: str | None, new: str) -> str:
    lines = difflib.unified_diff(
        [] if old is None else old.splitlines(keepends=True),
        new.splitlines(keepends=True),
        "/dev/null" if old is None else f"a/{path}",
        f"b/{path}",
    )
    head = f"diff --git a/{path} b/{path}\n" + ("new file mode 100644\n" if old is None else "")
    return head + "".join(lines)


def patches() -> dict[str, str]:
    """The two patch files, by their paths in the repository that carries them."""
    first = [_diff(path, None if path in NEW else before(path), _first(path)) for path in sorted(NEW | CHANGED)]
    return {
        f"{PATCHES}/sglang-39068.patch": "".join(first),
        f"{PATCHES}/bounded-prefill.patch": _diff(TWICE, _first(TWICE), _second(TWICE)),
    }


def states() -> dict[str, list[str]]:
    """Of each file that the patches touch: its states, from the preimage on."""
    found = {}
    for path in sorted(NEW | CHANGED):
        texts = [before(path), _first(path), *([_second(path)] if path == TWICE else [])]
        found[path] = [str(Digest.of(text.encode())) for text in texts]
        if path in NEW:
            found[path][0] = "absent"
    return found


def sparkring() -> dict[str, str]:
    """The files of that repository: the patches, and what it says itself of the files that they touch."""
    rows = [
        {
            "path": path,
            "input_sha256": None if found[0] == "absent" else found[0].removeprefix("sha256:"),
            "verify_overlay_sha256": found[1].removeprefix("sha256:"),
            "output_sha256": found[-1].removeprefix("sha256:"),
        }
        for path, found in states().items()
    ]
    manifest = json.dumps({"schema_version": 1, "files": rows}, indent=2) + "\n"
    return {**patches(), f"{PATCHES}/manifest.json": manifest}


def nccl() -> bytes:
    """A library that says 2.30.7, and that it reads the variable of the ring."""
    return library("2.30.7", extra=b"NCCL_SWITCHLESS_RING_ONLY\0NCCL_SKIP_TREE_CONNECT\0")


def bundle(files: dict[str, str]) -> tuple[bytes, str]:
    """A bundle of one commit on `main`, and the commit; the same files give the same ones."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        git(folder, "init", "--quiet", "--bare", "--template=", "--object-format=sha1", ".")
        lines = []
        for path, text in sorted(files.items()):
            blob = git(folder, "hash-object", "-w", "--stdin", data=text.encode()).decode().strip()
            mode = "100755" if text.startswith("#!") else "100644"
            lines.append(f"{mode} {blob}\t{path}\n".encode())
        git(folder, "update-index", "--add", "--index-info", data=b"".join(lines))
        tree = git(folder, "write-tree").decode().strip()
        commit = git(folder, "commit-tree", tree, date=DATE, data=b"stand-in\n").decode().strip()
        git(folder, "update-ref", "refs/heads/main", commit)
        git(folder, "bundle", "create", "--quiet", "--version=2", "made.bundle", "refs/heads/main")
        return (folder / "made.bundle").read_bytes(), commit

"""Write layers/mini-adapter/adapter.bundle: the toy adapter as two tagged git commits, the same bytes always.

Run it by hand after a change of `src/`, then move the pin in the definitions that use the bundle:

    python tests/standin/adapter/make_bundle.py [OUTPUT]

`src/v0_2_0` is the whole tree of tag v0.2.0. `src/v0_1_0` holds the files that differed at tag v0.1.0. Authors and
dates are fixed, no configuration or template of the user is read, and nothing is deflated or stored as a delta, so
that the version of zlib cannot change a byte.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCES = HERE / "src"
OUTPUT = HERE.parents[2] / "layers" / "mini-adapter" / "adapter.bundle"
ADDED_IN_0_2_0 = frozenset({"CHANGELOG.md"})
COMMITS = (("v0.1.0", 1_767_225_600), ("v0.2.0", 1_769_904_000))
"""Tag and date (seconds since 1970, UTC) of each commit: 1 January and 1 February 2026."""

OPTIONS = (
    "core.compression=0",
    "core.looseCompression=0",
    "pack.compression=0",
    "pack.threads=1",
    "pack.window=0",
    "core.hooksPath=/dev/null",
    "core.autocrlf=false",
    "init.defaultBranch=main",
    "gc.auto=0",
)


def git(folder: Path, *arguments: str, date: int = 0, data: bytes = b"") -> bytes:
    """The output of one git command in a bare repository, untouched by any configuration."""
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "LC_ALL": "C",
        "TZ": "UTC",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_AUTHOR_NAME": "imgbuild",
        "GIT_AUTHOR_EMAIL": "imgbuild@example.invalid",
        "GIT_AUTHOR_DATE": f"{date} +0000",
        "GIT_COMMITTER_NAME": "imgbuild",
        "GIT_COMMITTER_EMAIL": "imgbuild@example.invalid",
        "GIT_COMMITTER_DATE": f"{date} +0000",
    }
    options = [word for option in OPTIONS for word in ("-c", option)]
    command = ["git", *options, *arguments]
    return subprocess.run(command, cwd=folder, env=environment, input=data, check=True, stdout=subprocess.PIPE).stdout


def version_files(tag: str) -> dict[str, Path]:
    """Path in the tree to source file, for one tag."""
    whole = SOURCES / "v0_2_0"
    files = {str(path.relative_to(whole)): path for path in walk(whole)}
    if tag == "v0.1.0":
        older = SOURCES / "v0_1_0"
        files = {name: path for name, path in files.items() if name not in ADDED_IN_0_2_0}
        files |= {str(path.relative_to(older)): path for path in walk(older)}
    return files


def walk(folder: Path) -> list[Path]:
    """All files and links, without what Python leaves behind when it imports them."""
    return sorted(
        path for path in folder.rglob("*") if (path.is_symlink() or path.is_file()) and "__pycache__" not in path.parts
    )


def index_line(folder: Path, name: str, path: Path) -> bytes:
    """Store one file as a blob; its line for `git update-index --index-info`."""
    if path.is_symlink():
        mode, data = "120000", os.fsencode(path.readlink())
    else:
        mode, data = ("100755" if path.stat().st_mode & 0o100 else "100644"), path.read_bytes()
    blob = git(folder, "hash-object", "-w", "--stdin", data=data).decode().strip()
    return f"{mode} {blob}\t{name}\n".encode()


def make(output: Path) -> None:
    """Write the bundle to `output`."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        git(folder, "init", "--quiet", "--bare", "--template=", "--object-format=sha1", ".")
        parents: list[str] = []
        for tag, date in COMMITS:
            lines = [index_line(folder, path, source) for path, source in sorted(version_files(tag).items())]
            git(folder, "read-tree", "--empty")
            git(folder, "update-index", "--add", "--index-info", data=b"".join(lines))
            tree = git(folder, "write-tree").decode().strip()
            message = f"mini-adapter {tag}\n".encode()
            commit = git(folder, "commit-tree", tree, *parents, date=date, data=message).decode().strip()
            git(folder, "update-ref", f"refs/tags/{tag}", commit)
            parents = ["-p", commit]
        git(folder, "update-ref", "refs/heads/main", parents[1])
        refs = ["refs/heads/main", *(f"refs/tags/{tag}" for tag, _ in COMMITS)]
        git(folder, "bundle", "create", "--quiet", "--version=2", "made.bundle", *refs)
        output.write_bytes((folder / "made.bundle").read_bytes())


if __name__ == "__main__":
    make(Path(sys.argv[1]) if len(sys.argv) > 1 else OUTPUT)

"""`make bench-push`: what a change costs that goes into a registry, by imgbuild and by what one would use instead.

`python -m bench.push` prints markdown tables; proofs 4 to 7 of the issue about registries:

4. bytes and seconds of a push against the size of the base;
5. the same change by BuildKit, buildah and crane;
6. copying a base from one registry to another;
7. reading a pushed image whole.

`--short` takes small bases and leaves out what pulls them, as `--no-pulls` does; `--only 4 6` takes some proofs. All
that is written is below `--work`, which is removed in the end, also after a failure; the other tools are kept below
`--tools`. Everything that is started is ended by its process id. As root on Linux with iptables bytes are counted
outside of the programs, too.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import signal
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from imgbuild.adapters.cache import Cache, default_folder
from imgbuild.ledger import Ledger

from bench import machine, tools
from bench.bases import Storage
from bench.images import images
from bench.proofs import Bench, bytes_moved, copying, deep, rivalry
from tests.support.registries import docker_registry

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).parents[1]
PROOFS = {4: bytes_moved, 5: rivalry, 6: copying, 7: deep, 8: images}


def main(arguments: Sequence[str]) -> None:
    """Measure and print."""
    options = _parser().parse_args(arguments)
    if shutil.which("docker-registry") is None:
        raise SystemExit("docker-registry is not installed, so no push is measured (Debian: apt-get install it)")
    fetched = tools.fetch(options.tools.absolute())
    # As it is installed: a program that compiles itself at every start is not what is measured.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    machine.isolate("bench.push", arguments)
    machine.loopback_up()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is ended, and all is removed
    work = Path(tempfile.mkdtemp(prefix="imgbuild-bench-", dir=options.work))
    try:
        with ExitStack() as stack:
            here, other = (stack.enter_context(docker_registry(work / name)) for name in ("registry", "other"))
            traffic = [machine.Traffic(int(registry.host.rpartition(":")[2])) for registry in (here, other)]
            bench = Bench(
                work=work,
                standin=options.store.absolute(),
                cache=Cache(default_folder(), ledger=Ledger()),
                tools=fetched,
                host=here.host,
                other=other.host,
                storage=Storage(work / "registry/storage"),
                meter=machine.Meter(traffic),
                short=options.short,
                pulls=options.pulls and not options.short,
                engines=tuple(options.engines),
            )
            _versions(fetched)
            for number in options.only:
                print(f"\n## Proof {number}\n", flush=True)
                PROOFS[number](bench)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Measure pushes.")
    parser.add_argument("--short", action="store_true", help="small bases, and nothing that pulls one")
    parser.add_argument("--no-pulls", dest="pulls", action="store_false", help="leave out what pulls the base")
    parser.add_argument("--only", type=int, nargs="+", choices=sorted(PROOFS), default=sorted(PROOFS))
    parser.add_argument("--engines", nargs="*", default=["sid"], choices=["sid", "trixie"], help="whose dockerd")
    parser.add_argument("--store", type=Path, default=ROOT / ".imgbuild/store", help="has the stand-in (`make base`)")
    parser.add_argument("--work", type=Path, default=Path("/var/tmp"), help="where the folder of this run is made")  # noqa: S108
    parser.add_argument("--tools", type=Path, default=default_folder() / "bench-tools", help="kept for the next run")
    return parser


def _versions(found: tools.Tools) -> None:
    """What is compared, and on what; the load is that of others before we begin."""
    load = ", ".join(f"{value:.2f}" for value in os.getloadavg())
    print(f"Python {platform.python_version()}, Linux {platform.release()}, {os.cpu_count()} cores, load {load}")
    print(
        f"dockerd {found.version('sid', 'dockerd')} with buildx {_buildx(found, 'sid')}, "
        f"dockerd {found.version('trixie', 'dockerd')} with buildx {_buildx(found, 'trixie')}, "
        f"buildah {found.version('bookworm', 'buildah')}, crane {found.package_version('sid', 'crane')}, "
        f"skopeo {found.version('bookworm', 'skopeo')}, docker-registry {found.version('bookworm', 'docker-registry')}"
    )
    counted = "the packet filter" if machine.isolated() else "nobody but imgbuild itself"
    print(f"bytes counted by {counted}")


def _buildx(found: tools.Tools, suite: str) -> str:
    return found.version(suite, str(found.root(suite) / "usr/libexec/docker/cli-plugins/docker-buildx"), "version")


if __name__ == "__main__":
    main(sys.argv[1:])

"""Make the stand-in base image from real parts: `python tests/standin/make.py --store DIR`.

The same inputs give the same manifest, whose digest is in `pins.toml`. Where the base is already in the store, nothing
is fetched and nothing is read but sizes, and it takes a moment.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # so that a script started by its path finds `tests.standin`

from imgbuild.adapters.store import Store  # noqa: E402
from imgbuild.errors import FactMismatchError, ImgbuildError  # noqa: E402
from imgbuild.ledger import Ledger  # noqa: E402
from imgbuild.model.oci import Descriptor, Family  # noqa: E402

from tests.standin import pins  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Sequence

    from imgbuild.content.changeset import LayerResult
    from imgbuild.digest import Digest
    from imgbuild.steps.context import Context

    from tests.standin.stack import Layer

TAGS = {"oci": "standin-base", "docker": "standin-base-docker"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; returns the exit code (those of imgbuild.errors)."""
    options = _parser().parse_args(arguments)
    try:
        return _run(options)
    except ImgbuildError as error:
        from imgbuild.cli.render import report_error

        return report_error(error, as_json=False)


def _run(options: argparse.Namespace) -> int:
    started = time.monotonic()
    tag = options.tag or TAGS[options.family]
    store = Store(options.store, ledger=Ledger())
    store.create()
    wanted = pins.expected(options.family)
    found = _present(store, wanted)
    if found is not None:
        if store.tags().get(tag) != found:
            store.tag(tag, found)
        _say(options, f"{tag}: {wanted} is there already ({options.store})")
        return 0
    context = _context(options, store)
    made, rows = _make(context, Family(options.family))
    if made.digest != wanted:
        if not options.accept:
            raise FactMismatchError(
                "the stand-in base", "came out with another manifest digest", expected=wanted, actual=made.digest,
                where=str(pins.PINS), hint="if the change is meant, run it again with --accept",
            )  # fmt: skip
        pins.accept(options.family, made.digest)
    store.tag(tag, made)
    if not options.offline:
        from imgbuild.steps.sources import fetch_wheel

        fetch_wheel(context, pins.wheel("nccl-swap"))
    _report(options, context, tag, made.digest, rows, time.monotonic() - started)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Make the stand-in base image from real parts.")
    parser.add_argument("--store", type=Path, default=ROOT / ".imgbuild" / "store", help="OCI image layout to write to")
    parser.add_argument("--cache", type=Path, help="cache folder; default: that of imgbuild")
    parser.add_argument("--family", choices=sorted(TAGS), default="oci", help="media types")
    parser.add_argument("--tag", help="name in the store; default: standin-base, or standin-base-docker")
    parser.add_argument("--offline", action="store_true", help="use only what is in the cache")
    parser.add_argument("--accept", action="store_true", help="write another resulting digest into pins.toml")
    parser.add_argument("-q", "--quiet", action="store_true", help="print nothing but errors")
    return parser


def _present(store: Store, digest: Digest) -> Descriptor | None:
    """The manifest's descriptor, if it and all blobs of it are there with the right size."""
    if not store.has(digest):
        return None
    descriptor = store.descriptor_of(digest)
    manifest = store.manifest(descriptor)
    if all(store.has(blob.digest, blob.size) for blob in (manifest.config, *manifest.layers)):
        return descriptor
    return None


def _context(options: argparse.Namespace, store: Store) -> Context:
    from imgbuild.adapters.cache import Cache, default_folder
    from imgbuild.cli.bars import Bars
    from imgbuild.cli.render import Output
    from imgbuild.steps.context import Context

    output = Output(as_json=False, quiet=options.quiet, verbose=False, colour=False)
    cache = Cache(options.cache or default_folder(), ledger=store.ledger)
    return Context(
        root=ROOT, store=store, cache=cache, ledger=store.ledger, offline=options.offline, progress=Bars(output)
    )


def _make(context: Context, family: Family) -> tuple[Descriptor, list[tuple[Layer, LayerResult]]]:
    from imgbuild.steps.sources import fetch_wheel

    from tests.standin import compiled, image, layers

    context.cache.path(pins.wheel("nccl").digest).parent.mkdir(parents=True, exist_ok=True)
    paths = {name: fetch_wheel(context, pins.wheel(name)) for name in ("nccl", "sglang")}
    parts = compiled.compile_parts(context, pins.zig())
    with (
        layers.open_wheel(paths["nccl"], subject=pins.wheel("nccl").filename) as nccl,
        layers.open_wheel(paths["sglang"], subject=pins.wheel("sglang").filename) as sglang,
    ):
        every = layers.all_layers(parts, nccl, sglang)
        written = image.write_layers(context.store, every, progress=context.progress)
    return image.write_image(context.store, every, written, family), list(zip(every, written, strict=True))


def _report(
    options: argparse.Namespace,
    context: Context,
    tag: str,
    digest: Digest,
    rows: list[tuple[Layer, LayerResult]],
    seconds: float,
) -> None:
    from imgbuild.cli.render import amount

    for index, (layer, result) in enumerate(rows):
        title = layer.created_by.removeprefix("standin: ")
        _say(options, f"layer {index}  {amount(result.size):>8}  {len(layer.changes):5} entries  {title}")
    fetched = sum(row.read for row in context.ledger.rows() if row.place == "packages")
    _say(options, f"{tag}: {digest}")
    _say(options, f"made in {seconds:.1f} s, {amount(fetched)} fetched ({options.store})")


def _say(options: argparse.Namespace, text: str) -> None:
    if not options.quiet:
        print(text)


if __name__ == "__main__":
    sys.exit(main())

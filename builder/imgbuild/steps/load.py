"""`build --load`: a verified image into a local Docker, as a stream, and the proof that it has it.

The image is sent without a name, compared, and named only then; so the daemon never has our name on another image.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from imgbuild.content.archive import archive
from imgbuild.errors import FactMismatchError, ToolError

if TYPE_CHECKING:
    from imgbuild.adapters.engine import Engine, EngineImage
    from imgbuild.digest import Digest
    from imgbuild.progress import Progress
    from imgbuild.steps.export_archive import Image


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """An image in a Docker.

    Args:
        engine: version of the daemon.
        host: where it is, without credentials.
        identifier: what it calls the image.
        matched: which of our digests that is.
        names: those that name it there.
        sent: whether it had to be sent; a classic store may have had it, by the digest of its config.
    """

    engine: str
    host: str
    identifier: Digest
    matched: Literal["config", "manifest"]
    names: tuple[str, ...]
    sent: bool


def load(engine: Engine, image: Image, names: tuple[str, ...], progress: Progress) -> Loaded:
    """Load an image and name it.

    Args:
        engine: a daemon that has answered.
        image: verified; its blobs are checked once more while they are sent.
        names: `host/repository:tag` each; they are taken from other images.
        progress: shows the bytes that are sent.

    Raises:
        ToolError: the daemon broke off, failed, or does not have the image afterwards.
        FactMismatchError: it has another image under the digest, or under a name.
        IntegrityError, AvailabilityError: a blob is damaged or missing.

    NOT checked: the space that the daemon has, which only it knows, and the files that it unpacked.
    """
    found, matched = _find(engine, image)
    # By its config a classic store has the whole image. One of containerd may know a manifest and lack layers (P37).
    sent = found is None or matched != "config" or engine.has_containerd_store
    if sent:
        with progress.task(f"writing to docker {engine.version}", image.size) as task:
            engine.load(archive(image.docker_entries(task, ()), epoch=image.epoch))
        found, matched = _find(engine, image)
    if found is None:
        raise ToolError(
            f"docker {engine.host}",
            "has loaded the image, and does not have it",
            expected=f"{image.manifest.config.digest} or {image.descriptor.digest}",
            hint="see the log of the daemon; was the image removed there in the meantime?",
        )
    _check(found, image, engine)
    for name in names:
        engine.tag(found.identifier, name)
        named = engine.find(name)
        if named is None or named.identifier != found.identifier:
            raise FactMismatchError(
                f"docker {engine.host}",
                f"was told to name the image {name}, and names another one",
                expected=found.identifier,
                actual="none" if named is None else named.identifier,
                hint="does somebody else move it? run it again",
            )
    return Loaded(
        engine=engine.version,
        host=engine.host,
        identifier=found.identifier,
        matched=matched,
        names=names,
        sent=sent,
    )


def _find(engine: Engine, image: Image) -> tuple[EngineImage | None, Literal["config", "manifest"]]:
    """The image by either digest: which one is its name depends on the store of the daemon (cases P34, P40, P42)."""
    ours: tuple[tuple[Literal["config", "manifest"], Digest], ...] = (
        ("config", image.manifest.config.digest),
        ("manifest", image.descriptor.digest),
    )
    for _, digest in ours:
        found = engine.find(str(digest))
        for kind, other in ours:
            if found is not None and found.identifier == other:
                return found, kind
    return None, "config"


def _check(found: EngineImage, image: Image, engine: Engine) -> None:
    config = image.config
    facts = (
        ("layers", tuple(str(item) for item in config.diff_ids), found.diff_ids),
        ("platform", f"{config.os}/{config.architecture}", f"{found.os}/{found.architecture}"),
    )
    for what, expected, actual in facts:
        if expected != actual:
            raise FactMismatchError(
                f"docker {engine.host}",
                f"has other {what} under the digest of the image",
                expected=expected,
                actual=actual,
                where=str(found.identifier),
                hint="remove that image there, and run it again",
            )

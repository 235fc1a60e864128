"""The embedded store: an OCI image layout on disk (image-spec `image-layout.md`), with tags as `ref.name` annotations.

Order of writing: blobs, then a manifest, then the name in `index.json`; each step is atomic, so an interrupted run
leaves blobs without a name and never a name without its blobs.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from imgbuild import jsontext
from imgbuild.adapters.blobs import BlobFolder, bounded, open_regular, unreadable
from imgbuild.adapters.durable import PendingFile, exclusive, move, remove, storage_errors, sweep, write_file
from imgbuild.adapters.manifests import read_config, read_manifest
from imgbuild.config import DEFAULT_LIMITS
from imgbuild.errors import DocumentError, LayoutError, MissingError
from imgbuild.model.oci import INDEX_TYPES, REF_NAME, Descriptor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from imgbuild.digest import Digest
    from imgbuild.ledger import Ledger
    from imgbuild.model.oci import ImageConfig, Manifest

_VERSION = {"imageLayoutVersion": "1.0.0"}
_STAGING = ".imgbuild-staging"
_ELSEWHERE = "choose another folder with --store"
_NO_MANIFEST = "give the digest of a manifest, as index.json and `imgbuild build` state it, or a tag"
_EMPTY_INDEX = {"schemaVersion": 2, "mediaType": INDEX_TYPES[0], "manifests": []}


class Store(BlobFolder):
    """An image layout."""

    def __init__(self, root: Path, *, ledger: Ledger) -> None:
        super().__init__(root, place="store", ledger=ledger)

    @property
    def published(self) -> Store:
        """The layout as others see it."""
        return self

    def create(self) -> None:
        """Make an empty layout where there is none; a folder with other things in it, or links, is refused."""
        self.refuse_links()
        marker = self.root / "oci-layout"
        if marker.exists():
            self._check_version()
            return
        if self.root.exists() and not self.root.is_dir():
            raise LayoutError(str(self.root), "is not a folder", hint=_ELSEWHERE)
        if self.is_foreign():
            raise LayoutError(str(self.root), "is neither empty nor an OCI image layout", hint=_ELSEWHERE)
        with exclusive(self._lock):
            sweep(self.root / "blobs" / "sha256")
            if not (self.root / "index.json").exists():
                write_file(self.root / "index.json", jsontext.compact(_EMPTY_INDEX))
            write_file(marker, jsontext.compact(_VERSION))

    def is_foreign(self) -> bool:
        """Whether the folder has things in it, and none of them says that it is a layout or was to become one.

        Raises:
            StorageError: it cannot be read.
        """
        # The lock comes first, so a folder that has it was begun by us, perhaps a moment ago by another process.
        begun = (self.root / "oci-layout").exists() or self._lock.exists() or (self.root / "blobs").is_dir()
        with storage_errors(self.root, "read"):
            return not begun and self.root.exists() and any(self.root.iterdir())

    def refuse_links(self) -> None:
        """A `LayoutError` for a folder of ours that is a link: what we write and remove there would be elsewhere."""
        for blobs in (self.root / "blobs", self.root / _STAGING / "blobs"):
            with storage_errors(blobs, "read"):
                link = next(
                    (path for path in (blobs.parent, blobs, *blobs.glob("*")) if _is_link(path, self.root)), None
                )
            if link is not None:
                raise LayoutError(
                    str(link),
                    "is a symbolic link, and what is written there would be outside of the store",
                    expected="a folder",
                    hint="remove the link; the whole store can be elsewhere with --store",
                )

    def tags(self) -> dict[str, Descriptor]:
        """All names in the layout."""
        found = {}
        for entry in self._index()["manifests"]:
            name = _name(entry)
            if name is not None:
                found[name] = Descriptor.parse(entry, subject=f"{self.root}/index.json, {name}")
        return found

    def resolve(self, name: str) -> Descriptor:
        """The descriptor under a tag; a `MissingError` names the tags that there are."""
        tags = self.tags()
        if name not in tags:
            raise MissingError(
                f"tag {name}",
                "is not in the store",
                where=str(self.root),
                hint=f"tags there: {', '.join(sorted(tags)) or 'none'}",
            )
        return tags[name]

    def tag(self, name: str, descriptor: Descriptor) -> None:
        """Point a tag at a manifest, in one atomic step, keeping what others wrote (case C59)."""
        with exclusive(self._lock):
            index = self._index()
            entries = [entry for entry in index["manifests"] if _name(entry) != name]
            entries.append({**descriptor.as_dict(), "annotations": {REF_NAME: name}})
            write_file(self.root / "index.json", jsontext.compact({**index, "manifests": entries}))

    def manifest(self, descriptor: Descriptor) -> Manifest:
        """Read and check an image manifest."""
        return read_manifest(descriptor, self._document)

    def config(self, descriptor: Descriptor) -> ImageConfig:
        """Read and check an image config."""
        return read_config(descriptor, self._document)

    def descriptor_of(self, digest: Digest) -> Descriptor:
        """The descriptor of a manifest known by digest alone; its media type is what it says of itself.

        Raises:
            LayoutError: the blob is no manifest (a layer, a config), or does not say of which kind it is.
            MissingError: it is not in the store.
            DigestMismatchError: it is damaged.
        """
        subject = f"blob {digest}"
        limit = DEFAULT_LIMITS.manifest_bytes
        # One byte more than a manifest may have is read of a layer, and it is not hashed whole to say what it is not.
        with self.open(digest, subject=subject) as stream:
            is_long = len(b"".join(bounded(stream, limit))) > limit
        if is_long:
            raise LayoutError(subject, "is no manifest", expected=f"at most {limit} bytes", hint=_NO_MANIFEST)
        raw = self.read(digest, subject=subject, max_bytes=limit)
        try:
            value = jsontext.loads(raw, subject=subject)
        except DocumentError as error:
            raise LayoutError(subject, "is no manifest", actual=error.problem, hint=_NO_MANIFEST) from error
        if not isinstance(value, dict):
            raise LayoutError(subject, "is no manifest", actual=type(value).__name__, hint=_NO_MANIFEST)
        if "rootfs" in value:
            raise LayoutError(subject, "is a config, not a manifest", hint=_NO_MANIFEST)
        media_type = value.get("mediaType")
        if not isinstance(media_type, str):
            raise LayoutError(
                subject, "does not state its media type", hint="name it by its tag: index.json states the media type"
            )
        return Descriptor(media_type=media_type, digest=digest, size=len(raw))

    def _document(self, descriptor: Descriptor, subject: str, limit: int) -> bytes:
        return self.read(descriptor.digest, subject=subject, max_bytes=limit, size=descriptor.size)

    @property
    def _lock(self) -> Path:
        return self.root / ".imgbuild-lock"

    def _check_version(self) -> None:
        value = self._json("oci-layout")
        if not isinstance(value, dict) or value.get("imageLayoutVersion") != _VERSION["imageLayoutVersion"]:
            raise LayoutError(f"{self.root}/oci-layout", "is of another version", expected="1.0.0", actual=value)

    def _index(self) -> dict[str, Any]:
        if not (self.root / "index.json").exists() or not (self.root / "oci-layout").exists():
            raise MissingError(
                str(self.root), "is not an OCI image layout", hint="make the base first (`make base`), or give --store"
            )
        self._check_version()
        value = self._json("index.json")
        entries = value.get("manifests") if isinstance(value, dict) else None
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise LayoutError(f"{self.root}/index.json", "has no list of manifests")
        assert isinstance(value, dict)  # noqa: S101 - it has a list
        return value

    def _json(self, name: str) -> Any:
        path = self.root / name
        try:
            with open_regular(path) as file:
                raw = b"".join(bounded(file, DEFAULT_LIMITS.manifest_bytes))
            return jsontext.loads(raw, subject=str(path), max_bytes=DEFAULT_LIMITS.manifest_bytes)
        except DocumentError as error:
            raise LayoutError(str(path), error.problem) from error
        except OSError as error:
            raise unreadable(str(path), error) from error


class StagedStore(Store):
    """A store whose new blobs wait in a staging folder until they are published; others see nothing of them.

    One build at a time: `session` holds a lock between processes, and removes what an interrupted one left. While it
    waits for another one, it says so once by `waiting` (see `durable.exclusive`).
    """

    def __init__(self, root: Path, *, ledger: Ledger, waiting: Callable[[], object] = lambda: None) -> None:
        super().__init__(root, ledger=ledger)
        self._waiting = waiting
        self._staging = BlobFolder(root / _STAGING, place="store", ledger=ledger)
        self._published = Store(root, ledger=ledger)

    @property
    def published(self) -> Store:
        """The layout as others see it, which may be read without a session."""
        return self._published

    @contextlib.contextmanager
    def session(self) -> Iterator[None]:
        """Work on the store; at the end everything that was not published is removed."""
        self.create()
        with exclusive(self.root / ".imgbuild-build-lock", waiting=self._waiting):
            self.discard()
            try:
                yield
            finally:
                self.discard()

    def path(self, digest: Digest) -> Path:
        """Where a blob is: in the staging folder if it is new, else in the layout."""
        staged = self._staging.path(digest)
        return staged if staged.exists() else super().path(digest)

    def pending(self) -> PendingFile:
        """A file in the staging folder."""
        return self._staging.pending()

    def commit(self, pending: PendingFile, digest: Digest, size: int) -> None:
        """Give a pending file its name in the staging folder."""
        self._staging.commit(pending, digest, size)

    def publish(self) -> None:
        """Move all staged blobs into the layout. A blob has no meaning without a name, so the order does not matter."""
        for path in self._staged():
            move(path, self.root / "blobs" / path.parent.name / path.name)

    def discard(self) -> None:
        """Remove all staged and pending files."""
        for path in self._staged():
            remove(path)
        sweep(self._staging.root / "blobs" / "sha256")
        sweep(self.root)

    def _staged(self) -> list[Path]:
        return sorted(self._staging.root.glob("blobs/*/[0-9a-f]*"))


def _is_link(path: Path, root: Path) -> bool:
    """Whether a path is a link; the store itself may be one."""
    return path != root and path.is_symlink()


def _name(entry: dict[str, Any]) -> str | None:
    annotations = entry.get("annotations")
    name = annotations.get(REF_NAME) if isinstance(annotations, dict) else None
    return name if isinstance(name, str) else None

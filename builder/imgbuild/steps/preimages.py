"""Files of a base that steps read because they patch them: known from a lock before anything is read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from imgbuild.config import DEFAULT_LIMITS
from imgbuild.digest import Digest
from imgbuild.errors import ImgbuildError
from imgbuild.model.layer import Edit, Patch
from imgbuild.steps.layers import read_file

if TYPE_CHECKING:
    from collections.abc import Iterator

    from imgbuild.adapters.project import ImageInput, Project
    from imgbuild.content.tree import Tree
    from imgbuild.model.lockfile import Lock
    from imgbuild.model.oci import Descriptor
    from imgbuild.progress import Progress
    from imgbuild.steps.context import Context


def preimages(image: ImageInput, lock: Lock) -> dict[str, Digest]:
    """The files of the base whose bytes the steps of an image read, by path; none where the lock has no facts.

    Files that are replaced or removed whole are not among them, nor what is longer than we publish.
    """
    if lock.facts is None:
        return {}
    reading = {
        f"{layer.name}/{number}"
        for layer in image.layers
        for number, step in enumerate(layer.definition.step, 1)
        if isinstance(step, Patch | Edit)
    }
    read = {(row.path, row.states[0]) for row in lock.pins.files if row.step in reading}
    return {
        file.path: file.digest
        for file in lock.facts.touched
        if file.digest is not None
        and file.size <= DEFAULT_LIMITS.captured_file_bytes
        and (file.path, str(file.digest)) in read
    }


def preimages_of(project: Project, base: Digest, progress: Progress) -> dict[str, Digest]:
    """The same for all images of a project whose locks pin a base, by its manifest; what cannot be read is noted."""
    found: dict[str, Digest] = {}
    for name in project.images():
        try:
            lock = project.lock(name)
            if lock is not None and lock.pins.base.manifest == base:
                found.update(preimages(project.load(name), lock))
        except ImgbuildError as error:
            progress.note(f"files that {name} patches are left out: {error}")
    return found


def contents_of(
    context: Context, layers: tuple[Descriptor, ...], tree: Tree, files: dict[str, Digest]
) -> Iterator[bytes]:
    """The bytes of files of a merged image, from the cache or the layers; a file that is another one is left out."""
    for path, digest in sorted(files.items()):
        node = tree.get(path.encode()[1:])
        if node is not None and node.sha256 is not None and Digest("sha256", node.sha256) == digest:
            yield read_file(context, layers, node, path)

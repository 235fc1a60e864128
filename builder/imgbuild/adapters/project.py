"""The repository's own files: definitions, layer definitions, their files and locks. Read once, as bytes."""

from __future__ import annotations

import os
import shlex
import tomllib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from imgbuild.config import DEFAULT_LIMITS
from imgbuild.digest import Digest
from imgbuild.errors import DocumentError, InputError, LockVersionError, UsageError
from imgbuild.model.decode import require_schema
from imgbuild.model.image import SCHEMA as IMAGE_SCHEMA
from imgbuild.model.image import ImageDefinition, parse_image
from imgbuild.model.inherit import inherit, stand_in
from imgbuild.model.layer import LayerDefinition, Patch, numbered, own_files, parse_layer, parse_states
from imgbuild.model.lockfile import Input, Lock, digest_of_inputs, parse_lock

if TYPE_CHECKING:
    from pathlib import Path

_FILE_BYTES = DEFAULT_LIMITS.text_bytes
_EXTENDS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerInput:
    """A layer definition with the bytes of the files that its steps name."""

    name: str
    definition: LayerDefinition
    files: dict[str, bytes]
    states: dict[str, dict[str, tuple[str, ...]]] = field(default_factory=dict)
    """By name of a file of states: what it says of each path, from the preimage on."""

    @property
    def known(self) -> dict[str, dict[str, tuple[str, ...]]]:
        """The same by step (`layer/1`) and path in the image."""
        return {
            step_id: {f"{step.root}/{path}": states for path, states in self.states.get(step.states or "", {}).items()}
            for step_id, step in numbered(self.name, self.definition)
            if isinstance(step, Patch)
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageInput:
    """All that the repository says about one image."""

    root: Path
    definition: ImageDefinition
    layers: tuple[LayerInput, ...]
    inputs: tuple[Input, ...]
    stand_in: str | None = None
    """The folder of what replaces base and sources, from the root on; None where those of the definition are meant."""

    @property
    def lock_file(self) -> str:
        """The file of the lock, as errors name it."""
        return f"{self.stand_in or 'locks'}/{self.definition.name}.lock.json"

    @property
    def words(self) -> str:
        """What names this image on the command line."""
        return _words(self.definition.name, None if self.stand_in is None else self.root / self.stand_in)

    @property
    def inputs_digest(self) -> Digest:
        """The digest over all files that were read."""
        return digest_of_inputs(list(self.inputs))


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """One file that says something about an image.

    Attributes:
        name: its path below the project's folder.
        raw: its bytes.
        value: its parsed TOML.
        whole: whether the base and the sources that it has are not added to those of other files, but replace them.
    """

    name: str
    raw: bytes
    value: Any
    whole: bool = False


class Project:
    """A folder with `locks/` and `layers/`."""

    def __init__(self, root: Path, stand_in: Path | None = None, instead: tuple[tuple[str, bytes], ...] = ()) -> None:
        """Nothing is read yet.

        Args:
            root: the folder.
            stand_in: a folder with `IMAGE.toml` (`model.inherit.StandIn`) and its locks, instead of those in `locks/`.
            instead: what files are taken to hold that are not written yet, by their paths below `root`.
        """
        self.root = root
        self.stand_in = stand_in
        self._instead = dict(instead)

    @classmethod
    def find(cls, start: Path) -> Project:
        """The nearest folder upwards that has both; a `UsageError` if there is none."""
        for folder in (start, *start.parents):
            if (folder / "locks").is_dir() and (folder / "layers").is_dir():
                return cls(folder)
        raise UsageError(
            str(start),
            "is not inside a folder with locks/ and layers/",
            hint="go to the checkout, or name it with --project DIR",
        )

    def standing_in(self, folder: Path) -> Project:
        """The same project with stand-ins from a folder of it; a `UsageError` if it is elsewhere."""
        root, real = self.root.resolve(), folder.resolve()
        if not real.is_relative_to(root):
            raise UsageError(f"--stand-in {folder}", "is not below the project's folder", where=str(self.root))
        # By one name, however it was written: the names of its files are in the lock.
        return Project(self.root, self.root / real.relative_to(root))

    def with_file(self, name: str, raw: bytes) -> Project:
        """The same project as if the file `name`, a path below the root that is there, held these bytes."""
        return Project(self.root, self.stand_in, (*self._instead.items(), (name, raw)))

    def images(self) -> tuple[str, ...]:
        """The names of all definitions."""
        return tuple(sorted(path.stem for path in (self.root / "locks").glob("*.toml")))

    def load(self, image: str) -> ImageInput:
        """Read a definition and its layers; errors name the file."""
        if image not in self.images():
            raise UsageError(
                f"image {image!r}",
                "is not defined",
                where=f"{self.root}/locks",
                hint=f"defined: {', '.join(self.images()) or 'none'}",
            )
        inputs: list[Input] = []
        value = self._definition(image, inputs, ())
        # Whatever is wrong may be so in a file that it extends.
        subject = " with ".join(file.name for file in inputs)
        definition = parse_image(value, subject=subject)
        if self.stand_in is not None:
            definition = parse_image(self._replaced(value, image, inputs), subject=subject)
        if definition.name != image:
            raise DocumentError(
                f"locks/{image}.toml", (f"name: is {definition.name!r}; the file's name says {image!r}",)
            )
        self._check_layers(definition)
        layers = tuple(self._layer(name, inputs) for name in definition.layers)
        return ImageInput(
            root=self.root,
            definition=definition,
            layers=layers,
            inputs=tuple(inputs),
            stand_in=None if self.stand_in is None else str(self.stand_in.relative_to(self.root)),
        )

    def documents(self, image: str) -> tuple[Definition, ...]:
        """The files that say what an image is, the one that has the last word first; those that `load` accepts."""
        found = []
        if self.stand_in is not None:
            path = self.stand_in / f"{image}.toml"
            found.append(self._document(str(path.relative_to(self.root)), whole=True))
        name: str | None = image
        while name is not None:
            found.append(self._document(f"locks/{name}.toml"))
            name = found[-1].value.get("extends")
        return tuple(found)

    def _document(self, name: str, *, whole: bool = False) -> Definition:
        raw = self._read(self.root / name)
        return Definition(name=name, raw=raw, value=_toml(raw, name), whole=whole)

    def _definition(self, image: str, inputs: list[Input], below: tuple[str, ...]) -> dict[str, Any]:
        """The parsed file of an image, with what it extends; each file that was read is added to `inputs`."""
        subject = f"locks/{image}.toml"
        raw = self._read(self.root / "locks" / f"{image}.toml")
        inputs.append(Input(name=subject, digest=Digest.of(raw)))
        value: dict[str, Any] = _toml(raw, subject)
        require_schema(value, IMAGE_SCHEMA, subject=subject)
        parent = value.get("extends")
        if parent is None:
            return value
        chain = (*below, image)
        if parent in chain:
            raise DocumentError(subject, (f"extends: leads in a circle: {' -> '.join((*chain, parent))}",))
        if len(chain) > _EXTENDS:
            raise DocumentError(subject, (f"extends: leads on and on; at most {_EXTENDS} images extend each other",))
        if parent not in self.images():
            known = ", ".join(name for name in self.images() if name != image)
            raise DocumentError(subject, (f"extends: there is no image {parent!r}; there are {known or 'no others'}",))
        return inherit(self._definition(parent, inputs, chain), value)

    def _replaced(self, value: dict[str, Any], image: str, inputs: list[Input]) -> dict[str, Any]:
        assert self.stand_in is not None  # noqa: S101 - asked before
        path = self.stand_in / f"{image}.toml"
        raw = self._read(path)
        subject = str(path.relative_to(self.root))
        inputs.append(Input(name=subject, digest=Digest.of(raw)))
        return stand_in(value, _toml(raw, subject), subject=subject)

    def states_file(self, layer: str, file: str) -> str:
        """Which file says the states that a layer's file names, from the root on: of stand-ins, one beside them."""
        if self.stand_in is None:
            return f"layers/{layer}/{file}"
        return str((self.stand_in / f"{layer}.{file.replace('/', '.')}").relative_to(self.root))

    def lock_path(self, image: str) -> Path:
        """Where the lock of an image is."""
        return (self.stand_in or self.root / "locks") / f"{image}.lock.json"

    def lock(self, image: str) -> Lock | None:
        """The lock of an image, or None if it has none yet."""
        path = self.lock_path(image)
        if not path.exists():
            return None
        raw, subject = self._read(path), str(path.relative_to(self.root))
        try:
            _check_whole(raw, subject)
            return parse_lock(raw, subject=subject)
        except LockVersionError:
            raise
        except DocumentError as error:
            error.hint = (
                f"no lock is edited by hand: take it back, or remove it and run `imgbuild lock {self.words(image)}`"
            )
            raise

    def require_lock(self, image: str) -> Lock:
        """The lock of an image; an `InputError` if it has none yet."""
        lock = self.lock(image)
        if lock is None:
            path = self.lock_path(image).relative_to(self.root)
            raise InputError(str(path), "is not there", hint=f"run `imgbuild lock {self.words(image)}`")
        return lock

    def words(self, image: str) -> str:
        """What names an image on the command line: with the folder of the stand-ins, where there is one."""
        return _words(image, self.stand_in)

    def _check_layers(self, definition: ImageDefinition) -> None:
        """Refuse layers that have no folder, before the first of them is read."""
        there = sorted(path.parent.name for path in (self.root / "layers").glob("*/layer.toml"))
        problems = tuple(
            f"layers[{index}]: there is no layer {name!r}; there are {', '.join(there) or 'none'}"
            for index, name in enumerate(definition.layers)
            if not (self.root / "layers" / name).is_dir()
        )
        if problems:
            raise DocumentError(
                f"locks/{definition.name}.toml", problems, hint="correct the name, or add the folder below layers/"
            )

    def _layer(self, name: str, inputs: list[Input]) -> LayerInput:
        folder = self.root / "layers" / name
        where = f"layers/{name}/layer.toml"
        raw = self._read(folder / "layer.toml")
        definition = parse_layer(_toml(raw, where), name=name, subject=where)
        inputs.append(Input(name=where, digest=Digest.of(raw)))
        files: dict[str, bytes] = {}
        for file in (file for step in definition.step for file in own_files(step)):
            if file not in files:
                files[file] = self._read(folder / file)
                inputs.append(Input(name=f"layers/{name}/{file}", digest=Digest.of(files[file])))
        named = {step.states for step in definition.step if isinstance(step, Patch) and step.states is not None}
        states = {file: self._states(name, file, files[file], inputs) for file in sorted(named)}
        return LayerInput(name=name, definition=definition, files=files, states=states)

    def _states(self, layer: str, file: str, raw: bytes, inputs: list[Input]) -> dict[str, tuple[str, ...]]:
        """The states that a layer's file names; of stand-ins, those of `LAYER.FILE` beside them."""
        subject = self.states_file(layer, file)
        if self.stand_in is not None:
            raw = self._read(self.root / subject)
            inputs.append(Input(name=subject, digest=Digest.of(raw)))
        return parse_states(_toml(raw, subject), subject=subject)

    def _read(self, path: Path) -> bytes:
        shown = path.relative_to(self.root)
        if str(shown) in self._instead:
            return self._instead[str(shown)]
        try:
            # A link would make the input depend on what is outside of the repository.
            if not path.resolve(strict=True).is_relative_to(self.root.resolve()):
                raise InputError(str(shown), "is a link that leaves the repository")
            # Reading a pipe or a device would wait for ever, or never end.
            if not path.is_file():
                raise InputError(str(shown), "is not a regular file")
            if path.stat().st_size > _FILE_BYTES:
                raise InputError(str(shown), "is too large", expected=f"at most {_FILE_BYTES} bytes")
            return path.read_bytes()
        except RuntimeError as error:
            # Python before 3.13 says so of links that lead in a circle.
            raise InputError(str(shown), "is a link that leads in a circle", where=str(self.root)) from error
        except OSError as error:
            raise InputError(str(shown), f"cannot be read: {error.strerror}", where=str(self.root)) from error


def _words(image: str, stand_in: Path | None) -> str:
    # Options name files from the working directory on, so that is what can be typed there.
    return image if stand_in is None else f"{image} --stand-in {shlex.quote(os.path.relpath(stand_in))}"


def _check_whole(raw: bytes, subject: str) -> None:
    """Name what often becomes of a file that a program wrote and git merged; its text would only say "not JSON"."""
    if not raw.strip():
        raise DocumentError(subject, ("is empty",))
    for number, line in enumerate(raw.splitlines(), 1):
        if line.startswith((b"<<<<<<< ", b">>>>>>> ")):
            raise DocumentError(subject, (f"has a conflict marker of git in line {number}",))


def _toml(raw: bytes, subject: str) -> Any:
    try:
        return tomllib.loads(raw.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        # Besides TOMLDecodeError and UnicodeDecodeError, an integer of over 4,300 digits is a plain ValueError.
        raise DocumentError(subject, (f"is not TOML: {error}",)) from error

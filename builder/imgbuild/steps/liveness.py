"""Whether every pin of a lock can still be had, each by its own verdict (cases P20 to P28, P61).

Only the place that the lock names is asked: a mirror that still has what its origin lost would hide the loss. A local
name (`localhost/…` without port) has no place of its own; there its mirrors are asked, then the store is looked at.

Looked at are names, digests and sizes. Manifests are read and hashed; of configs and layers the registry's word is
taken; of commits the object itself is fetched, without files where the server can leave them out; of wheels name and
sha256 are what the index tells pip. A file inside of a wheel is not asked for: it lives as long as its wheel.

The module is long because it asks registries, git and pip alike, and whoever changes what a verdict means must see all
three.
"""

from __future__ import annotations

import enum
import functools
import re
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar
from urllib.parse import unquote, urlsplit

from packaging.utils import parse_wheel_filename

from imgbuild import jsontext
from imgbuild.adapters.blobs import bounded, open_regular
from imgbuild.adapters.durable import make_folder, work_folder
from imgbuild.adapters.fetch import REPORT_BYTES, WheelPin, _tag_arguments
from imgbuild.adapters.gitprocess import Runner
from imgbuild.adapters.gitsource import GitRepository
from imgbuild.adapters.giturl import SHA1_HEX, parse_source
from imgbuild.adapters.pipprocess import INDEX, reads_ranges, run_pip
from imgbuild.config import DEFAULT_LIMITS, MIB
from imgbuild.digest import Digest
from imgbuild.errors import (
    ArchiveError,
    AvailabilityError,
    BudgetError,
    CredentialError,
    DigestMismatchError,
    DocumentError,
    FactMismatchError,
    ForbiddenError,
    ImgbuildError,
    IntegrityError,
    MissingError,
    NetworkError,
    OfflineMissError,
    StorageError,
    ToolError,
    UnauthorizedError,
)
from imgbuild.model.lockfile import LockedGit, LockedToolchain, LockedWheel
from imgbuild.model.oci import Descriptor, Family, Manifest
from imgbuild.model.ociindex import Index
from imgbuild.model.reference import Reference
from imgbuild.steps.sources import locate, wheel_pin
from imgbuild.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from imgbuild.adapters.giturl import Source
    from imgbuild.adapters.registry.repository import Repository
    from imgbuild.model.lockfile import Lock, LockedBase, LockedSource
    from imgbuild.steps.context import Context

PARALLEL: Final = 8
"""questions at a time."""
SECONDS: Final = 300.0
"""seconds after which no further question is begun; what was not asked by then is `unreachable`."""
_GIT_SECONDS: Final = 120.0
"""seconds for one git command."""
_SMALL_WHEEL: Final = 8 * MIB
"""bytes of a wheel that pip may fetch to learn of it, where an index has neither PEP 658 metadata nor ranges."""
_LOG_BYTES: Final = 16 * MIB
"""bytes of pip's log that are looked at; a project with ten thousand files has 3 MB."""
_UNFETCHED: Final = re.compile(r"Could not fetch URL \S+: (.*?) - skipping|(Skipping page) |Location '.*' is (ignored)")
_GIT_REFUSES: Final = re.compile(
    r"Authentication failed|could not read (?:Username|Password)|Permission denied|returned error: 40[13]\b"
)
_GIT_ABSENT: Final = re.compile(
    r"(?i)repository (?:'[^']*' )?not found|not appear to be a git|returned error: 4(?:04|10)\b"
)
_UNKNOWN: Final = -2
"""the size of a config, as long as no manifest states it."""
_LOCAL: Final = (
    "for `mini`, run `make base`; another one has to be copied into the store, or given a mirror in registries.toml"
)
Kind = Literal["base", "git", "wheel", "toolchain"]
T = TypeVar("T")


class Verdict(enum.Enum):
    """What became of one pin; the last two are no answer, which is never a yes."""

    ALIVE = "alive"
    GONE = "gone"
    DIFFERS = "differs"
    NOT_ALLOWED = "not-allowed"
    UNREACHABLE = "unreachable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """One pin and what became of it.

    Attributes:
        kind: what sort of thing it is.
        name: what `imgbuild lock --update` calls it.
        what: which part of it.
        pin: the digest or commit.
        where: who was asked.
        verdict: the answer.
        detail: what the answer rests on, or why there is none.
        hint: what to do where there is no answer.
    """

    kind: Kind
    name: str
    what: str
    pin: str
    where: str
    verdict: Verdict
    detail: str | None = None
    hint: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tag:
    """What the tag for humans names now, which decides nothing; `unknown` is a tag that could not be asked for."""

    reference: str
    state: Literal["same", "moved", "gone", "unknown"]
    now: Digest | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Liveness:
    """All pins of one lock: those of the base, then sources in their order."""

    pins: tuple[Pin, ...]
    tag: Tag | None

    def count(self, *verdicts: Verdict) -> int:
        """How many pins have one of these verdicts."""
        return sum(1 for pin in self.pins if pin.verdict in verdicts)

    @property
    def lost(self) -> int:
        """How many are gone, or are something else now."""
        return self.count(Verdict.GONE, Verdict.DIFFERS)

    @property
    def unasked(self) -> int:
        """How many could not be asked for."""
        return self.count(Verdict.NOT_ALLOWED, Verdict.UNREACHABLE)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Question:
    """`ask` gives a detail and, where that is another place, who has it; where a pin is not alive, it raises why."""

    kind: Kind
    name: str
    what: str
    pin: Digest | str
    where: str
    ask: Callable[[], tuple[str | None, str | None]]


def check_pins(context: Context, lock: Lock, *, seconds: float = SECONDS) -> Liveness:
    """Ask for every pin of a lock, several at a time. Nothing is kept but what a registry's client keeps.

    Args:
        context: the surroundings; how long one question to a registry takes at most is said by its registries.
        lock: whose pins.
        seconds: after which no further question is begun.

    Raises:
        InputError: a source of the lock is none that may be asked for.
        BudgetError: more bytes than allowed. StorageError: the disk refuses temporary folders.
    """
    base = _Base(context, lock)
    sources = list(_sources(context, lock.pins.sources))
    end = time.monotonic() + seconds
    with context.progress.task("verifying pins", base.count + len(sources), unit="pins") as task:

        def ask(question: _Question) -> Pin:
            found = _answer(context, question, late=time.monotonic() >= end)
            task.advance(1)
            return found

        pool = ThreadPoolExecutor(PARALLEL)
        try:
            later = [pool.submit(ask, question) for question in sources]
            # It names the others, and who does not answer here need not be waited for again.
            first = ask(base.manifest())
            parts = [pool.submit(ask, question) for question in base.parts()]
            tag = pool.submit(base.tag)
            rows = [first, *(row.result() for row in parts), *(row.result() for row in later)]
            return Liveness(pins=tuple(rows), tag=tag.result())
        finally:
            pool.shutdown(cancel_futures=True)


def _answer(context: Context, question: _Question, *, late: bool) -> Pin:
    def row(verdict: Verdict, detail: str | None, *, where: str | None = None, hint: str | None = None) -> Pin:
        return Pin(
            kind=question.kind,
            name=question.name,
            what=question.what,
            pin=str(question.pin),
            where=where or question.where,
            verdict=verdict,
            detail=detail,
            hint=hint,
        )

    if late:
        return row(Verdict.UNREACHABLE, "was not asked for: the time is over", hint="run it again")
    try:
        detail, where = question.ask()
    except (BudgetError, StorageError):
        raise
    except (AvailabilityError, IntegrityError) as error:
        verdict = _verdict(error)
        copy = _copy(context, question.pin) if verdict in {Verdict.GONE, Verdict.DIFFERS} else ""
        return row(verdict, _said(error) + copy, hint=error.hint or error.advice)
    return row(Verdict.ALIVE, detail, where=where)


def _verdict(error: ImgbuildError) -> Verdict:
    if isinstance(error, IntegrityError):
        return Verdict.DIFFERS
    if isinstance(error, MissingError):
        return Verdict.GONE
    if isinstance(error, UnauthorizedError | ForbiddenError | CredentialError):
        return Verdict.NOT_ALLOWED
    return Verdict.UNREACHABLE


def _said(error: ImgbuildError) -> str:
    text = error.problem
    if error.expected is not None:
        text += f"; expected {error.expected}"
    return text if error.actual is None else f"{text}; actual {error.actual}"


def _copy(context: Context, pin: Digest | str) -> str:
    """A word on a copy on this machine: no answer, but it may be all that is left."""
    for folder, name in ((context.store, "store"), (context.cache, "cache")):
        if isinstance(pin, Digest) and folder.has(pin):
            return f"; the {name} here has a copy, {folder.path(pin)}"
    return ""


# The base


class _Base:
    """The questions about a base."""

    def __init__(self, context: Context, lock: Lock) -> None:
        self._context = context
        self._base: LockedBase = lock.pins.base
        self._own = Reference.parse(self._base.reference, where="pins.base.reference")
        self._local = self._own.host == "localhost"
        self._layers: list[Descriptor] | None = None
        if lock.facts is not None:
            rows = lock.facts.base_layers
            self._layers = [Descriptor(media_type=row.media_type, digest=row.digest, size=row.size) for row in rows]
        self._config = Descriptor(media_type=Family.OCI.config, digest=self._base.config, size=_UNKNOWN)
        self._silent: AvailabilityError | None = None

    @property
    def count(self) -> int:
        """How many questions there will be, as far as that is known."""
        return 2 + (self._base.index is not None) + len({layer.digest for layer in self._layers or ()})

    def manifest(self) -> _Question:
        """The manifest of the platform."""
        return self._question("manifest", self._base.manifest, self._ask_manifest)

    def parts(self) -> Iterator[_Question]:
        """All others; what they ask for is known when the manifest was asked for."""
        if self._base.index is not None:
            ask = functools.partial(self._document, self._base.index, None)
            yield self._question("index", self._base.index, lambda: (None, ask()[1]))
        yield self._question("config", self._config.digest, functools.partial(self._blob, self._config))
        if self._layers is None:
            yield self._question("layers", self._base.manifest, _unknown_layers)
        layers = self._layers or []
        first = {layer.digest: number for number, layer in reversed(list(enumerate(layers, start=1)))}
        for number, layer in enumerate(layers, start=1):
            if first[layer.digest] == number:
                what = f"layer {number} of {len(layers)}"
                yield self._question(what, layer.digest, functools.partial(self._blob, layer))

    def tag(self) -> Tag | None:
        """What the tag names now. Nothing that goes wrong here matters."""
        name = self._base.tag_for_humans
        if name is None:
            return None
        reference = f"{self._own.name}:{name}"
        try:
            return self._tag(name, reference)
        except MissingError:
            return Tag(reference=reference, state="gone")
        except BudgetError:
            raise
        except ImgbuildError:
            return Tag(reference=reference, state="unknown")

    def _tag(self, name: str, reference: str) -> Tag:
        if self._silent is not None:
            raise self._silent
        pinned = {self._base.index, self._base.manifest}
        if self._local:
            now = self._context.store.resolve(name).digest
            return Tag(reference=reference, state="same" if now in pinned else "moved", now=now)
        found = self._places()[0].manifest(name)
        names = {found.descriptor.digest}
        if found.is_index:
            index = Index.parse(found.raw, media_type=found.descriptor.media_type, subject=reference)
            names |= {row.descriptor.digest for row in index.entries}
        return Tag(reference=reference, state="same" if names & pinned else "moved", now=found.descriptor.digest)

    def _question(self, what: str, pin: Digest, ask: Callable[[], tuple[str | None, str | None]]) -> _Question:
        return _Question(kind="base", name="base", what=what, pin=pin, where=self._own.name, ask=ask)

    def _places(self) -> tuple[Repository, ...]:
        """Who is asked: the registry that the lock names; for a local name, its mirrors."""
        from imgbuild.adapters.registry.repository import Repository  # noqa: PLC0415 - urllib3 takes 60 ms

        if self._local and (self._context.connect is None or self._context.offline):
            return ()
        registries = self._context.registries
        names = [self._own]
        if self._local:
            mirrors = registries.settings.mirrors_of(self._own.name)
            names = [Reference.parse(name, where="registries.toml") for name in mirrors]
        return tuple(Repository(registries.of(name.host), name.repository) for name in names)

    def _ask_manifest(self) -> tuple[str | None, str | None]:
        try:
            raw, where = self._document(self._base.manifest, self._base.manifest_size)
        except (NetworkError, OfflineMissError) as error:
            self._silent = None if self._local else error
            raise
        found = Manifest.parse(raw, media_type=self._base.media_type, subject=f"manifest {self._base.manifest}")
        if found.config.digest != self._base.config:
            raise FactMismatchError(
                "base", "names another config than the lock", expected=self._base.config, actual=found.config.digest
            )
        self._config = found.config
        if self._layers is None:
            self._layers = list(found.layers)
        return None, where

    def _document(self, digest: Digest, size: int | None) -> tuple[bytes, str]:
        """The bytes of a manifest or index, hashed, and who gave them."""

        def ask(repository: Repository) -> bytes:
            raw = repository.manifest(digest).raw
            if size not in {None, len(raw)}:
                raise DigestMismatchError(
                    "manifest", "has another size", expected=f"{size} bytes", actual=f"{len(raw)} bytes"
                )
            return raw

        def look() -> bytes:
            limit = DEFAULT_LIMITS.manifest_bytes
            return self._context.store.read(digest, subject=f"manifest {digest}", max_bytes=limit, size=size)

        return self._first(ask, look)

    def _blob(self, blob: Descriptor) -> tuple[str | None, str | None]:
        """Whether a blob is there with its size, and who says so."""
        from imgbuild.adapters.registry.blobs import blob_size  # noqa: PLC0415 - urllib3 takes 60 ms

        def differs(found: str) -> DigestMismatchError:
            return DigestMismatchError(
                "blob", "is there with another size", expected=f"{blob.size} bytes", actual=found
            )

        def ask(repository: Repository) -> str:
            found = blob_size(repository, blob)
            if found is None:
                raise MissingError("blob", "is not in the registry", hint="some registries hide so what is private")
            if blob.size != _UNKNOWN and found not in {-1, blob.size}:
                raise differs(f"{found} bytes")
            return "its size is not told" if found == -1 else f"{found} bytes"

        def look() -> str:
            store = self._context.store
            if not store.has(blob.digest):
                raise MissingError("blob", "is not in the store")
            if blob.size != _UNKNOWN and not store.has(blob.digest, blob.size):
                raise differs("another size")
            return "its bytes were not hashed"

        return self._first(ask, look)

    def _first(self, ask: Callable[[Repository], T], look: Callable[[], T]) -> tuple[T, str]:
        """The first good answer: of the registry, or for a local name of a mirror, else of the store."""
        if self._silent is not None:
            problem = f"was not asked for, as there was no answer for the manifest: {self._silent.problem}"
            raise type(self._silent)("it", problem, hint=self._silent.hint)
        errors: list[ImgbuildError] = []
        for repository in self._places():
            try:
                return ask(repository), str(repository)
            except (BudgetError, StorageError):
                raise
            except (AvailabilityError, IntegrityError) as error:
                errors.append(error)
        if self._local:
            try:
                return look(), f"the store here, {self._context.store.root}"
            except IntegrityError as error:
                errors.append(error)
            except MissingError:
                pass
        if not errors:
            raise AvailabilityError("it", "is not in the store here, and its name is of no registry", hint=_LOCAL)
        # A mirror that was not heard may have it: then it is not gone.
        raise next((error for error in errors if not isinstance(error, MissingError)), errors[0])


def _unknown_layers() -> tuple[str | None, str | None]:
    raise AvailabilityError(
        "layers",
        "are named by the manifest only, since the lock has no facts",
        hint="`imgbuild lock IMAGE --complete` writes them down while the base is there",
    )


# Sources


def _sources(context: Context, sources: list[LockedSource]) -> Iterator[_Question]:
    for pin in sources:
        make = functools.partial(_Question, name=pin.name)
        match pin:
            case LockedGit():
                ask = functools.partial(_ask_git, context, pin)
                yield make(kind="git", what=f"commit of {pin.name}", pin=pin.commit, where=pin.repository, ask=ask)
            case LockedWheel():
                asked = functools.partial(_ask_wheel, context, wheel_pin(pin))
                yield make(kind="wheel", what=pin.filename, pin=pin.digest, where=INDEX, ask=asked)
            case LockedToolchain():
                for file in {host.digest: host for host in pin.hosts.values()}.values():
                    wheel = WheelPin(
                        name=pin.distribution,
                        version=pin.version,
                        filename=file.filename,
                        digest=file.digest,
                        size=None,
                    )
                    asked = functools.partial(_ask_wheel, context, wheel)
                    yield make(kind="toolchain", what=file.filename, pin=file.digest, where=INDEX, ask=asked)


def _ask_git(context: Context, pin: LockedGit) -> tuple[str | None, str | None]:
    """Fetch a commit into a repository that is thrown away. That it is on a ref is neither needed nor looked at."""
    source = parse_source(locate(context, pin.repository), allow_local=True)
    if context.offline and source.remote:
        raise OfflineMissError(source.name, "would have to be asked")
    with work_folder(None, prefix="imgbuild-check-") as work:
        if source.remote:
            try:
                return _ask_server(source, pin, work / "one"), None
            except ToolError as error:
                _refused(error, source)
        # As a build fetches it: from files, where filters do not work, and from servers that serve only refs.
        repository = GitRepository(work / "all", allow_local=True, timeout=_GIT_SECONDS)
        try:
            repository.fetch(source.url, pin.commit, expected_tree=pin.tree).close()
        except ToolError as error:
            _refused(error, source)
            if error.hint is not None:
                raise
            raise NetworkError(source.name, f"git {error.problem}", actual=error.actual) from error
    return "with all its files", None


def _ask_server(source: Source, pin: LockedGit, bare: Path) -> str:
    """Fetch the commit object alone, by its id; its tree has to be the one of the lock."""
    make_folder(bare)
    runner = Runner(bare, source, _GIT_SECONDS)
    form = "sha1" if len(pin.commit) == SHA1_HEX else "sha256"
    runner.run("init", "--quiet", "--bare", "--template=", f"--object-format={form}")
    options = ("--quiet", "--no-tags", "--no-recurse-submodules", "--no-auto-maintenance", "--no-write-fetch-head")
    runner.run("fetch", *options, "--depth=1", "--filter=tree:0", "--end-of-options", source.url, pin.commit)
    first = runner.run("cat-file", "commit", pin.commit).partition(b"\n")[0].decode("ascii", "replace")
    if first != f"tree {pin.tree}":
        raise FactMismatchError("commit", "has another tree than the lock", expected=pin.tree, actual=first[:100])
    return "the commit itself; its files were not asked for"


def _refused(error: ToolError, source: Source) -> None:
    """Raise what git's words mean, where they mean more than that it failed."""
    said = error.actual or ""
    if _GIT_REFUSES.search(said):
        hint = "give ssh a key that may read it; forges answer like this for what was deleted, too"
        raise UnauthorizedError(
            source.name, "is not shown to whoever asks from here", actual=said, hint=hint
        ) from error
    if source.bundle and error.problem.startswith("failed"):
        raise ArchiveError(source.name, "is no bundle that git can read", actual=said) from error
    if _GIT_ABSENT.search(said):
        raise MissingError(source.name, "is not there", actual=said) from error


def _ask_wheel(context: Context, pin: WheelPin) -> tuple[str | None, str | None]:
    """Let pip say which file it would install for exactly these tags, and what the index tells of it."""
    if context.offline:
        raise OfflineMissError(pin.filename, "would have to be asked for")
    with work_folder(None, prefix="imgbuild-check-") as work:
        log, report = work / "pip.log", work / "report.json"
        arguments = ["install", "--dry-run", "--ignore-installed", f"--target={work / 'none'}", f"--report={report}"]
        arguments += ["--no-deps", "--only-binary=:all:", "--no-cache-dir", "--retries=2", "--timeout=20"]
        arguments += [f"--log={log}", *(["--use-feature=fast-deps"] if reads_ranges() else [])]
        arguments += [*_tag_arguments(parse_wheel_filename(pin.filename)[3]), f"{pin.name}=={pin.version}"]
        try:
            run_pip(arguments, work, subject=pin.filename, limit=_SMALL_WHEEL)
        except ToolError as error:
            raise _not_offered(pin, _text(log, _LOG_BYTES), error) from error
        except IntegrityError as error:
            problem = "was not fetched whole, which the index asks for: it has neither metadata apart nor ranges"
            raise AvailabilityError(pin.filename, problem, hint="build with an empty --cache to see") from error
        filename, digest = _offer(_text(report, REPORT_BYTES))
    if filename != pin.filename:
        problem = f"may be there or not: pip prefers {printable(filename)}, which fits the same tags"
        raise AvailabilityError(pin.filename, problem, hint="look into the index")
    if digest is None:
        raise AvailabilityError(
            pin.filename, "is there, and the index tells no sha256 of it", hint="look into the index"
        )
    if digest != f"sha256:{pin.digest.encoded}":
        raise DigestMismatchError(pin.filename, "has other bytes", expected=pin.digest, actual=printable(digest, 100))
    return None, None


def _not_offered(pin: WheelPin, log: str, error: ToolError) -> ImgbuildError:
    """What pip's failure means by its log: pip says "no matching distribution" of an index that is down, too."""
    unheard = [match[1] or match[0] for match in _UNFETCHED.finditer(log)]
    if any(text.startswith(("401 ", "403 ")) for text in unheard):
        return UnauthorizedError(pin.filename, "is not shown by the index", hint=error.hint)
    heard = "Fetched page " in log or "Looking in links: " in log or bool(unheard)
    if not heard or not all(text.startswith(("404 ", "410 ")) for text in unheard):
        return error
    if "No matching distribution found" not in log:
        return error
    return MissingError(pin.filename, "is not in the index that pip is configured for", hint=error.hint)


def _offer(report: str) -> tuple[str, str | None]:
    """File name and sha256 from an installation report (PyPA, pip's report format 1)."""
    try:
        (item,) = jsontext.loads(report.encode(), subject="report of pip")["install"]
        info: dict[str, Any] = item["download_info"]
        encoded = info["archive_info"].get("hashes", {}).get("sha256")
        filename = unquote(urlsplit(str(info["url"])).path).rsplit("/", 1)[-1]
    except (DocumentError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ToolError(
            "pip", "gave no report of one file", hint="is its version one of those in pyproject.toml?"
        ) from error
    return filename, None if encoded is None else f"sha256:{encoded}"


def _text(path: Path, limit: int) -> str:
    try:
        with open_regular(path) as stream:
            return b"".join(bounded(stream, limit))[:limit].decode("utf-8", "replace")
    except OSError:
        return ""

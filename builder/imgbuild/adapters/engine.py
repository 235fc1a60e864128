"""A local Docker: loading an image as a stream, and what it then says of it (Docker Engine API, 1.24 and newer).

The daemon is the one that `DOCKER_HOST` names (with `DOCKER_TLS_VERIFY` and `DOCKER_CERT_PATH`), else the usual socket.
Contexts of the docker program are not looked at. What a daemon says of an image is believed: it has the bytes.
"""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from imgbuild.digest import Digest
from imgbuild.errors import DocumentError, ImgbuildError, ToolError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from docker import APIClient

_ANSWER_SECONDS = 60
"""seconds for one answer to a small question."""
_LOAD_SECONDS = 3600
"""seconds without a byte from or to the daemon while it loads: unpacking a layer of 14 GB says nothing for minutes."""
_MESSAGES = 1_000_000
"""lines that a daemon may say while it loads."""
_SAID = 500
"""characters of an answer that are shown."""
_SECRET = re.compile(r"//[^/@\s]*@")
_USUAL = "unix:///var/run/docker.sock"
_NO_ANSWER = "is Docker running, and may you use its socket? DOCKER_HOST names another one"
_NOT_LOADED = "see the log of the daemon, and the free space where it keeps images"
_NOT_FOUND = 404
_CONTAINERD = "io.containerd."
"""How the driver type of a containerd store begins."""
_FIRST_VERSION = "1.44"
"""of the API, for the client that asks for the version; that request has none in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineImage:
    """An image as a daemon describes it.

    `identifier` is the digest of its config in one kind of store, and of its manifest in the other one (case P40).
    """

    identifier: Digest
    diff_ids: tuple[str, ...]
    os: str
    architecture: str


class Engine:
    """A daemon that has answered."""

    def __init__(self, client: APIClient, loader: APIClient, host: str, *, version: str, store: str) -> None:
        self._client = client
        self._loader = loader
        self.host = host
        self.version = version
        self.has_containerd_store = store.startswith(_CONTAINERD)

    @classmethod
    def connect(cls, environment: Mapping[str, str] = os.environ) -> Engine:
        """Ask the daemon for its version and its kind of store.

        Raises:
            ToolError: it does not answer, or is no Docker.
        """
        host = _clean(environment.get("DOCKER_HOST") or _USUAL)
        with _failures(host, "does not answer", hint=_NO_ANSWER):
            with _client(environment, _FIRST_VERSION, _ANSWER_SECONDS) as asking:
                version = asking.version(api_version=False)
            api = str(version["ApiVersion"])
            client = _client(environment, api, _ANSWER_SECONDS)
            status = dict(client.info().get("DriverStatus") or ())
            return cls(
                client,
                _client(environment, api, _LOAD_SECONDS),
                host,
                version=str(version["Version"])[:_SAID],
                store=str(status.get("driver-type")),
            )

    def close(self) -> None:
        """End its connections."""
        self._client.close()
        self._loader.close()

    def find(self, name: str) -> EngineImage | None:
        """What the daemon says of an image, by digest or name; None if it has none of that name."""
        from docker.errors import APIError  # noqa: PLC0415

        with _failures(self.host, f"does not describe {name}"):
            try:
                answer = self._client.inspect_image(name)
            except APIError as error:
                if error.status_code == _NOT_FOUND:
                    return None
                raise
        return self._image(answer, name)

    def load(self, pieces: Iterable[bytes]) -> None:
        """Send an archive as it is made; it is nowhere whole on this side.

        What making the pieces raises passes through; the daemon then has had no whole archive and keeps nothing of it
        under a name.

        Raises:
            ToolError: the daemon broke off or says that it failed.
        """
        source = _Source(pieces)
        try:
            with _failures(self.host, "did not load the image", hint=_NOT_LOADED):
                # Quiet, since its words while it still reads would have to be read while we still write.
                for number, message in enumerate(self._loader.load_image(iter(source), quiet=True)):
                    self._judge(message, number)
        except ToolError:
            if source.failure is not None:
                raise source.failure from None
            raise

    def tag(self, identifier: Digest, name: str) -> None:
        """Give an image of the daemon a name (`host/repository:tag`), and take it from another one that has it."""
        repository, _, tag = name.rpartition(":")
        with _failures(self.host, f"does not name the image {name}"):
            self._client.tag(str(identifier), repository, tag, force=True)

    def _judge(self, message: Any, number: int) -> None:
        if number > _MESSAGES:
            raise ToolError(f"docker {self.host}", "does not end to speak", expected=f"at most {_MESSAGES} lines")
        if not isinstance(message, dict):
            return
        # A refusal is its body alone: there was no success that could be followed by an error.
        said = message.get("error") or message.get("message")
        if said is not None:
            raise ToolError(
                f"docker {self.host}",
                "did not load the image",
                actual=str(said)[:_SAID],
                hint=_NOT_LOADED,
            )

    def _image(self, answer: Any, name: str) -> EngineImage:
        try:
            layers = answer["RootFS"]["Layers"]
            return EngineImage(
                identifier=Digest.parse(answer["Id"]),
                diff_ids=tuple(str(layer) for layer in layers or ()),
                os=str(answer["Os"]),
                architecture=str(answer["Architecture"]),
            )
        except (KeyError, TypeError, AttributeError, DocumentError) as error:
            raise ToolError(
                f"docker {self.host}", f"describes {name} in a way that is not known", actual=str(answer)[:_SAID]
            ) from error


class _Source:
    """Passes pieces on, and keeps what making them raised, since the client makes another exception of some."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = pieces
        self.failure: Exception | None = None

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield from self._pieces
        except Exception as error:
            self.failure = error
            raise


def _client(environment: Mapping[str, str], version: str, seconds: int) -> APIClient:
    from docker import APIClient  # noqa: PLC0415 - 150 ms
    from docker.utils import kwargs_from_env  # noqa: PLC0415

    where = kwargs_from_env(environment={"DOCKER_HOST": "", **environment})
    client = APIClient(**where, version=version, timeout=seconds)
    # Neither proxies nor ~/.netrc are meant for a daemon.
    client.trust_env = False
    return client


@contextlib.contextmanager
def _failures(host: str, problem: str, *, hint: str | None = None) -> Iterator[None]:
    """Turn whatever the client and the libraries below it raise into a `ToolError`."""
    from docker.errors import APIError  # noqa: PLC0415

    try:
        yield
    except ImgbuildError:
        raise
    except Exception as error:
        said = _clean(error.explanation or error) if isinstance(error, APIError) else _reason(error)
        raise ToolError(f"docker {host}", problem, actual=said, hint=hint) from error


def _reason(error: BaseException) -> str:
    """The words of the innermost failure: those around it are names of classes."""
    inner: BaseException | None = error
    while inner is not None:
        if isinstance(inner, OSError) and inner.strerror:
            return inner.strerror
        inner = inner.__cause__ or inner.__context__
    return _clean(error)


def _clean(said: object) -> str:
    return _SECRET.sub("//", str(said))[:_SAID]

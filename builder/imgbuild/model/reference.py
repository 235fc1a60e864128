"""Image references: `host[:port]/repository[:tag][@digest]` (distribution-spec). Nothing is filled in."""

from __future__ import annotations

import re
from dataclasses import dataclass

from imgbuild.digest import Digest
from imgbuild.errors import DocumentError, InputError, UnpinnedError

_HOST = re.compile(r"(?:localhost|[a-zA-Z0-9-]+(?:\.[a-zA-Z0-9-]+)+|[a-zA-Z0-9-]+(?=:))(?::[0-9]{1,5})?")
_REPOSITORY = re.compile(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*")
_TAG = re.compile(r"[a-zA-Z0-9_][a-zA-Z0-9._-]{0,127}")
_MAX_NAME = 255


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """A parsed reference. The host is never guessed: `ubuntu` alone is refused."""

    host: str
    repository: str
    tag: str | None = None
    digest: Digest | None = None

    @classmethod
    def parse(cls, text: str, *, where: str) -> Reference:
        """Parse strictly; an `InputError` says which part is wrong."""
        rest, at, digest_text = text.partition("@")
        try:
            digest = Digest.parse(digest_text) if at else None
        except DocumentError as error:
            raise InputError(f"reference {text[:300]!r}", error.problem, where=where) from error
        host, slash, path = rest.partition("/")
        repository, colon, tag = path.partition(":")
        if not slash or not _HOST.fullmatch(host):
            raise InputError(
                f"reference {text[:300]!r}",
                "does not name its registry",
                where=where,
                hint="write host/repository",
            )
        if len(repository) > _MAX_NAME or not _REPOSITORY.fullmatch(repository):
            raise InputError(f"reference {text[:300]!r}", "has no valid repository name", where=where)
        if colon and not _TAG.fullmatch(tag):
            raise InputError(f"reference {text[:300]!r}", "has no valid tag", where=where)
        return cls(host=host, repository=repository, tag=tag or None, digest=digest)

    @property
    def name(self) -> str:
        """`host/repository`."""
        return f"{self.host}/{self.repository}"

    def pinned(self, *, where: str) -> Digest:
        """The digest; an `UnpinnedError` if there is only a tag (case P19)."""
        if self.digest is None:
            raise UnpinnedError(
                f"reference {self}",
                "names a tag, which may move; a digest is needed here",
                where=where,
                hint="run `imgbuild lock IMAGE` to pin it, or write name@sha256:…",
            )
        return self.digest

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        digest = f"@{self.digest}" if self.digest else ""
        return f"{self.name}{tag}{digest}"


def check_tag(tag: str, *, where: str) -> str:
    """Return a valid tag, or raise an `InputError`."""
    if not _TAG.fullmatch(tag):
        raise InputError(
            f"tag {tag[:200]!r}",
            "is not a valid tag",
            expected="[a-zA-Z0-9_][a-zA-Z0-9._-]{0,127}",
            where=where,
        )
    return tag

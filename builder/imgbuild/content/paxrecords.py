"""The contents of PAX extended headers and GNU long names: records in, values or `HeaderError` out.

Nothing malformed is skipped, because a reader that skips sees another archive than one that does not. Only `tarheader`
and `tarstream` need this module. Sources: POSIX.1-2017 `pax`, "pax Header Block"; star's SCHILY.* keys.
"""

from __future__ import annotations

import re

_DECIMAL = re.compile(rb"[0-9]{1,20}")
_TIME_LIMIT = 2**63
_TIME = re.compile(rb"(-?)([0-9]{1,20})(?:\.([0-9]*))?")
_XATTR = b"SCHILY.xattr."
_SPARSE = (b"GNU.sparse.", b"SCHILY.realsize")
_TIMES = frozenset({b"mtime", b"atime", b"ctime"})
_NUMBERS = frozenset({b"size", b"uid", b"gid"})
_NAMES = frozenset({b"path", b"linkpath"})
_LENGTH_DIGITS = 10
"""digits of the length of a PAX record; more than any limit needs."""
_SHOWN = 200
"""bytes of a name or value in a message."""


class HeaderError(Exception):
    """What is wrong with an entry, as a clause; `TarReader` makes it an `ArchiveError` with layer and offset."""


def records(data: bytes) -> dict[bytes, bytes]:
    """The records of one PAX header, `LENGTH KEY=VALUE` and a newline each; the last one of a key wins.

    Raises `HeaderError` for anything malformed, never skips it, and for sparse files (case C23). Keys with an empty
    value stay in: they delete.
    """
    found: dict[bytes, bytes] = {}
    start = 0
    while start < len(data):
        space = data.find(b" ", start, start + _LENGTH_DIGITS + 1)
        if space < 0 or not data[start:space].isdigit():
            raise HeaderError(f"has a malformed PAX header: no record length at its byte {start}")
        end = start + int(data[start:space])
        key, equals, value = data[space + 1 : end - 1].partition(b"=")
        if not space < end - 1 < len(data) or data[end - 1] != ord("\n") or not key or not equals:
            raise HeaderError(f"has a malformed PAX header: no KEY=VALUE and newline at its byte {start}")
        _check(key, value)
        found[key] = value
        start = end
    return found


def global_records(data: bytes) -> dict[bytes, bytes]:
    """The records of a global PAX header that matter: uid, gid, mtime. `HeaderError` as `records`.

    Go, and with it Docker, containerd and Podman, ignores global headers; POSIX and GNU tar apply them. Owner and time
    follow POSIX (git writes times so); what would make another tree is refused.
    """
    found = records(data)
    for key in found:
        if key in _NAMES or key == b"size" or key.startswith(_XATTR):
            raise HeaderError(f"has {show(key)} in a global PAX header; readers disagree about that")
    return {key: value for key, value in found.items() if key in {b"uid", b"gid", b"mtime"}}


def long_name(data: bytes) -> bytes:
    """The name in the content of a GNU long name header: NUL-terminated, not empty."""
    name = data.rstrip(b"\0")
    if not name or b"\0" in name:
        raise HeaderError("has a GNU long name that is empty or holds a NUL")
    return name


def seconds(record: bytes) -> int:
    """Whole seconds of a PAX time, a fraction cut toward minus infinity (case C19)."""
    match = _TIME.fullmatch(record)
    if match is None:
        raise HeaderError(f"has a malformed time: {show(record)}")
    seconds = int(match[2])
    if match[1]:
        seconds = -seconds - bool((match[3] or b"").strip(b"0"))
    return time_in_range(seconds)


def time_in_range(value: int) -> int:
    """The same seconds, if 64 bits hold them."""
    if not -_TIME_LIMIT <= value < _TIME_LIMIT:
        raise HeaderError(f"has a time out of range: {value}")
    return value


def xattrs(extra: dict[bytes, bytes]) -> tuple[tuple[str, bytes], ...]:
    """The extended attributes among records, sorted by name; values are bytes (cases C24, C25)."""
    found = []
    for key, value in extra.items():
        if value and key.startswith(_XATTR):
            try:
                found.append((key[len(_XATTR) :].decode(), value))
            except UnicodeDecodeError:
                raise HeaderError(f"has an xattr name that is not UTF-8: {show(key)}") from None
    return tuple(sorted(found))


def show(value: bytes) -> str:
    """Bytes for a message, cut to a length that fits on a screen."""
    return repr(value[:_SHOWN]) + ("..." if len(value) > _SHOWN else "")


def _check(key: bytes, value: bytes) -> None:
    """Refuse a PAX record whose value is not what its key wants."""
    if b"\0" in key or (key in _NAMES and b"\0" in value):
        raise HeaderError(f"has a NUL in the PAX record {show(key)}")
    if key == _XATTR:
        raise HeaderError("has an xattr without a name in its PAX header")
    if key.startswith(_SPARSE):
        raise HeaderError(f"is a sparse file ({show(key)}); write the layer without sparse files")
    wanted = _TIME if key in _TIMES else _DECIMAL if key in _NUMBERS else None
    if wanted and value and not wanted.fullmatch(value):
        raise HeaderError(f"has a malformed number in the PAX record {show(key)}: {show(value)}")

"""`pins.toml`: the wheels that the stand-in is made of, and the digests that must come out."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from imgbuild.digest import Digest
from imgbuild.errors import InternalError, ToolError

if TYPE_CHECKING:
    from imgbuild.adapters.fetch import WheelPin

PINS = Path(__file__).resolve().parent / "pins.toml"
ZIG_VERSION = "0.15.2"


def expected(family: str) -> Digest:
    """The manifest digest that the base of a family must have."""
    return Digest.parse(_read()["expected"][family])


def accept(family: str, digest: Digest) -> None:
    """Write another expected digest into the file; nothing else in it changes."""
    text = PINS.read_text(encoding="utf-8")
    changed, count = re.subn(rf'(?m)^{family} = "sha256:[0-9a-f]+"$', f'{family} = "{digest}"', text)
    if count != 1:
        raise InternalError(str(PINS), "has no single line to rewrite", expected=f"{family} = …", actual=count)
    PINS.write_text(changed, encoding="utf-8")


def wheel(name: str) -> WheelPin:
    """One of the wheels."""
    return _pin(_read()["wheels"][name])


def zig() -> WheelPin:
    """The compiler's wheel for this kind of host."""
    from imgbuild.steps.sources import host_key

    hosts = _read()["zig"]
    if host_key() not in hosts:
        raise ToolError("zig", "has no wheel for this kind of host", expected=", ".join(hosts), actual=host_key())
    return _pin({"name": "ziglang", "version": ZIG_VERSION, **hosts[host_key()]})


def _pin(row: dict[str, Any]) -> WheelPin:
    from imgbuild.adapters.fetch import WheelPin

    return WheelPin(
        name=row["name"],
        version=row["version"],
        filename=row["filename"],
        digest=Digest("sha256", row["sha256"]),
        size=row.get("size"),
    )


def _read() -> dict[str, Any]:
    return tomllib.loads(PINS.read_text(encoding="utf-8"))

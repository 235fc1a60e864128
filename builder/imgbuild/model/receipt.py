"""The receipt in an image: every path that it adds, replaces or removes against its base (design.md, section 5)."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from imgbuild import jsontext
from imgbuild.digest import Digest
from imgbuild.model.decode import END, Document, builtins, convert, require_schema

SCHEMA = "imgbuild/receipt/v1"
FOLDER = b"usr/share/imgbuild"
"""Where lock and receipt are in the image."""
RECEIPT_PATH = FOLDER + b"/receipt.json"


def lock_path(image: str) -> bytes:
    """The path of the embedded lock."""
    return FOLDER + b"/" + image.encode() + b".lock.json"


class ReceiptEntry(Document, frozen=True, kw_only=True):
    """One path. `before` is the digest of the base's file, where there was one."""

    path: str
    change: Annotated[str, Meta(pattern=f"^(added|replaced|removed){END}")]
    type: str
    mode: str | None = None
    owner: str | None = None
    size: int | None = None
    digest: Digest | None = None
    link: str | None = None
    before: Digest | None = None


class Receipt(Document, frozen=True, kw_only=True):
    """All paths but the receipt's own, sorted."""

    schema: str
    image: str
    base: Digest
    entries: list[ReceiptEntry]

    def dump(self) -> bytes:
        """Canonical bytes."""
        return jsontext.dumps(builtins(self))


def parse_receipt(raw: bytes, *, subject: str) -> Receipt:
    """Parse a receipt out of an image, which is hostile input as everything in it."""
    value = jsontext.loads(raw, subject=subject)
    require_schema(value, SCHEMA, subject=subject)
    return convert(value, Receipt, subject=subject)

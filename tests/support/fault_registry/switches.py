"""How a registry behaves all the time, where the specification or the world leaves a choice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.fault_registry.storage import Repository

    TagHook = Callable[[Repository, str], None]


@dataclass(slots=True, kw_only=True)
class Switches:
    """May be changed while the server runs. The defaults are the specification, strictly."""

    sessions: Literal["spec", "distribution-2.8"] = "spec"
    """What an upload is after a connection broke inside of a PATCH. `spec`: the bytes that arrived are kept, the last
    Location still answers a status request with the true offset. `distribution-2.8` (measured): a Location is bound
    to one offset, so that every Location the client has is 404 BLOB_UPLOAD_INVALID from then on."""
    first_range: str | None = "0-0"
    """`Range` of an upload that holds nothing yet; distribution 2.8 says 0-0; None leaves it out."""
    chunk_min_bytes: int | None = None
    """`OCI-Chunk-Min-Length`; a chunk after one that was shorter is refused."""
    mismatch_keeps_upload: bool = False
    """A PUT with a wrong digest leaves the upload alive, as distribution 2.8 does (measured)."""
    monolithic_post: bool = True
    """`POST ?digest=` with the bytes; otherwise 202 and the body is not read, as distribution 2.8 does (measured)."""
    mount_without_from: bool = False
    """A mount that names no source repository may succeed (specification: optional)."""
    mount_unreadable: Literal[202, 401] = 202
    """Answer to a mount from a repository that the token may not pull."""
    keep_bytes: bool = True
    """False: uploaded blobs are hashed and dropped; they are there with digest and size, a GET of one is an error."""
    content_digest: bool = True
    """`Docker-Content-Digest` on manifests and blobs (case C43)."""
    referrers: bool = True
    """The referrers API, and `OCI-Subject` on a PUT; otherwise 404."""
    referrers_filter: bool = True
    """`artifactType` is obeyed, with `OCI-Filters-Applied`."""
    referrers_type: str = "application/vnd.oci.image.index.v1+json"
    """Content type of the referrers' answer."""
    referrers_page: int | None = None
    """Descriptors a page, with `Link`."""
    tags_page: int | None = None
    """Tags a page where the client asks for more or for no number."""
    immutable: Literal[400, 403, 409, 412] | None = None
    """Status with which a tag that exists is protected from another digest (case C55)."""
    immutable_same: bool = False
    """The same digest under a protected tag is refused as well."""
    long_416: bool = False
    """416 announces the length of the whole blob and ends before it, as distribution 2.8 does (measured)."""
    delete: bool = True
    """DELETE of blobs, manifests and tags; otherwise 405."""
    before_put_tag: TagHook | None = None
    """Called before a tag is written: another writer whose update is about to be overwritten (case C52)."""
    after_put_tag: TagHook | None = None
    """Called after a tag was written: another writer who overwrites it."""

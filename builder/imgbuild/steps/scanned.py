"""What one pass over a layer says against what is stated of it, as findings; and errors as findings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from imgbuild.errors import AvailabilityError, ImgbuildError
from imgbuild.model.identity import Finding, compare, judge, not_checked

if TYPE_CHECKING:
    from imgbuild.content.inventory import LayerScan
    from imgbuild.digest import Digest
    from imgbuild.model.oci import Descriptor


def layer_findings(layer: Descriptor, diff_id: Digest, scan: LayerScan | ImgbuildError) -> list[Finding]:
    """Digest, size and DiffID of one layer; of one that could not be read, why."""
    subject = f"layer {layer.digest}"
    if isinstance(scan, ImgbuildError):
        unknown = not_checked("layer.diff_id", subject, "the layer could not be read")
        return [failed("layer.digest", scan), unknown]
    return [
        compare("layer.digest", subject, f"{layer.digest}, {layer.size} bytes", f"{scan.digest}, {scan.size} bytes"),
        compare("layer.diff_id", subject, diff_id, scan.inventory.diff_id),
    ]


def failed(check: str, error: ImgbuildError, *, hint: str | None = None) -> Finding:
    """An error as a finding: bytes that are not what they should be differ, what is not there is not checked."""
    if isinstance(error, AvailabilityError):
        return not_checked(check, error.subject, reason(error, hint))
    return judge(
        check,
        error.subject,
        ok=False,
        expected=error.expected or "can be read",
        actual=error.actual or error.problem,
        reason=reason(error, hint),
    )


def reason(error: ImgbuildError, hint: str | None = None) -> str:
    """What is wrong and what to do, on one line."""
    return f"{error.problem}; {hint or error.hint or error.advice}"

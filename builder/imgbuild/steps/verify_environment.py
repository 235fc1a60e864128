"""Step 9 of static verification: what in the environment would change what is loaded (design.md, section 7)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from imgbuild.model.identity import Finding, judge, not_checked
from imgbuild.model.paths import show

if TYPE_CHECKING:
    from imgbuild.model.image import ImageDefinition
    from imgbuild.model.oci import ImageConfig
    from imgbuild.steps.view import View

REFUSED = {
    "LD_PRELOAD": "loads a library before all others",
    "LD_AUDIT": "lets a library rewrite every search",
    "LD_LIBRARY_PATH": "puts folders before RUNPATH and the system's",
    "EP_SUPPRESS_NCCL_CHECK": "switches off DeepEP's own check for two NCCLs",
    "VLLM_NCCL_SO_PATH": "makes vLLM load NCCL from a path of its own",
    "NCCL_VERSION": "states a version that nothing keeps true (case P08)",
    "PYTHONHOME": "moves the standard library and site-packages",
}
"""Variables that are refused in an image unless the definition accepts the exact value with a reason."""
_PRELOAD = b"etc/ld.so.preload"


def environment(view: View | None, definition: ImageDefinition, config: ImageConfig) -> list[Finding]:
    """Findings for every refused variable, every acceptance, and `/etc/ld.so.preload`.

    Without a view, since the layers could not be read, the file is not checked.
    """
    accepted = {item.name: item for item in definition.accept_env}
    findings = []
    for name, effect in REFUSED.items():
        value = config.variable(name)
        if name not in accepted:
            actual = "not set" if value is None else f"{name}={value}"
            findings.append(judge("environment", name, value is None, expected="not set", actual=actual, reason=effect))
    for name, item in accepted.items():
        value = config.variable(name)
        actual = "is not set any more" if value is None else value
        findings.append(
            judge("environment", name, value == item.value, expected=item.value, actual=actual, reason=item.reason)
        )
    return [*findings, _preload(view)]


def _preload(view: View | None) -> Finding:
    if view is None:
        return not_checked("environment", show(_PRELOAD), "the layers could not be read or merged")
    present = view.resolve(_PRELOAD) is not None
    return judge(
        "environment",
        show(_PRELOAD),
        not present,
        expected="absent",
        actual="present" if present else "absent",
        reason="libraries named there are loaded before all others",
    )

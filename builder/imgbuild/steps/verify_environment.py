"""Step 9 of static verification: what in the environment would change what is loaded (design.md, section 7)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from imgbuild.model.identity import Finding, Verdict, compare
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


def environment(view: View, definition: ImageDefinition, config: ImageConfig) -> list[Finding]:
    """Findings for every refused variable, every acceptance, and `/etc/ld.so.preload`."""
    accepted = {item.name: item for item in definition.accept_env}
    findings = []
    for name, effect in REFUSED.items():
        value = config.variable(name)
        if name in accepted:
            item = accepted[name]
            actual = "is not set any more" if value is None else value
            findings.append(compare("environment", name, item.value, actual, reason=item.reason))
        else:
            findings.append(
                compare(
                    "environment", name, "not set", "not set" if value is None else f"{name}={value}", reason=effect
                )
            )
    findings.extend(
        compare("environment", name, item.value, config.variable(name) or "is not set any more", reason=item.reason)
        for name, item in accepted.items()
        if name not in REFUSED
    )
    present = view.resolve(_PRELOAD) is not None
    findings.append(
        Finding(
            check="environment",
            subject=show(_PRELOAD),
            verdict=Verdict.DIFFERS if present else Verdict.MATCH,
            expected="absent",
            actual="present" if present else "absent",
            reason="libraries named there are loaded before all others",
        )
    )
    return findings

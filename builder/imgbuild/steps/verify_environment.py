"""Step 9 of static verification: what in the environment would change what is loaded (design.md, section 7).

Looked at are the image's variables, none of which may be there twice (which one counts depends on who reads them),
assignments in the arguments of its commands, `/etc/ld.so.preload`, and the files from which NCCL takes variables.
Not looked at: what a program or script sets itself, and a home folder that is not below `/root` or `/home`.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any

from imgbuild import jsontext
from imgbuild.errors import UNREADABLE
from imgbuild.model.identity import Finding, judge, not_checked
from imgbuild.model.paths import show

if TYPE_CHECKING:
    from collections.abc import Iterator

    from imgbuild.model.image import ImageDefinition
    from imgbuild.model.oci import ImageConfig
    from imgbuild.steps.view import View

REFUSED = {
    "LD_PRELOAD": "loads a library before all others",
    "LD_AUDIT": "lets a library rewrite every search",
    "LD_LIBRARY_PATH": "puts folders before RUNPATH and the system's",
    "EP_SUPPRESS_NCCL_CHECK": "switches off DeepEP's own check for two NCCLs",
    "VLLM_NCCL_SO_PATH": "makes vLLM load NCCL from a path of its own",
    "SGLANG_NCCL_SO_PATH": "makes SGLang load NCCL from a path of its own",
    "NCCL_VERSION": "states a version that nothing keeps true (case P08)",
    "NCCL_NET_PLUGIN": "makes NCCL load a network plugin",
    "NCCL_TUNER_PLUGIN": "makes NCCL load a tuner plugin",
    "NCCL_PROFILER_PLUGIN": "makes NCCL load a profiler plugin",
    "NCCL_GIN_PLUGIN": "makes NCCL load a plugin for GPU-initiated networking",
    "NCCL_ENV_PLUGIN": "makes NCCL load a plugin that changes its environment",
    "NCCL_CONF_FILE": "makes NCCL take variables from a file",
    "GLIBC_TUNABLES": "changes how the linker loads",
    "PYTHONHOME": "moves the standard library and site-packages",
    "PYTHONSTARTUP": "runs a file before an interactive Python",
}
"""Variables that are refused in an image unless the definition accepts the exact value with a reason."""
_PRELOAD = b"etc/ld.so.preload"
_NCCL_FILE, _NCCL_HOME_FILE = b"etc/nccl.conf", b".nccl.conf"
_COMMANDS = ("Entrypoint", "Cmd", "Shell")
_ASSIGNMENT = re.compile(rf"(?<![A-Za-z0-9_])({'|'.join(REFUSED)})=")


def settings(config: ImageConfig) -> dict[str, Any]:
    """The object `config` of an image config, of which only `Env` and `Labels` are known to be well formed."""
    value = jsontext.loads(config.raw, subject=f"config {config.digest}", max_bytes=len(config.raw))
    found = value.get("config")
    return found if isinstance(found, dict) else {}


def environment(view: View | None, definition: ImageDefinition, config: ImageConfig) -> list[Finding]:
    """Findings for every refused variable and acceptance, what is set twice, commands, and files.

    Without a view, since the layers could not be read, the files are not checked.
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
    taken = {name: item.value for name, item in accepted.items()}
    return [*findings, _once(config), _commands(config), _preload(view), _nccl_files(view, taken)]


def _once(config: ImageConfig) -> Finding:
    counts = Counter(item.partition("=")[0] for item in config.env)
    twice = sorted(name for name, count in counts.items() if count > 1)
    text = "each variable once"
    actual = f"more than once: {', '.join(twice)}" if twice else text
    return judge("environment", "variables", not twice, expected=text, actual=actual)


def _commands(config: ImageConfig) -> Finding:
    found = sorted({match[1] for text in _arguments(settings(config)) for match in _ASSIGNMENT.finditer(text)})
    text = "set nothing that is refused"
    actual = f"set {', '.join(found)}" if found else text
    reason = "; ".join(f"{name} {REFUSED[name]}" for name in found) or None
    return judge("environment", "commands", not found, expected=text, actual=actual, reason=reason)


def _arguments(values: dict[str, Any]) -> Iterator[str]:
    """All texts of the image's commands; a value of another shape than the specification's is read as text, too."""
    health = values.get("Healthcheck")
    for value in (*(values.get(name) for name in _COMMANDS), health.get("Test") if isinstance(health, dict) else None):
        yield from map(str, value if isinstance(value, list) else [] if value is None else [value])


def _nccl_files(view: View | None, accepted: dict[str, str]) -> Finding:
    """A line of these files is NAME=VALUE, and NCCL puts it into its environment where it is not yet."""
    where = show(_NCCL_FILE)
    if view is None:
        return not_checked("environment", where, "the layers could not be read or merged")
    homes = [b"root", *(b"home/" + name for name in view.listdir(b"home"))]
    wrong = []
    for path in (_NCCL_FILE, *(home + b"/" + _NCCL_HOME_FILE for home in homes)):
        try:
            content = view.read(path)
        except UNREADABLE as error:
            return not_checked("environment", show(path), f"{error.problem}, so what it sets is not known")
        for line in (content or b"").decode("utf-8", "backslashreplace").splitlines():
            name, _, value = line.strip().partition("=")
            if name in REFUSED and accepted.get(name) != value:
                wrong.append(f"{name} in {show(path)}")
    text = "sets nothing that is refused"
    actual = f"sets {', '.join(wrong)}" if wrong else text
    reason = "NCCL takes variables from this file and from .nccl.conf in a home folder"
    return judge("environment", where, not wrong, expected=text, actual=actual, reason=reason)


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

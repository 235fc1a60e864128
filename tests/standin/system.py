"""Layer 0: what is left of an Ubuntu 24.04 for AArch64 when only what imgbuild looks at is kept."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.standin.stack import EPOCH

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.standin.stack import LayerBuilder

MULTIARCH = "usr/lib/aarch64-linux-gnu"
OS_RELEASE = """\
PRETTY_NAME="Ubuntu 24.04.3 LTS"
NAME="Ubuntu"
VERSION_ID="24.04"
VERSION="24.04.3 LTS (Noble Numbat)"
VERSION_CODENAME=noble
ID=ubuntu
ID_LIKE=debian
UBUNTU_CODENAME=noble
LOGO=ubuntu-logo
"""
_ACCOUNTS = """\
root:x:0:0:root:/root:/bin/bash
daemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin
nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin
"""
_GROUPS = """\
root:x:0:
daemon:x:1:
shadow:x:42:
nogroup:x:65534:
"""
_TEXT = {
    "usr/lib/os-release": OS_RELEASE,
    "etc/passwd": _ACCOUNTS,
    "etc/group": _GROUPS,
    "etc/hostname": "standin\n",
    "etc/motd": "This is the stand-in base, layer 0.\n",
    "etc/ld.so.conf": "include /etc/ld.so.conf.d/*.conf\n",
    "etc/ld.so.conf.d/aarch64-linux-gnu.conf": (
        "# Multiarch support\n/usr/local/lib/aarch64-linux-gnu\n/lib/aarch64-linux-gnu\n/usr/lib/aarch64-linux-gnu\n"
    ),
    "etc/ld.so.conf.d/libc.conf": "# libc default configuration\n/usr/local/lib\n",
    "etc/ld.so.conf.d/nvidia.conf": "/usr/local/nvidia/lib\n/usr/local/nvidia/lib64\n",
    "opt/nvidia/nvidia_entrypoint.sh": '#!/bin/sh\nexec "$@"\n',
    "usr/share/doc/standin/removed-later.txt": "Layer 4 has a whiteout for this file.\n",
    "opt/standin/cache/hidden.bin": "Layer 4 has an opaque marker for this directory.\n",
    "opt/standin/cache/deep/hidden.txt": "And so this is hidden as well.\n",
    "opt/standin/unused/large-sample.txt": "what an image may do without\n" * 64,
    "opt/standin/unused/deep/other-sample.txt": "and this\n",
}
_LINKS = {
    "bin": "usr/bin",
    "lib": "usr/lib",
    "sbin": "usr/sbin",
    "etc/os-release": "../usr/lib/os-release",
    "usr/sbin/nologin": "../bin/true",
    "usr/lib/ld-linux-aarch64.so.1": "aarch64-linux-gnu/ld-linux-aarch64.so.1",
    f"{MULTIARCH}/libstdc++.so.6": "libstdc++.so.6.0.33",
    f"{MULTIARCH}/libnccl.so.2": "libnccl.so.2.28.3",
    f"{MULTIARCH}/libnccl.so": "libnccl.so.2",
}
_LIBRARY_FILES = {"libstdc++.so.6": "libstdc++.so.6.0.33", "libnccl.so.2": "libnccl.so.2.28.3"}
_EMPTY = ("boot", "dev", "home", "media", "mnt", "opt", "proc", "run", "srv", "sys", "usr/local/lib")


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """One stanza of dpkg's status and the files of the package in the stand-in."""

    name: str
    version: str
    summary: str
    files: tuple[str, ...]
    depends: str = ""
    section: str = "libs"
    source: str = ""


def _libraries(*names: str) -> tuple[str, ...]:
    return tuple(f"{MULTIARCH}/{name}" for name in names)


PACKAGES = (
    Package(
        name="base-files", version="13ubuntu10.3", section="admin", files=("usr/lib/os-release", "etc/os-release"),
        summary="Ubuntu base system miscellaneous files",
    ),
    Package(
        name="coreutils", version="9.4-3ubuntu6.1", section="utils", files=("usr/bin/true",), depends="libc6 (>= 2.38)",
        summary="GNU core utilities",
    ),
    Package(
        name="libc6", version="2.39-0ubuntu8.6", source="glibc", depends="libgcc-s1",
        files=(*_libraries("ld-linux-aarch64.so.1", "libc.so.6", "libdl.so.2", "libm.so.6", "libpthread.so.0",
                           "librt.so.1"), "usr/lib/ld-linux-aarch64.so.1"),
        summary="GNU C Library: Shared libraries",
    ),
    Package(
        name="libgcc-s1", version="14.2.0-4ubuntu2~24.04", source="gcc-14", files=_libraries("libgcc_s.so.1"),
        depends="gcc-14-base (= 14.2.0-4ubuntu2~24.04), libc6 (>= 2.35)", summary="GCC support library",
    ),
    Package(
        name="libnccl2", version="2.28.3-1+cuda13.0", source="nccl", depends="libc6 (>= 2.17), libstdc++6",
        files=_libraries("libnccl.so.2", "libnccl.so.2.28.3"),
        summary="NVIDIA Collective Communication Library (NCCL) Runtime",
    ),
    Package(
        name="libstdc++6", version="14.2.0-4ubuntu2~24.04", source="gcc-14",
        files=_libraries("libstdc++.so.6", "libstdc++.so.6.0.33"),
        depends="gcc-14-base (= 14.2.0-4ubuntu2~24.04), libc6 (>= 2.38), libgcc-s1 (>= 4.2)",
        summary="GNU Standard C++ Library v3",
    ),
)  # fmt: skip


def fill(layer: LayerBuilder, parts: Mapping[str, bytes]) -> None:
    """Put layer 0 together; `parts` are the compiled files by SONAME, and `true`."""
    contents = {path: text.encode() for path, text in _TEXT.items()}
    contents["usr/bin/true"] = parts["true"]
    for name in sorted(parts):
        if ".so." in name:
            contents[f"{MULTIARCH}/{_LIBRARY_FILES.get(name, name)}"] = parts[name]
    for path in _EMPTY:
        layer.directory(path)
    layer.directory("root", mode=0o700)
    layer.directory("tmp", mode=0o1777)
    layer.directory("usr/lib", mtime=EPOCH + 3_600)
    layer.directory(MULTIARCH, mtime=EPOCH + 86_400)
    for path, target in _LINKS.items():
        layer.symlink(path, target)
    for path, data in contents.items():
        executable = path.startswith(("usr/bin/", f"{MULTIARCH}/ld-linux", "opt/nvidia/"))
        layer.file(path, data, mode=0o755 if executable else 0o644)
    layer.file("etc/shadow", "root:*:20000:0:99999:7:::\n", mode=0o640, gid=42)
    _dpkg(layer, contents)


def _dpkg(layer: LayerBuilder, contents: Mapping[str, bytes]) -> None:
    layer.file("var/lib/dpkg/status", "\n".join(_stanza(package) for package in PACKAGES))
    for package in PACKAGES:
        name = f"var/lib/dpkg/info/{package.name}{':arm64' if _multi_arch(package) else ''}"
        folders = {path[:at] for path in package.files for at, char in enumerate(path) if char == "/"}
        layer.file(f"{name}.list", "/.\n" + "".join(f"/{path}\n" for path in sorted({*folders, *package.files})))
        sums = (f"{_md5(contents[path])}  {path}\n" for path in sorted(package.files) if path in contents)
        layer.file(f"{name}.md5sums", "".join(sums))


def _md5(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def _multi_arch(package: Package) -> bool:
    return package.section == "libs"


def _stanza(package: Package) -> str:
    maintainer = "cudatools <cudatools@nvidia.com>" if package.name == "libnccl2" else (
        "Ubuntu Developers <ubuntu-devel-discuss@lists.ubuntu.com>"
    )  # fmt: skip
    fields = {
        "Package": package.name,
        "Status": "install ok installed",
        "Priority": "optional",
        "Section": package.section,
        "Installed-Size": "1024",
        "Maintainer": maintainer,
        "Architecture": "arm64",
        "Multi-Arch": "same" if _multi_arch(package) else "",
        "Source": package.source,
        "Version": package.version,
        "Depends": package.depends,
        "Description": f"{package.summary}\n This is a stand-in: right names and metadata, small files.",
    }
    return "".join(f"{name}: {value}\n" for name, value in fields.items() if value)

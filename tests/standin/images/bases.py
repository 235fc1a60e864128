"""The stand-ins of bases: the paths, packages and lines that the definitions look for, with texts of ours."""

from __future__ import annotations

import base64
import hashlib
from typing import TYPE_CHECKING

from tests.standin.images import sources
from tests.support.elf_builder import shared_object
from tests.support.made import files, library, write_image

if TYPE_CHECKING:
    from imgbuild.adapters.store import StagedStore
    from imgbuild.content.changeset import Change
    from imgbuild.model.oci import Descriptor

SITE = "opt/sglang/lib/python3.12/site-packages"
SGLANG = "sgl-workspace/sglang"
MULTIARCH = "usr/lib/aarch64-linux-gnu"
NCCL = f"{SITE}/nvidia/nccl/lib/libnccl.so.2"
LABELS = {
    "standin-dsv41": "e087e662ba1ac4ef7747537e2a9141085efd4561",
    "standin-aiden": "da64c5cbb8cf6bfd39be19da43573fdfd484c43a",
    "standin-vllm": "0123456789abcdef0123456789abcdef01234567",
}
"""Tag of a base and the commit that its label names, as that of a real one does."""

_AUTH = """import secrets


def decide(authorization_header, api_key, admin_api_key, expected_token):
    parts = authorization_header.split(" ", 1)
    def check(expected_token):
        if len(parts) != 2 or parts[0].lower() != "bearer":
            return False
        return secrets.compare_digest(parts[1], expected_token)

    return check(expected_token)
"""
_ENCODING = """IMAGE_PLACEHOLDER = "<image>"


def process(blocks):
    new_blocks = []
    for block in blocks:
        if block.get("type") == "text":
            text = block.get("text") or ""
            if IMAGE_PLACEHOLDER in text:
                raise ValueError(
                    f"Text block contains image placeholder '{IMAGE_PLACEHOLDER}': "
                    f"'{text[:100]}'. Images should be separate content blocks."
                )
            new_blocks.append(block)
    return new_blocks


def validate(msg):
    content = msg.get("content")
    if isinstance(content, str) and IMAGE_PLACEHOLDER in content:
        raise ValueError(
            f"Message content contains image special token '{IMAGE_PLACEHOLDER}'. "
            "Images should be provided as image content blocks."
        )
    reasoning_content = msg.get("reasoning_content")
    if isinstance(reasoning_content, str) and IMAGE_PLACEHOLDER in reasoning_content:
        raise ValueError(
            f"reasoning_content contains image special token '{IMAGE_PLACEHOLDER}'"
        )
"""
_MODELOPT = """class Config:
    def method(self, prefix):
        if True:
            # Fall back to MXFP4 for MTP MoE layers
            if self.is_fp4_experts:
                from sglang.srt.layers.quantization.fp8 import Fp8MoEMethod
                from sglang.srt.layers.quantization.other import Other

                return Other(Fp8MoEMethod(self), prefix=prefix)
"""
_DPKG = """Package: libnccl2
Status: install ok installed
Architecture: arm64
Version: 2.28.3-1+cuda13.0
"""


def layers() -> list[list[Change]]:
    """A system, Python packages, and the sources of SGLang."""
    return [_system(), _packages(), _sources()]


def write(
    store: StagedStore,
    tag: str,
    *,
    changed: list[list[Change]] | None = None,
    architecture: str = "arm64",
    labels: dict[str, str] | None = None,
) -> Descriptor:
    """A base in a store under its tag; `changed` are other layers, `labels` other ones."""
    settings = {
        "Env": ["PATH=/opt/sglang/bin:/usr/bin", "CUDA_HOME=/usr/local/cuda"],
        "Labels": {"ai.sglang.build.commit": LABELS[tag]} if labels is None else labels,
    }
    return write_image(store, layers() if changed is None else changed, tag, config=settings, architecture=architecture)


def _system() -> list[Change]:
    versions = tuple(f"GLIBC_2.{minor}" for minor in (17, 28, 34, 38, 39))
    libc = shared_object(soname="libc.so.6", versions_defined=versions)
    return files(
        {
            f"{MULTIARCH}/libc.so.6": libc,
            f"{MULTIARCH}/libnccl.so.2.28.3": library("2.28.3"),
            "etc/ld.so.conf": b"include /etc/ld.so.conf.d/*.conf\n",
            "etc/ld.so.conf.d/arm64.conf": b"/usr/lib/aarch64-linux-gnu\n",
            "var/lib/dpkg/status": _DPKG.encode(),
            "var/lib/dpkg/info/libnccl2:arm64.list": f"/.\n/{MULTIARCH}/libnccl.so.2.28.3\n".encode(),
        },
        links={"lib": "usr/lib", f"{MULTIARCH}/libnccl.so.2": "libnccl.so.2.28.3"},
    )


def _packages() -> list[Change]:
    torch = shared_object(
        soname="libtorch_cuda.so",
        needed=("libnccl.so.2", "libc.so.6"),
        runpath="$ORIGIN/../../nvidia/nccl/lib:$ORIGIN",
        imports=("ncclAllReduce",),
    )
    found = _distribution("nvidia_nccl_cu13", "2.30.7", {"nvidia/nccl/lib/libnccl.so.2": library("2.30.7")})
    requires = "Requires-Dist: nvidia-nccl-cu13==2.29.7\n"
    found |= _distribution("torch", "2.13.0+cu130", {"torch/lib/libtorch_cuda.so": torch}, requires)
    return files({f"{SITE}/{path}": data for path, data in found.items()})


def _distribution(name: str, version: str, contents: dict[str, bytes], headers: str = "") -> dict[str, bytes]:
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n{headers}".encode()
    found = {**contents, f"{info}/METADATA": metadata, f"{info}/INSTALLER": b"pip\n"}
    rows = "".join(f"{path},{_hash(data)},{len(data)}\n" for path, data in found.items())
    return {**found, f"{info}/RECORD": f"{rows}{info}/RECORD,,\n".encode()}


def _hash(data: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def _sources() -> list[Change]:
    python = "python/sglang"
    found = {path: sources.before(path) for path in sources.CHANGED}
    found |= {
        f"{python}/srt/utils/auth.py": _AUTH,
        f"{python}/srt/entrypoints/openai/encoding_dsv41.py": _ENCODING,
        f"{python}/kernels/ops/attention/flash_mla_sm120.py": "KERNEL = 'sglang'\n",
        f"{python}/srt/layers/quantization/modelopt_quant.py": _MODELOPT,
    }
    stale = f"{python}/srt/utils/__pycache__/auth.cpython-312.pyc"
    contents = {f"{SGLANG}/{path}": text.encode() for path, text in found.items()}
    return files({**contents, f"{SGLANG}/{stale}": b"stale"})

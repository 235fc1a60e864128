"""The AArch64 files of the stand-in that no wheel has: compiled from `native/*.c` with the pinned zig."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from imgbuild import jsontext
from imgbuild.adapters import toolchain
from imgbuild.digest import Digest
from imgbuild.steps.sources import fetch_wheel

if TYPE_CHECKING:
    from imgbuild.adapters.fetch import WheelPin
    from imgbuild.steps.context import Context

FOLDER = Path(__file__).resolve().parent / "native"
TORCH_RPATH = ":".join(
    (
        *(f"$ORIGIN/../../nvidia/{name}/lib" for name in ("cudnn", "nvshmem", "nccl", "cusparselt", "cu13")),
        "$ORIGIN",
    )
)
"""What libtorch_cuda.so of torch 2.13.0 for AArch64 has, as DT_RPATH and not DT_RUNPATH (read from the wheel)."""
DEEP_EP_RUNPATH = "$ORIGIN/../nvidia/nccl/lib"
_FREESTANDING = ("-nostdlib", "-ffreestanding", "-fno-builtin")
_CONSUMER = ("-nostdlib", "-fvisibility=hidden")
_GLIBC = "2.39"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One file to compile.

    Args:
        source: its C file in `native/`; with `versioned`, the version script has the same name and ends in `.map`.
        headers: what the C file includes.
        soname: DT_SONAME; None for what is opened by its path.
        needs: SONAMEs of other parts, in the order of DT_NEEDED.
        path_flags: DT_RPATH or DT_RUNPATH.
    """

    source: str
    headers: tuple[str, ...] = ()
    soname: str | None = None
    versioned: bool = False
    program: bool = False
    needs: tuple[str, ...] = ()
    path_flags: tuple[str, ...] = ()


_RPATH = ("-Wl,--disable-new-dtags", f"-Wl,-rpath,{TORCH_RPATH}")
SYSTEM: dict[str, Part] = {
    "libc.so.6": Part(source="libc.c", headers=("glibc.h",), soname="libc.so.6", versioned=True),
    "libm.so.6": Part(source="libm.c", headers=("glibc.h",), soname="libm.so.6", versioned=True),
    "libdl.so.2": Part(source="libdl.c", headers=("glibc.h",), soname="libdl.so.2", versioned=True),
    "libpthread.so.0": Part(source="libpthread.c", headers=("glibc.h",), soname="libpthread.so.0", versioned=True),
    "librt.so.1": Part(source="librt.c", headers=("glibc.h",), soname="librt.so.1", versioned=True),
    "ld-linux-aarch64.so.1": Part(
        source="ld-linux.c", headers=("glibc.h",), soname="ld-linux-aarch64.so.1", versioned=True
    ),
    "libgcc_s.so.1": Part(source="libgcc_s.c", headers=("glibc.h",), soname="libgcc_s.so.1", versioned=True),
    "libstdc++.so.6": Part(source="libstdcxx.c", headers=("glibc.h",), soname="libstdc++.so.6", versioned=True),
    "libnccl.so.2": Part(source="system_nccl.c", headers=("nccl_2_28_3.h",), soname="libnccl.so.2"),
    "true": Part(source="true.c", program=True),
}
CONSUMERS: dict[str, Part] = {
    "libtorch_cuda.so": Part(
        source="torch_cuda.c",
        headers=("nccl_torch.h",),
        soname="libtorch_cuda.so",
        needs=("libnccl.so.2", "libdl.so.2", "librt.so.1", "libpthread.so.0", "libstdc++.so.6", "libm.so.6",
               "libgcc_s.so.1", "libc.so.6", "ld-linux-aarch64.so.1"),
        path_flags=_RPATH,
    ),
    "libtorch_python.so": Part(
        source="torch_python.c",
        soname="libtorch_python.so",
        needs=("libtorch_cuda.so", "libnccl.so.2", "libstdc++.so.6", "libgcc_s.so.1", "libpthread.so.0", "libc.so.6"),
        path_flags=_RPATH,
    ),
    "_C.so": Part(
        source="torch_c.c",
        needs=("libtorch_python.so", "libc.so.6"),
        path_flags=(_RPATH[0], f"{_RPATH[1]}:$ORIGIN/lib"),
    ),
    "libdeep_ep.so": Part(
        source="deep_ep.c",
        soname="libdeep_ep.so",
        needs=("libnccl.so.2", "libc.so.6"),
        path_flags=("-Wl,--enable-new-dtags", f"-Wl,-rpath,{DEEP_EP_RUNPATH}"),
    ),
}  # fmt: skip


def compile_parts(context: Context, zig_pin: WheelPin) -> dict[str, bytes]:
    """All parts by name; zig is fetched and unpacked only where a part is not in the cache.

    Raises what `fetch_wheel` and `toolchain.compile` raise.
    """
    compiler = _Compiler(context, zig_pin)
    built: dict[str, bytes] = {}
    for name, part in {**SYSTEM, **CONSUMERS}.items():
        built[name] = compiler.compiled(job_of(name, part, built))
    return built


def job_of(name: str, part: Part, built: dict[str, bytes]) -> toolchain.CompileJob:
    """The compile job of one part; `built` has what it needs."""
    script = part.source.removesuffix(".c") + ".map"
    flags = _CONSUMER if part.needs else _FREESTANDING
    return toolchain.CompileJob(
        sources=tuple((file, _read(file)) for file in (part.source, *part.headers)),
        compile=(part.source,),
        language="c17",
        glibc=_GLIBC,
        output=name.replace("++", "xx"),
        kind="executable" if part.program else "shared",
        soname=part.soname,
        flags=("-Wl,--no-as-needed", *flags, *part.path_flags),
        link_inputs=(
            *(((script, _read(script)),) if part.versioned else ()),
            *((need, built[need]) for need in part.needs),
        ),
    )


class _Compiler:
    def __init__(self, context: Context, zig_pin: WheelPin) -> None:
        self._context = context
        self._pin = zig_pin

    @cached_property
    def _zig(self) -> Path:
        wheel = fetch_wheel(self._context, self._pin)
        # The folder that the step `compile` uses, so that zig is unpacked once.
        folder = self._context.cache.folder("tools")
        return toolchain.unpack_zig(wheel, folder, progress=self._context.progress)

    def compiled(self, job: toolchain.CompileJob) -> bytes:
        cache = self._context.cache
        key = _key(job, f"{self._pin.name}=={self._pin.version}")
        known = cache.result(key)
        data = None if known is None else cache.get(Digest.parse(known.decode()))
        if data is None:
            zig = self._zig
            with self._context.progress.task(f"compiling {job.output}", None, unit="steps"):
                data = toolchain.compile(job, zig=zig, work=cache.folder("spool"), cache=cache.folder("zig"))
            cache.put([data])
            cache.keep_result(key, str(Digest.of(data)).encode())
        return data


def _key(job: toolchain.CompileJob, tool: str) -> Digest:
    files = {name: str(Digest.of(data)) for name, data in (*job.sources, *job.link_inputs)}
    options = [tool, job.language, job.glibc, job.target_arch, job.kind, job.soname, list(job.compile), list(job.flags)]
    return Digest.of(jsontext.dumps({"standin": options, "files": files}))


def _read(name: str) -> bytes:
    return (FOLDER / name).read_bytes()

"""Limits on everything that comes from outside, each with its unit and the reason for its value."""

from __future__ import annotations

from dataclasses import dataclass

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds for hostile or broken input; exceeding one is an `ArchiveError` or `DocumentError` that names it."""

    manifest_bytes: int = 4 * MIB
    """bytes; what registries must accept at least (distribution-spec, Pushing Manifests)."""
    config_bytes: int = 8 * MIB
    """bytes; the real bases have configs of 20 to 60 kB."""
    document_bytes: int = 64 * MIB
    """bytes of one lock, definition or other JSON/TOML document of ours."""
    document_depth: int = 64
    """levels of nesting in JSON."""
    layers: int = 127
    """layers of a result; overlayfs mounts of common engines end there (docker/docker#26380)."""
    layer_entries: int = 5_000_000
    """entries of one layer."""
    layer_bytes: int = 256 * GIB
    """bytes of one layer, uncompressed."""
    compression_ratio: int = 2_000
    """bytes out per byte in, checked above `ratio_floor`; deflate cannot exceed 1,032, zstd can."""
    ratio_floor: int = 64 * MIB
    """bytes of output below which the ratio is not looked at."""
    zstd_window_log: int = 27
    """log2 of bytes; 128 MiB, the default of `zstd -d` (RFC 8878 recommends at least 8 MiB)."""
    path_bytes: int = 4_096
    """bytes of one path or link target; PATH_MAX of Linux."""
    path_depth: int = 256
    """components of one path."""
    pax_bytes: int = 1 * MIB
    """bytes of one PAX header or GNU long name."""
    link_hops: int = 40
    """symbolic links followed for one path; MAXSYMLINKS of Linux."""
    captured_file_bytes: int = 32 * MIB
    """bytes of one small file (RECORD, dpkg status, ld.so.conf) kept for later steps."""
    text_bytes: int = 64 * MIB
    """bytes of one file that is patched or edited in memory."""
    source_bytes: int = 8 * GIB
    """bytes of a source that is one file; the largest library of a CUDA image has 2 GiB (small code model)."""
    wheel_entries: int = 200_000
    """members of one wheel."""
    git_blobs: int = 500_000
    """files of one git tree."""
    elf_symbols: int = 1_000_000
    """symbols of one ELF file."""


DEFAULT_LIMITS = Limits()

CHUNK_BYTES = 512 * KIB
"""bytes per read in streams; pieces of this size stay in the processor's cache while they are hashed."""

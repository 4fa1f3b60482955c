"""Fixtures for every test: one Spark session for all, a Postgres server, and the hypothesis profiles."""

from __future__ import annotations

import functools
import gc
import os
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any, Final

import failures_at_once
import files_read
import longest_first
import pytest
from commands_built_once import build_commands_once
from databases_copied import copy_databases
from hypothesis import Phase, settings
from hypothesis.internal.conjecture import providers

# Where an environment forbids it (images are built so), each of hundreds of processes would compile every module anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# Make passes its options and its depth on by these: a test's own make would follow those of `make test`.
for _name in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL"):
    os.environ.pop(_name, None)
sys.dont_write_bytecode = False

# The suite does not shrink what fails: a slow machine would spend the test's whole time on it, and not say what failed.
phases = (Phase.explicit, Phase.reuse, Phase.generate)
settings.register_profile(
    "default", max_examples=50, deadline=None, derandomize=True, print_blob=True, phases=phases, database=None
)
settings.register_profile("soak", max_examples=5_000, deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
if settings.get_current_profile_name() == "default":
    # Hypothesis also tries constants of all modules that the process has loaded. With these, the examples would depend
    # on the tests that ran before in the same process.
    providers._get_local_constants = providers.Constants


_OWN_DIRECTORY: Final = pytest.StashKey[str]()


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    build_commands_once()
    copy_databases()
    if files_read.WANTED:
        config.pluginmanager.register(files_read.FilesRead(Path(files_read.WANTED)))
    if not hasattr(config, "workerinput") and config.option.basetemp is None:
        # Postgres runs as another user when the tests are root's, and must reach its files. pytest closes the directory
        # that all its runs share to others at the start of each run: so each run has one of its own.
        config.stash[_OWN_DIRECTORY] = config.option.basetemp = tempfile.mkdtemp(prefix="replicator-tests-")
    if failures_at_once.is_wanted():
        config.pluginmanager.register(failures_at_once.FailuresAtOnce(config))
        if not hasattr(config, "workerinput"):
            # It may be ignored from the start; then the limit's interrupt ended the peers, and the tests ran on.
            signal.signal(signal.SIGINT, signal.default_int_handler)
    if sys.version_info[:3] == (3, 13, 0):
        # There asyncio's server fails where a connection of it is collected after its end; mended in 3.13.1.
        config.addinivalue_line(
            "filterwarnings",
            "ignore:Exception ignored in. <function _SelectorTransport.__del__:pytest.PytestUnraisableExceptionWarning",
        )


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    own = session.config.stash.get(_OWN_DIRECTORY, None)
    if own is not None and exitstatus == pytest.ExitCode.OK:  # what failed is there to be looked at
        shutil.rmtree(own, ignore_errors=True)


SPARK: Final = "spark"
"""The group of the files that share a Spark session, which takes 10 s to start and minutes to warm up."""


def group_of(nodeid: str) -> str:
    """Return the group of a test. Tests of a file, and all files with Spark, run in one process, one after the
    other."""
    file = nodeid.partition("::")[0]
    return SPARK if _uses_spark(file) else file


@functools.cache
def _uses_spark(file: str) -> bool:
    return re.search(r"\bspark: Any\b", (Path(__file__).parents[1] / file).read_text()) is not None


def pytest_collection_finish() -> None:
    """Keep imported and collected objects out of the garbage collector's searches."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()) and group_of(item.nodeid) != SPARK:
            raise pytest.UsageError(f"{item.nodeid}: write 'spark: Any', or the session is not shared")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Shares out whole groups. xdist's own ``loadgroup`` does nothing with pytest 9.2, whose node ids cannot be written
    to: each test went to whichever process was free, and both had Spark, Postgres and every module's fixtures."""
    from xdist.scheduler import LoadScopeScheduling

    config.pluginmanager.register(longest_first.GroupsTimed(group_of, longest_first.STORE))

    class Groups(LoadScopeScheduling):  # type: ignore[misc]
        def __init__(self, config: pytest.Config, log: Any) -> None:
            super().__init__(config, log)
            self.workqueue = longest_first.LongestFirst(longest_first.load(longest_first.STORE))

        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    return Groups(config, log)


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """Yield a local session with the ``replicator`` source; the first test that asks for it starts it."""
    from replicator.pipeline.spark.session import spark_session

    session = spark_session(app_name="tests")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def executor_archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the zip archive that Spark's executors need, as ``replicator pipeline package`` writes it.

    It is a zip file because Spark unpacks that without the program ``tar``.
    """
    from replicator.pipeline.spark.shipping import write_archive

    return write_archive(tmp_path_factory.mktemp("shipped") / "env.zip").path


_names = count()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """Yield the URL of a server's maintenance database, for SQLAlchemy and libpq alike."""
    from postgres_support import served_postgres

    with served_postgres() as url:
        yield url


@pytest.fixture
def postgres_url(postgres_server: str) -> Iterator[str]:
    """Yield the URL of an empty database of the test's own."""
    import psycopg
    from sqlalchemy import make_url

    name = f"test_{os.getpid()}_{next(_names)}"
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
        yield make_url(postgres_server).set(database=name).render_as_string(hide_password=False)
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def data_dir() -> Iterator[Path]:
    """Yield a directory for a worker's data, an embedded server included."""
    from postgres_support import traversable_directory

    with traversable_directory() as directory:
        yield directory / "data"

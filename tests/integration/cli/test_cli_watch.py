"""``--watch`` of every command that has it, against a real worker; on a terminal and elsewhere."""

from __future__ import annotations

import io
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
import yaml
from cli_support import VERBS, arguments, ended, options
from served_worker import ServedWorker, served_worker

from replicator.security.access import Access, use_in_process

TOPIC: Final = "persistent/public/default/there"
WATCHED: Final = sorted(verb for verb in VERBS if "--watch" in options(verb))
NOT_OF_A_WORKER: Final = {"drills list": "it is of a database", "bridge status": "no cluster is beside brokers"}


MARKS: Final = {"json": "\n", "yaml": "---\n", "table": "+00:00\n"}
"""Text that each shown state contains once, by format."""


class Interrupting(io.StringIO):
    """Standard output of a command that gets SIGINT when it has shown so many states."""

    def __init__(self, output: str, states: int, then: Callable[[], object] = lambda: None) -> None:
        super().__init__()
        self._mark, self._states, self._then = MARKS[output], states, then

    @property
    def states(self) -> int:
        return self.getvalue().count(self._mark)

    def flush(self) -> None:
        self._then()
        if self.states == self._states:
            signal.raise_signal(signal.SIGINT)


@pytest.fixture(scope="module", autouse=True)
def interruptible() -> Iterator[None]:
    """Also where the tests run in a shell's background, which has its programs ignore SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="module")
def worker() -> Iterator[ServedWorker]:
    with served_worker(cluster="solo") as served:
        assert served.ask("PUT", TOPIC).status == 204
        assert served.ask("PUT", f"{TOPIC}/subscription/s").status == 204
        yield served
    use_in_process(Access())


@pytest.fixture
def file(worker: ServedWorker, tmp_path: Path) -> Path:
    return topology(tmp_path, worker.port)


def topology(path: Path, port: int) -> Path:
    file = path / "topology.yaml"
    file.write_text(f"clusters: {{solo: {{address: '127.0.0.1:{port}', data: {path / 'solo'}}}}}\n")
    return file


def test_what_shows_state_is_watched() -> None:
    assert {"status", "failover-status", "links list", "store status", "topics stats", "subscriptions list"} <= {
        *WATCHED
    }


@pytest.mark.parametrize("verb", [verb for verb in WATCHED if verb not in NOT_OF_A_WORKER])
def test_states_follow_each_other_until_ctrl_c(file: Path, verb: str) -> None:
    watched = (*arguments(verb, file), "--watch", "--interval", "0.1", "--output")
    as_json = ended(*watched, "json", stdout=Interrupting("json", 3))
    assert (as_json.status, as_json.stderr) == (0, "")
    assert len([json.loads(line) for line in as_json.stdout.splitlines()]) == 3
    as_yaml = ended(*watched, "yaml", stdout=Interrupting("yaml", 2))
    assert as_yaml.status == 0
    first, second = yaml.safe_load_all(as_yaml.stdout)
    assert type(first) is type(second) is type(json.loads(as_json.stdout.splitlines()[0]))
    as_table = ended(*watched, "table", stdout=Interrupting("table", 2))
    assert as_table.status == 0
    assert as_table.stdout.count("+00:00\n") == 2


def test_what_changes_is_seen_and_a_worker_that_is_away_ends_nothing(worker: ServedWorker, file: Path) -> None:
    """The second state has a new topic; then the worker is looked for elsewhere until that was said, and is back."""

    def change() -> None:
        if out.states == 1:
            assert worker.ask("PUT", "persistent/public/default/new").status == 204
        elif out.states == 2:
            topology(file.parent, 9)

    class Complaints(io.StringIO):
        def write(self, text: str) -> int:
            topology(file.parent, worker.port)
            return super().write(text)

    out = Interrupting("json", 3, change)
    given = ("topics", "list", "-f", str(file), "-c", "solo", "--watch", "--interval", "0.1", "-o", "json")
    done = ended(*given, stdout=out, stderr=Complaints())
    assert done.status == 0
    states = [json.loads(line) for line in done.stdout.splitlines()]
    assert [any(name.endswith("/new") for name in names) for names in states] == [False, True, True]
    assert "connection refused" in done.stderr
    assert worker.ask("DELETE", "persistent/public/default/new").status == 204


def test_what_is_no_passing_trouble_ends_it(file: Path) -> None:
    done = ended("topics", "stats", "none", "-f", str(file), "-c", "solo", "--watch")
    assert done.status == 2
    assert done.stderr.startswith("error: ")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_terminal_is_left_as_it_was_with_the_last_state_on_it(file: Path, number: signal.Signals) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "replicator.cli", "status", "-f", str(file), "--watch", "--interval", "0.2"]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "40"}
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        seen = b""
        while seen.count(b"Ctrl-C ends it") < 2:
            seen += os.read(ours, 65536)
        process.send_signal(number)
        while chunk := _read(ours):
            seen += chunk
        assert process.wait(60) == 0
    os.close(ours)
    assert b"Traceback" not in seen
    other_screen, _, after = seen.rpartition(b"\x1b[?1049l")
    assert b"\x1b[?1049h" in other_screen
    assert b"Workers" in after


def _read(terminal: int) -> bytes:
    """Return the output at a terminal; nothing when the other side is closed."""
    try:
        return os.read(terminal, 65536)
    except OSError:
        return b""

"""Runs docs/tutorial.md as a program: its files and commands, in their order, in one shell."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "tutorial.md"
COMMANDS = "console"
PROMISED = [
    "orders 1 to 1000 are confirmed",
    "billed 540 orders",
    "orders 1001 to 1200 are confirmed",
    "billed 660 orders",
    "1200",
    "1200",
]
"""Output of the programs and counts, as the page promises it."""
_STEP = re.compile(r"^## (\d+)\. [^\n]*$|(?:Save this as `([^`]+)`(?:(?!^```).)*?)?^```(\w+)\n(.*?)^```", re.S | re.M)
NOTHING_WOULD_BE_LOST = "replicator failover -f topology.yaml --from us-east --to eu-west --dry-run --output json"
NOTHING = (
    "import json, sys; report = json.load(sys.stdin); "
    'sys.exit(report["not_received"] != 0 or report["may_be_repeated"] != 0)'
)
_END = "=== ended with"


@dataclass(frozen=True, slots=True)
class Step:
    """A file to be saved, or lines of commands."""

    number: int
    kind: str
    text: str
    file: str | None


def steps(page: str) -> list[Step]:
    found, number = [], 0
    for heading, file, kind, text in _STEP.findall(page):
        number = int(heading) if heading else number
        if kind:
            assert kind == COMMANDS or file, f"step {number} shows a file without a name"
            found.append(Step(number, kind, text, None if kind == COMMANDS else file))
    return found


class Shell:
    """Bash that runs one line after the other; each must end with 0."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self._bash = subprocess.Popen(
            ["bash", "--norc"],
            cwd=folder,
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, line: str) -> str:
        """Run a line and return its output; fail if its exit status is not 0."""
        assert self._bash.stdin is not None
        assert self._bash.stdout is not None
        self._bash.stdin.write(f'{line}\necho "{_END} $?"\n')
        self._bash.stdin.flush()
        printed = []
        for output in self._bash.stdout:
            if output.startswith(_END):
                status = int(output.removeprefix(_END))
                assert status == 0, f"{line}: status {status}\n{''.join(printed)[-4000:]}"
                return "".join(printed)
            printed.append(output)
        raise AssertionError(f"{line}: the shell ended\n{''.join(printed)[-4000:]}")

    def end(self) -> None:
        """End the shell and its children, first politely."""
        with suppress(ProcessLookupError):
            os.killpg(self._bash.pid, signal.SIGTERM)
        assert self._bash.stdin is not None
        self._bash.stdin.close()
        try:
            self._bash.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(self._bash.pid, signal.SIGKILL)
            self._bash.wait()


@contextmanager
def opened(folder: Path, environment: dict[str, str]) -> Iterator[Shell]:
    shell = Shell(folder, environment)
    try:
        yield shell
    finally:
        shell.end()


def figures(printed: list[tuple[str, str]]) -> list[str]:
    """Return the output of the tutorial's programs and counts."""
    return [text.strip() for line, text in printed if line.startswith(("python", "wc", "sort"))]


def followed(shell: Shell, ports: tuple[str, str], tutorial: list[Step]) -> list[tuple[str, str]]:
    """Run the tutorial's commands, at other ports; return each command with its output.

    A person reads for seconds before the region is killed. Here the run waits until the other region has heard of
    everything.
    """
    printed = []

    def here(text: str) -> str:
        return text.replace("7101", ports[0]).replace("7102", ports[1])

    for step in tutorial:
        if step.file is not None:
            shell.run(f"cat > {step.file} <<'END OF FILE'\n{here(step.text)}END OF FILE")
            continue
        for line in step.text.splitlines():
            if line.startswith("kill -9"):
                shell.run(f"until {NOTHING_WOULD_BE_LOST} | python -c '{NOTHING}'; do sleep 0.5; done")
            printed.append((line, shell.run(here(line))))
    return printed

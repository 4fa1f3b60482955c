"""All verbs of the command line, taken from the program, and arguments that each of them takes."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import typer

from replicator.cli.main import app

OFFLINE: Final = {
    "init": "it writes a file",
    "worker": "it is the worker, and asks others with its own token",
    "up": "the same",
    "health": "it asks what everybody may ask, where the worker listens",
    "doctor": "it looks at this machine, and asks what everybody may ask; a worker that refuses is a finding",
    "drill": "its own clusters are its own; it asks those of others by the verbs below",
    "db upgrade": "it asks a database, by the URL in the topology",
    "db downgrade": "the same; a worker that refuses its status runs, and that is what is asked",
    "pipeline package": "it writes a file",
    "tokens create-secret-key": "it writes a file",
    "tokens create-key-pair": "it writes files",
    "tokens create": "who has the key is who decides",
    "tokens show": "it reads what it is given",
    "backup list": "it reads and writes where backups are kept, as whoever may do that",
    "backup verify": "the same",
    "backup prune": "the same",
    "backup restore": "the same, and a directory; what it asks workers, `backup reclaim` asks too",
    "store check": "it reads a directory, of a worker that does not run",
    "store compact": "it changes a directory, of a worker that does not run",
    "drills list": "it reads reports that are files, or a database by its URL",
    "drills show": "the same",
    "drills compare": "the same",
}
BY_ROUTES: Final = {
    "verify": "Spark asks the routes that test_security_walk closes",
    "report": "the same",
    "backfill": "the same",
    "pipeline run": "the same",
    "backup reclaim": "the same routes are asked, and a directory is changed by who may",
    "store repair": "the same",
}
SHOWS_WHO_DOES_NOT_ANSWER: Final = {"plan"}
GIVEN: Final[dict[str, str]] = {
    "topic": "public/default/there",
    "target": "public/default",  # of a namespace
    "namespace": "public/default",
    "tenant": "public",
    "subscription": "s",
    "source": "solo",
    "cluster": "solo",
    "destination": "other",
    "to": "other",
    "position": "1:1",
    "partitions": "4",
    "switch": "on",
    "strategy": "FULL",
    "policy": "retention",
    "limit": "10",
    "messages": "1",
    "older_than": "1h",
    "clusters": "solo",
    "at": "memory://backups",
    "address": "127.0.0.1:9",
    "archive": "package.zip",
    "first": "latest",
    "keep": "1",
    "private_key": "private.pem",
    "public_key": "public.pem",
    "revision": "0001",
    "run": "r1",
    "second": "latest",
    "secret_key": "secret.key",
    "subject": "app",
    "wanted": "latest",
    "worker": "http://127.0.0.1:9",
}
MORE: Final[dict[str, tuple[str, ...]]] = {
    "failback": ("--to", "solo"),
    "failover": ("--to", "other"),
    "links resolve": ("--policy", "skip"),
    "promote": ("--to", "other"),
    "roundtrip": ("--timeout", "1"),
    "subscriptions seek": ("--to", "earliest"),
    "topics set-retention": ("--age", "1h"),
    "namespaces set-retention": ("--age", "1h"),
    "topics set-backlog-quota": ("--size", "1GB"),
    "namespaces set-backlog-quota": ("--size", "1GB"),
}


def verbs(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    if hasattr(command, "commands"):
        for name, inner in command.commands.items():
            yield from verbs(inner, (*path, name))
    else:
        yield " ".join(path), command


PROGRAM: Final = typer.main.get_command(app)
VERBS: Final = dict(verbs(PROGRAM))
ASKING: Final = sorted(VERBS.keys() - OFFLINE.keys() - BY_ROUTES.keys())


def options(verb: str) -> dict[str, Any]:
    """Return the parameters of a verb, by their names on the command line."""
    return {name: each for each in VERBS[verb].params for name in each.opts}


def arguments(verb: str, file: Path, *, cluster: str = "solo") -> list[str]:
    """A verb with what it needs, of a topology; ``cluster`` is what is asked, or where a link begins."""
    given: list[str] = []
    names = {parameter.name for parameter in VERBS[verb].params}
    if "file" in names:
        given += ["--file", str(file)]
        if "cluster" in names:
            given += ["--cluster", cluster]
    elif "--topology" in options(verb):
        given += ["--topology", str(file)]
    for parameter in VERBS[verb].params:
        name = parameter.opts[0]
        if not parameter.required or name in MORE.get(verb, ()) or name in given:
            continue
        value = str(file) if name == "--file" else cluster if name == "--from" else GIVEN[parameter.name]
        if parameter.name == "target" and verb.startswith("topics "):
            value = GIVEN["topic"]
        given += [value] if parameter.param_type_name == "argument" else [name, value]
    return [*verb.split(), *given, *MORE.get(verb, ())]


@dataclass(frozen=True, slots=True)
class Ended:
    """End of a command: its status and its output."""

    status: int
    stdout: str
    stderr: str


def ended(*given: str, stdout: io.StringIO | None = None, stderr: io.StringIO | None = None) -> Ended:
    """Run a command in this process; the program is made once, not once a command."""
    stdout, stderr = stdout or io.StringIO(), stderr or io.StringIO()
    with redirect_stdout(stdout), redirect_stderr(stderr):
        try:
            PROGRAM.main(list(given), prog_name="replicator")
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
    return Ended(status, stdout.getvalue(), stderr.getvalue())

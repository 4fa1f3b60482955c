"""docs/cli.md: every command of the program with its arguments and options, from what `--help` says."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Any, Final

from reference_fields import plain
from typer.main import get_command

from replicator.cli.main import app

PAGE: Final = "cli.md"
EVERYWHERE: Final = frozenset({"--output", "--watch", "--interval", "--help"})
"""Described once, at the top."""
_HEAD: Final = """# The command line

This page is made from the program by `make reference`; `replicator COMMAND --help` says the same.

## What holds for every command

**Formats.** `--output table` (the default) is for people; `--output json` and `yaml` (`-o`) have the same values
for programs; [reference/json.md](reference/json.md) has every field, and their names are stable. Standard output has
the result alone: progress, questions, warnings and errors go to standard error. A command that did something and has
nothing to show says `{"done": true}`.

**Watching.** Commands that show state have `--watch` (`-w`) and `--interval SECONDS` (2). At a terminal the table is
shown in place; elsewhere the states follow each other: a table under a line with the time, JSON a line each, YAML as
documents. Ctrl-C and SIGTERM end it with exit status 0. A worker that is away for a while is said and ends nothing;
other errors end it.

**Errors** are one line on standard error, `error: WHAT; WHAT TO DO`. A topology file with several problems has a line
for each.

| exit status | meaning |
| --- | --- |
| 0 | done; checks found nothing |
| 1 | a check failed, or what was looked for is not there |
| 2 | wrong usage, a wrong file, or a worker refuses |
| 3 | a worker, a database or a service is away |
| 4 | of `backup`: it is as good as the store was, which had damaged blocks |
| 70 | of `worker`: its event loop stood still, and it ended itself |
| 130 | stopped by Ctrl-C |

**Completion.** `replicator --install-completion` writes it for the shell that it is called from (bash, zsh, fish);
`--show-completion` prints it, for those who manage their files themselves. Open a new shell after that. Names of
clusters and links are completed from the topology that stands before them (`-f FILE`). Names of namespaces, topics and
subscriptions are those of the worker that the command would ask (`--url`, or `-f` and `-c`, before them); one that does
not answer within a second offers none.

**Who asks.** `replicator --token-file FILE COMMAND …`; without it `REPLICATOR_TOKEN_FILE`, `REPLICATOR_TOKEN` or the
profile count ([security.md](security.md)).

## Commands
"""


def page() -> str:
    """Return the page."""
    return _HEAD + "".join(_sections(get_command(app), "replicator"))


def _sections(command: Any, path: str) -> Iterator[str]:
    if hasattr(command, "commands"):
        for name, inner in sorted(command.commands.items()):
            yield from _sections(inner, f"{path} {name}")
        return
    yield f"\n### {path}\n\n{' '.join(plain(command.help or '').split())}\n"
    own = [each for each in command.params if not EVERYWHERE & set(each.opts)]
    if any("--watch" in each.opts for each in command.params):
        yield "\nIt can be watched (`--watch`).\n"
    if own:
        yield "\n| argument or option | meaning |\n| --- | --- |\n"
        yield from map(_row, own)


def _row(parameter: Any) -> str:
    metavar = (parameter.metavar or "").replace("|", "\\|")
    if parameter.param_type_name == "argument":
        name = f"`{metavar or parameter.name.upper()}`"
    else:
        names = ", ".join(f"`{each}`" for each in (*parameter.opts, *parameter.secondary_opts))
        name = f"{names} `{metavar}`" if metavar else names
    meaning = " ".join(plain(parameter.help or "").split())
    default = parameter.default.value if isinstance(parameter.default, Enum) else parameter.default
    if parameter.required:
        meaning = f"{meaning} Required.".strip()
    elif isinstance(default, str | int | float) and not isinstance(default, bool) and default != "":
        meaning = f"{meaning} Default: `{default}`.".strip()
    return f"| {name} | {meaning} |\n"

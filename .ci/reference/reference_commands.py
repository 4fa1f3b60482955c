"""docs/cli.md: every command of the program with its arguments and options, from what `--help` says.

An argument or an option that several commands have, with the same words, is described once, at the top; the commands
name it. Commands that differ only in their group (`topics`, `namespaces`) have one section.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from enum import Enum
from typing import Any, Final

from reference_fields import plain
from typer.main import get_command

from replicator.cli.main import app

PAGE: Final = "cli.md"
EVERYWHERE: Final = frozenset({"--output", "--interval", "--help"})
"""Described once, at the top."""
WORKER: Final = frozenset({"--url", "--file", "--cluster"})
"""Options of commands that ask one worker: the top says which commands those are."""
COMMON_MIN: Final = 2
"""Commands that have a parameter in the same words, from which on it is described at the top."""
_HEAD: Final = """# The command line

<!-- Made by `make reference` from the program. Do not edit it. -->

Every command, with its arguments and options; `replicator COMMAND --help` says the same.

## What holds for every command

**Formats.** `--output table` (the default) is for people; `--output json` and `yaml` (`-o`) have the same values
for programs, under [stable names](reference/json.md). Standard output has the result alone: progress, questions,
warnings and errors go to standard error. A command that has nothing to show says `{"done": true}`.

**Watching.** Commands that show state have `--watch` (`-w`) and `--interval SECONDS` (2). At a terminal the table is
shown in place; elsewhere the states follow each other: a table under a line with the time, JSON a line each, YAML as
documents. Ctrl-C and SIGTERM end it with exit status 0. A worker that is away for a while is said and ends nothing;
other errors end it.

**Errors** are one line on standard error, `error: WHAT; WHAT TO DO`. A topology file with several problems has a line
for each. The exit statuses are 0 done, checks found nothing; 1 a check failed, or what was looked for is not there;
2 wrong usage, a wrong file, or a worker refuses; 3 a worker, a database or a service is away; 4 of `backup`: it is as
good as the store was, which had damaged blocks; 70 of `worker`: its event loop stood still; 130 stopped by Ctrl-C.

**Completion.** `replicator --install-completion` writes it for your shell (bash, zsh, fish); `--show-completion`
prints it. Names of clusters and links come from the topology that stands before them (`-f FILE`), names of namespaces,
topics and subscriptions from the worker that the command would ask; one that does not answer within a second offers
none.

**Who asks.** `replicator --token-file FILE COMMAND …`; without it `REPLICATOR_TOKEN_FILE`, `REPLICATOR_TOKEN` or the
profile count ([security.md](security.md)).

**Which worker.** The commands of `tenants`, `namespaces`, `topics` and `subscriptions` ask one worker: `--url URL`,
such as `http://HOST:PORT`, or `--file FILE` (`-f`) with `--cluster NAME` (`-c`).

## Arguments and options of several commands

A command names those that it takes, and lists its others. What is marked by ! is required, and so is an argument that
is not here, unless it stands in brackets.

"""


def page() -> str:
    """Return the page."""
    commands = dict(_commands(get_command(app), ""))
    uses = Counter(_item(each) for command in commands.values() for each in _own(command))
    names: Counter[str] = Counter()
    common: dict[str, str] = {}
    for command in commands.values():
        for each in _own(command):
            label, item = _label(each), _item(each)
            if COMMON_MIN <= uses[item] > names[label] and not _says_itself(each):
                names[label], common[label] = uses[item], item
    same: dict[tuple[str, str], list[str]] = {}
    for verb, command in commands.items():
        group, _, name = verb.rpartition(" ")
        same.setdefault((name, _section(command, common)), []).append(group)
    sections = "".join(f"\n### {_verb(groups, name)}\n{text}" for (name, text), groups in same.items())
    return f"{_HEAD}{''.join(sorted(common.values()))}\n## Commands\n{sections}"


def _verb(groups: list[str], name: str) -> str:
    return f"{'|'.join(groups)} {name}".strip()


def _commands(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield every command by its verb."""
    if hasattr(command, "commands"):
        for name, inner in sorted(command.commands.items()):
            yield from _commands(inner, f"{path} {name}".strip())
    else:
        yield path, command


def _own(command: Any) -> list[Any]:
    """Return the parameters of a command that the page's first sections do not describe."""
    opts = {opt for each in command.params for opt in each.opts}
    described = EVERYWHERE | {"--watch"} | (WORKER if "--url" in opts else frozenset())
    return [each for each in command.params if not described & set(each.opts)]


def _section(command: Any, common: dict[str, str]) -> str:
    own = _own(command)
    named = [each for each in own if common.get(_label(each)) == _item(each) or _says_itself(each)]
    also = [_label(each) for each in named]
    also += ["`--watch`"] if any("--watch" in each.opts for each in command.params) else []
    lines = [f"\n{' '.join(plain(command.help or '').split())}\n"]
    if also:
        lines[0] = f"{lines[0].rstrip()} Takes {', '.join(dict.fromkeys(also))}.\n"
    if items := [_item(each) for each in own if each not in named]:
        lines += ["\n", *items]
    return "".join(lines)


def _says_itself(parameter: Any) -> bool:
    """Return whether a parameter is an argument that has no description."""
    return parameter.param_type_name == "argument" and not parameter.help


def _label(parameter: Any) -> str:
    """Return a parameter as it is written, by the shortest of its names."""
    metavar = parameter.metavar or ""
    if parameter.param_type_name == "argument":
        return f"`{metavar or parameter.name.upper()}`"
    return f"`{min(parameter.opts, key=len)} {metavar}".rstrip() + "`"


def _item(parameter: Any) -> str:
    """Return the line of a list that describes a parameter."""
    metavar = parameter.metavar or ""
    if parameter.param_type_name == "argument":
        name = _label(parameter)
    else:
        names: list[str] = [*parameter.opts, *parameter.secondary_opts]
        names[0] = f"{names[0]} {metavar}".rstrip()
        name = ", ".join(f"`{each}`" for each in names)
    meaning = " ".join(plain(parameter.help or "").replace("\\|", "|").split())
    default = parameter.default.value if isinstance(parameter.default, Enum) else parameter.default
    if parameter.required:
        name += "!"
    elif isinstance(default, str | int | float) and not isinstance(default, bool) and default != "":
        meaning = f"{meaning} Default: `{default}`.".strip()
    return f"* {name}: {meaning}\n"

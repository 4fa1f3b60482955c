"""Rules for every command of the program: its formats, and one line for a mistake, which says what to do.

The list of commands comes from the program, so a new one is tested, too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Final

import forked_commands
import pytest
import yaml
from cli_support import GIVEN, OFFLINE, VERBS, arguments, ended, options
from cut_answers import CUTS, answering, cut

from replicator.cli.output import Format
from replicator.running.connecting import ENDED_EARLY
from replicator.security.access import Access, use_in_process

NAMES: Final = sorted(VERBS)
FILE_OPTIONS: Final = ("--file", "--topology")
WITH_FILE: Final = sorted(verb for verb in VERBS if any(name in options(verb) for name in FILE_OPTIONS))
WITH_CLUSTER: Final = sorted(
    verb for verb in VERBS if "--file" in options(verb) and ("--cluster" in options(verb) or "--from" in options(verb))
)
SHOWS_WHO_IS_AWAY: Final = {"plan": 0, "status": 3, "store status": 3, "failover-status": 3}
"""Commands that put an error where the others' answers stand, with this exit status."""
NOT_FOR_A_WORKER: Final = {
    "pipeline run": "its driver waits for its worker, which may be started after it",
    "store repair": "it looks for the store first, and there is none",
    "failback": "nobody says that the clients are elsewhere, so they are at home",
}
AWAY: Final = sorted({*VERBS} - {*OFFLINE} - {*NOT_FOR_A_WORKER} - {*SHOWS_WHO_IS_AWAY})


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run in an empty directory, without credentials for workers."""
    monkeypatch.chdir(tmp_path)
    for name in ("REPLICATOR_TOKEN", "REPLICATOR_PROFILE", "REPLICATOR_TOPOLOGY", "REPLICATOR_CLUSTER"):
        monkeypatch.delenv(name, raising=False)
    yield
    use_in_process(Access())


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A topology of two clusters whose workers do not run."""
    content = {
        "clusters": {
            "solo": {"address": "127.0.0.1:9", "data": str(tmp_path / "solo")},
            "other": {"address": "127.0.0.1:19", "data": str(tmp_path / "other")},
        },
        "links": [{"between": ["solo", "other"]}],
        "pipeline": {"engine": "embedded"},
    }
    file = tmp_path / "topology.yaml"
    file.write_text(yaml.safe_dump(content))
    return file


def failed(*given: str) -> tuple[int, str]:
    """The exit status of a command, and what it says on standard error, which is one line."""
    if given[0] == "worker":  # it sets up the log of its whole process
        done = forked_commands.run(*given, cwd=Path.cwd())
        status, said = done.returncode, done.stderr
    else:
        failure = ended(*given)
        status, said = failure.status, failure.stderr
    assert said.count("\n") == 1, (given, said)
    assert said.startswith("error: "), (given, said)
    return status, said


@pytest.mark.parametrize("verb", NAMES)
def test_every_command_has_all_formats_and_names_its_help_where_it_is_called_wrongly(verb: str) -> None:
    assert options(verb)["--output"] is options(verb)["-o"]
    assert options(verb)["--output"].default is Format.TABLE
    status, said = failed(*verb.split(), "--zzz")
    assert status == 2
    assert said == f"error: No such option: --zzz; see `replicator {verb} --help`\n"


def test_a_format_that_there_is_not_is_one_line_with_those_that_there_are() -> None:
    status, said = failed("status", "--output", "xml")
    assert status == 2
    assert "'table', 'json', 'yaml'" in said


@pytest.mark.parametrize("verb", WITH_FILE)
def test_a_topology_that_is_not_there_is_one_line(verb: str, tmp_path: Path) -> None:
    status, said = failed(*arguments(verb, tmp_path / "missing.yaml"))
    assert status == 2, said
    assert "missing.yaml: no such file" in said


def test_a_topology_that_is_none_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "broken.yaml").write_text("clusters: [\n")
    assert "broken.yaml:" in failed("status", "-f", str(tmp_path / "broken.yaml"))[1]
    assert "cannot be read" in failed("status", "-f", str(tmp_path))[1]


@pytest.mark.parametrize("verb", WITH_CLUSTER)
def test_a_cluster_that_the_topology_lacks_is_one_line_with_those_that_it_has(verb: str, file: Path) -> None:
    status, said = failed(*arguments(verb, file, cluster="nowhere"))
    assert status == 2, said
    assert "nowhere" in said
    assert "solo" in said


@pytest.mark.parametrize("verb", AWAY)
def test_a_worker_that_is_away_is_one_line_and_exit_status_3(verb: str, file: Path) -> None:
    status, said = failed(*arguments(verb, file))
    assert status == 3, said
    assert "127.0.0.1:" in said


@pytest.mark.parametrize(("verb", "how"), list(zip([*AWAY, *SHOWS_WHO_IS_AWAY], cycle(CUTS), strict=False)))
def test_an_answer_that_ends_early_is_a_worker_that_is_away(verb: str, how: str, file: Path) -> None:
    """The answer is whole JSON: only its announced end does not come."""
    with answering(cut(b'{"a": 1}', how)) as solo, answering(cut(b'{"a": 1}', how)) as other:
        text = file.read_text().replace("127.0.0.1:9\n", solo.removeprefix("http://") + "\n")
        file.write_text(text.replace("127.0.0.1:19\n", other.removeprefix("http://") + "\n"))
        given = [solo if each == GIVEN["worker"] else each for each in arguments(verb, file)]
        if verb in SHOWS_WHO_IS_AWAY:
            shown = ended(*given, "--output", "json")
            assert (shown.status, shown.stderr) == (SHOWS_WHO_IS_AWAY[verb], "")
            assert ENDED_EARLY in shown.stdout
        else:
            status, said = failed(*given)
            assert status == 3, said
            assert "its answer" in said or verb == "backup create"
            assert "ended early" in said or verb == "backup create"  # what there is of it is no copy of a store


@pytest.mark.parametrize("verb", sorted(SHOWS_WHO_IS_AWAY))
def test_what_shows_many_workers_shows_which_are_away_in_each_format(verb: str, file: Path) -> None:
    as_json = ended(*arguments(verb, file), "--output", "json")
    assert (as_json.status, as_json.stderr) == (SHOWS_WHO_IS_AWAY[verb], "")
    as_yaml = ended(*arguments(verb, file), "--output", "yaml")
    assert "127.0.0.1:9" in as_json.stdout
    assert yaml.safe_load(as_yaml.stdout).keys() == json.loads(as_json.stdout).keys()
    assert "127.0.0.1:9" in ended(*arguments(verb, file)).stdout

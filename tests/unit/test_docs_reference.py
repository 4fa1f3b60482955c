"""docs/reference/ is what the code says, and what nobody wrote down is asked for by name.

The routes need a worker that runs: tests/integration/api/test_docs_routes.py.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, TypedDict

import pytest
import reference_support
import yaml
from cli_support import VERBS
from printed_fields import problems
from reference_support import REPOSITORY, RUN
from typer.main import get_command

from replicator.cli.json_types import Done
from replicator.cli.main import app
from replicator.drills import json_types as drills
from replicator.topology import TopologyError, load_topology

commands = reference_support.module("reference_commands")
drawings = reference_support.module("drawings")
errors = reference_support.module("reference_errors")
fields = reference_support.module("reference_fields")
limits = reference_support.module("reference_limits")
printed = reference_support.module("reference_json")


def test_the_fields_of_the_topology_are_current() -> None:
    assert reference_support.is_current(fields.PAGE, fields.page()) is None


def test_the_commands_are_current_and_all_there() -> None:
    text = commands.page()
    assert reference_support.is_current(commands.PAGE, text) is None
    headings = [heading.rpartition(" ") for heading in re.findall(r"\n### ([^\n]+)\n", text)]
    assert set(VERBS) == {f"{group} {name}".strip() for groups, _, name in headings for group in groups.split("|")}


def test_the_fields_that_commands_print_are_current() -> None:
    text = printed.page()
    assert reference_support.is_current(printed.PAGE, text) is None
    named = set(", ".join(re.findall(r"\n### ([^\n]+)\n", text.partition("\n## Objects")[0])).split(", "))
    assert named == {verb for verb, kinds in printed.printed().items() if kinds != (Done,)}


def test_a_field_that_a_command_prints_and_nobody_explained_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Unexplained(TypedDict):
        """A thing."""

        here: Annotated[int, "where"]
        gone: int

    monkeypatch.setattr(printed, "printed", lambda: {"look": (list[Unexplained],)})
    monkeypatch.setattr(printed, "get_type_hints", lambda *_, **__: {"here": Annotated[int, "where"], "gone": int})
    with pytest.raises(fields.Undocumented, match=r"Unexplained\.gone has no meaning: write Annotated"):
        printed.page()


def test_what_is_printed_is_held_to_its_type() -> None:
    lags = drills.LagPercentiles
    assert problems({"p50": 1, "p99": None, "samples": 3}, (lags,)) == []
    assert problems({"p50": 1.0, "p99": "2", "samples": 3, "more": 1}, (lags,)) == [
        "$.more is not documented in LagPercentiles",
        "$.p99 is '2', and not float",
    ]
    assert problems({"a": [{"p50": 1.0, "p99": None}]}, (dict[str, list[lags]],)) == [
        "$.a[0].samples is in LagPercentiles, and is not printed"
    ]


def test_the_errors_are_current() -> None:
    assert reference_support.is_current(errors.PAGE, errors.page(REPOSITORY)) is None


def test_the_limits_are_current() -> None:
    assert reference_support.is_current(limits.PAGE, limits.page()) is None


def test_a_limit_whose_constant_is_gone_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "limits.yaml").write_text("Messages:\n  - {constant: replicator.engine.log.entry.GONE, of: x}\n")
    monkeypatch.setattr(limits, "LIMITS", tmp_path / "limits.yaml")
    with pytest.raises(fields.Undocumented, match=r"names replicator\.engine\.log\.entry\.GONE, which is not there"):
        limits.page()


@pytest.mark.parametrize("name", drawings.made())
def test_the_drawings_are_current(name: str) -> None:
    assert reference_support.is_current(name, drawings.made()[name]) is None


def changed_page(tmp_path: Path, old: str, new: str) -> Path:
    text = fields.MEANINGS.read_text()
    assert old in text
    changed = tmp_path / fields.MEANINGS.name
    changed.write_text(text.replace(old, new))
    return changed


def test_a_field_without_a_meaning_says_where_to_write_it(tmp_path: Path) -> None:
    with pytest.raises(fields.Undocumented) as missing:
        fields.page(changed_page(tmp_path, "| `links[].rate` |", "| rate |"))
    assert str(missing.value) == (
        "`links[].rate` has no meaning: write a row | `links[].rate` | default | meaning | into "
        f".ci/reference/topology_fields.md, then {RUN}"
    )


def test_a_row_of_a_field_that_is_gone_is_named(tmp_path: Path) -> None:
    with pytest.raises(fields.Undocumented, match=r"a row for `links\[\]\.rat`, which no file may have"):
        fields.page(changed_page(tmp_path, "`links[].rate`", "`links[].rate`, `.rat`"))


def test_a_default_that_is_another_is_named(tmp_path: Path) -> None:
    with pytest.raises(fields.Undocumented, match=r"`store\.segments_kept` is 3 by default, and it is 2"):
        fields.page(changed_page(tmp_path, "| `store.segments_kept` | 2 |", "| `store.segments_kept` | 3 |"))


def test_every_section_and_key_that_the_reader_takes_is_among_the_fields(tmp_path: Path) -> None:
    """The reader names the keys that there are when it meets another one."""
    file = tmp_path / "topology.yaml"
    file.write_text(
        "zzzz: 1\nlinks:\n  - {zzzz: 1, between: [a, b]}\nclusters:\n  a: {address: 'h:1', data: d, zzzz: 1}\n"
    )
    with pytest.raises(TopologyError) as refused:
        load_topology(file)
    keys = {fact.key for fact in fields.facts()}
    top = {key.partition(".")[0].removesuffix("[]") for key in keys}
    known = [set(names.split(", ")) for names in re.findall(r"the keys here are: ([\w, ]+)", str(refused.value))]
    assert top in known
    of_links = {key.split(".")[1] for key in keys if key.startswith("links[].")}
    assert any(names <= of_links and "rate" in names for names in known)


def test_an_error_without_a_remedy_says_where_to_write_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remedies = yaml.safe_load(errors.REMEDIES.read_text())
    del remedies["errors"]["StoreFull"]
    remedies["errors"]["Gone"] = "nothing"
    (tmp_path / "remedies.yaml").write_text(yaml.safe_dump(remedies))
    monkeypatch.setattr(errors, "REMEDIES", tmp_path / "remedies.yaml")
    with pytest.raises(fields.Undocumented) as missing:
        errors.page(REPOSITORY)
    assert str(missing.value).splitlines() == [
        "replicator.engine.errors.StoreFull has no remedy: write `StoreFull: what to do` into "
        f".ci/reference/remedies.yaml, then {RUN}",
        ".ci/reference/remedies.yaml has Gone, and there is no such error: take it out",
    ]


def test_the_status_of_an_error_is_the_one_that_it_is_answered_with() -> None:
    found = errors.classes(REPOSITORY)
    answered = errors.below(errors.ANSWERED, found)
    assert len(answered) > 80
    for each in answered:
        assert errors._status(each, found) == errors._class_of(each).status, each.name


def test_commands_that_remedies_name_are_there() -> None:
    groups = get_command(app).commands  # type: ignore[attr-defined]
    named = re.findall(r"`replicator ([a-z-]+)(?: ([a-z-]+))?", errors.REMEDIES.read_text())
    assert len(named) > 10
    for command, below in named:
        assert command in groups, command
        inside = getattr(groups[command], "commands", None)
        assert inside is None or not below or below in inside, (command, below)

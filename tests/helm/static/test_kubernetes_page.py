"""The chart takes the examples of docs/kubernetes.md, and they fit together."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from chart_references import missing
from chart_support import CHART, KUBERNETES, REPOSITORY, helm, merged

from replicator.cli.main import app

PAGE = (REPOSITORY / "docs" / "kubernetes.md").read_text()
EXAMPLES = {
    re.search(r"# (\S+)", block)[1]: block  # type: ignore[index]
    for block in re.findall(r"^```yaml\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
}


def test_the_page_has_examples() -> None:
    assert {"values.yaml", "values-secure.yaml", "values-postgres.yaml", "values-spark.yaml"} <= EXAMPLES.keys()


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_taken_by_the_chart(name: str, tmp_path: Path) -> None:
    values = yaml.safe_load(EXAMPLES[name])
    if "topology" not in values:  # a region's own file stands over the one of all
        of_all = "values-secure.yaml" if name.startswith("values-secure-") else "values.yaml"
        values = merged(yaml.safe_load(EXAMPLES[of_all]), values)
    values.setdefault("cluster", "us-east")
    (tmp_path / name).write_text(yaml.safe_dump(values))
    text = helm(
        *("template", "us-east", CHART, "--namespace", "regions", "--kube-version", KUBERNETES, "--is-upgrade"),
        *("--values", tmp_path / name),
    )
    values = merged(yaml.safe_load((CHART / "values.yaml").read_text()), values)
    assert missing([each for each in yaml.safe_load_all(text) if each], values) == []


def test_values_and_commands_that_the_page_names_are_there() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    files = {"tls.crt", "tls.key"}
    named = {word for word in re.findall(r"`([a-z]\w*(?:\.\w+)+)`", PAGE) if word.partition(".")[0] in values}
    assert len(named) > 10
    for path in named - files:
        found = values
        for part in path.split("."):
            assert found == {} or part in found, path  # what is free below a value is not there by default
            found = found.get(part, {}) if isinstance(found, dict) else {}
    root: Any = typer.main.get_command(app)
    assert set(re.findall(r"`replicator ([a-z]+)", PAGE)) <= root.commands.keys()

"""The chart's values: each is described, and stands in the schema and in the README."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import yaml
from chart_support import CHART, REPOSITORY, one, rendered
from reference_support import module, script

content_schema = module("reference_values").content_schema
README_MAKER: Final = script(REPOSITORY / "helm" / "readme.py")
TEXT: Final = (CHART / "values.yaml").read_text()


def test_the_readme_is_made_from_the_values_as_they_are() -> None:
    assert (CHART / "README.md").read_text() == README_MAKER.readme(TEXT), "run: python helm/readme.py"


def test_the_schema_of_the_topology_and_what_null_means_are_made_from_models_and_values_as_they_are() -> None:
    of_values = (CHART / "values.schema.json").read_text()
    assert of_values == README_MAKER.with_content(of_values, content_schema()), "run: python helm/readme.py"
    unset = README_MAKER.unset(TEXT, json.loads(of_values))
    assert (CHART / "templates" / "_unset.tpl").read_text() == unset, "run: python helm/readme.py"


def test_every_section_of_a_topology_file_is_known_to_the_schema() -> None:
    properties = content_schema()["properties"]
    assert {"clusters", "links", "policies", "auth", "tls", "metrics", "traces", "watchdog"} <= properties.keys()
    assert "address" in properties["clusters"]["additionalProperties"]["required"]
    assert properties["sync"]["properties"]["mode"] == {"enum": ["exact", "mark-delete"]}


def test_every_value_is_described() -> None:
    described, bare = README_MAKER.values(TEXT)
    assert bare == []
    assert len(described) > 100


def test_a_value_without_a_description_is_found_out() -> None:
    assert README_MAKER.values("a:\n  # -- One.\n  b: 1\n  c: 2\n# -- Whole.\nd: {e: 1}\n")[1] == ["a.c"]


def test_the_schema_has_the_same_keys_as_the_values() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    in_schema = set(_schema_keys(schema, schema["definitions"]))
    in_values = set(_value_keys(yaml.safe_load(TEXT), schema, schema["definitions"]))
    assert in_values <= in_schema
    # Tables that are empty by default have more.
    assert {key for key in in_schema - in_values if "." not in key} == set()


def test_the_grace_period_fits_how_a_worker_stops() -> None:
    """The driver of live copy, open requests, and as long again for the store and a Postgres of its own."""
    from replicator.operating.processes import STOP_SECONDS_MAX
    from replicator.worker.pipeline_driver import STOP_SECONDS_MAX as DRIVER_SECONDS_MAX
    from replicator.worker.starting import SHUTDOWN_SECONDS_MAX

    spec = one(rendered("minimal"), "StatefulSet")["spec"]["template"]["spec"]
    assert spec["terminationGracePeriodSeconds"] >= 2 * (DRIVER_SECONDS_MAX + SHUTDOWN_SECONDS_MAX) + STOP_SECONDS_MAX


def _resolved(schema: Any, definitions: Any) -> Any:
    reference = schema.get("$ref")
    return definitions[reference.rpartition("/")[2]] if reference else schema


def _schema_keys(schema: Any, definitions: Any, above: str = "") -> Iterator[str]:
    for key, inner in _resolved(schema, definitions).get("properties", {}).items():
        yield above + key
        yield from _schema_keys(inner, definitions, f"{above}{key}.")


def _value_keys(values: Any, schema: Any, definitions: Any, above: str = "") -> Iterator[str]:
    """Yield the paths of keys, as deep as the schema lists properties."""
    known = _resolved(schema, definitions).get("properties")
    for key, value in values.items():
        yield above + key
        if isinstance(value, dict) and known is not None and _resolved(known[key], definitions).get("properties"):
            yield from _value_keys(value, known[key], definitions, f"{above}{key}.")

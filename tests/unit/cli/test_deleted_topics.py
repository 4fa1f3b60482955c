"""Output of ``topics delete`` about copies that stay."""

from __future__ import annotations

from pathlib import Path

import pytest

from replicator.cli.admin import WorkerOptions
from replicator.cli.topics import _copies_stay

TOPOLOGY = """\
clusters:
  a: {address: 127.0.0.1:7101, data: a}
  b: {address: 127.0.0.1:7201, data: b}
  c: {address: 127.0.0.1:7301, data: c}
links:
  - {from: a, to: b}
  - {from: a, to: c, topics: [public/other]}
  - {from: b, to: a}
"""


@pytest.mark.parametrize(
    ("cluster", "topic", "said"),
    [
        ("a", "orders", "Copies stay at other clusters: 1 link copied it, to b."),
        ("a", "public/other/orders", "Copies stay at other clusters: 2 links copied it, to b, c."),
        ("c", "orders", "No link copies it from there."),
        (None, "orders", "Copies at other clusters stay."),
    ],
)
def test_it_names_the_clusters_to_which_links_copied_the_topic(
    tmp_path: Path, cluster: str | None, topic: str, said: str
) -> None:
    file = tmp_path / "topology.yaml"
    file.write_text(TOPOLOGY)
    assert _copies_stay(topic, WorkerOptions(None, file, cluster)).endswith(said)

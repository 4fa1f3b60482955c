"""Items of `links`: their contents, how they are written back, and the error for each mistake."""

from __future__ import annotations

from pathlib import Path

import pytest

from replicator.engine.topic_name import EPOCHS_TOPIC
from replicator.topology import Link, Topology, TopologyError, dump, load_topology

CLUSTERS = """\
clusters:
  a: {address: "127.0.0.1:7101", data: ./a}
  b: {address: "127.0.0.1:7102", data: ./b}
  c: {address: "127.0.0.1:7103", data: ./c}
"""


def load(tmp_path: Path, links: str) -> Topology:
    path = tmp_path / "topology.yaml"
    path.write_text(CLUSTERS + "links:\n" + links)
    return load_topology(path)


def problem(tmp_path: Path, links: str) -> str:
    """The one problem of a file with these links, without the directory of the file."""
    with pytest.raises(TopologyError) as caught:
        load(tmp_path, links)
    assert len(caught.value.problems) == 1, caught.value.problems
    return caught.value.problems[0].replace(f"{tmp_path}/", "")


FULL = """\
  - from: a
    to: b
    name: bulk
    forward: true
    topics: [public/default, "shop/.*"]
    exclude: [".*/secrets"]
    rate: 50MiB
    compression: zstd
    on_gap: skip-and-record
    hold: {size: 10GiB, age: 2d, policy: refuse-producers}
  - {from: a, to: b}
  - {between: [b, c], compression: lz4, hold: {policy: release}}
"""


def test_every_field_of_a_link_is_read(tmp_path: Path) -> None:
    links = load(tmp_path, FULL).links
    assert links[0] == Link(
        "a",
        "b",
        name="bulk",
        forward=True,
        topics=("public/default", "shop/.*"),
        exclude=(".*/secrets",),
        rate_bytes=50 * 1024**2,
        compression="zstd",
        on_gap="skip-and-record",
        hold_bytes=10 * 1024**3,
        hold_seconds=2 * 86_400,
        on_hold_exceeded="refuse-producers",
    )
    assert links[1] == Link("a", "b")
    assert links[2:] == (
        Link("b", "c", compression="lz4", on_hold_exceeded="release"),
        Link("c", "b", compression="lz4", on_hold_exceeded="release"),
    )
    assert [link.key for link in links] == ["a>b#bulk", "a>b", "b>c", "c>b"]


def test_what_is_written_is_read_back_as_it_was(tmp_path: Path) -> None:
    topology = load(tmp_path, FULL)
    again = tmp_path / "again.yaml"
    again.write_text(dump(topology))
    assert load_topology(again) == topology


@pytest.mark.parametrize(
    ("links", "expected"),
    [
        (
            "  - {from: a, to: b, topics: ['shop/(x']}\n",
            "topology.yaml:6: links[0].topics[0]: 'shop/(x' is not a regex that RE2 knows (missing ): shop/(x)",
        ),
        ("  - {from: a, to: b, topics: ['(?=x)']}\n", "links[0].topics[0]: '(?=x)' is not a regex that RE2 knows"),
        ("  - from: a\n    to: b\n    exclude:\n      - x\n      - ''\n", "topology.yaml:10: links[0].exclude[1]: "),
        ("  - {from: a, to: b, topics: shop}\n", "links[0].topics: must be a list of patterns"),
        ("  - {from: a, to: b, topics: [5]}\n", "links[0].topics[0]: must be text, not a number"),
        ("  - {from: a, to: b, rate: 10}\n", "links[0].rate: 10 bytes a second is too little; the least is 1024"),
        ("  - {from: a, to: b, rate: fast}\n", "links[0].rate: 'fast' is not a size"),
        ("  - {from: a, to: b, compression: gzip}\n", "'gzip' is not one of none, lz4, zstd"),
        ("  - {from: a, to: b, on_gap: go}\n", "'go' is not one of stop, keep-both, skip-and-record, copy-anew"),
        ("  - {from: a, to: b, hold: {policy: x}}\n", "links[0].hold.policy: 'x' is not one of hold, release"),
        ("  - {from: a, to: b, hold: {bytes: 1}}\n", "links[0].hold.bytes: unknown key"),
        ("  - {from: a, to: b, forward: 1}\n", "links[0].forward: must be true or false"),
        ("  - {from: a, to: b, name: 'x y'}\n", "links[0].name: a link's name has 1 to 64"),
        ("  - {from: a, to: b, fowrard: true}\n", "links[0].fowrard: unknown key; did you mean 'forward'?"),
        (
            "  - {from: a, to: b}\n  - {from: a, to: b, forward: true}\n",
            "topology.yaml:7: links[1]: the link a → b is given already in line 6; give one of them another `name`",
        ),
    ],
)
def test_a_mistake_in_a_link_is_one_problem_with_its_line(tmp_path: Path, links: str, expected: str) -> None:
    assert expected in problem(tmp_path, links)


SQL = """\
  - from: a
    to: b
    engine: spark
    where: "properties['region'] <> 'eu;'"
    select: {payload: "sha2(payload, 256)", key: "'masked'"}
"""


def test_sql_of_a_link_is_read_and_written_back(tmp_path: Path) -> None:
    topology = load(tmp_path, SQL)
    (link,) = topology.links
    assert link.where == "properties['region'] <> 'eu;'"
    assert link.select == {"payload": "sha2(payload, 256)", "key": "'masked'"}
    again = tmp_path / "again.yaml"
    again.write_text(dump(topology))
    assert load_topology(again).links == topology.links


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ("where: true", "links[0].where: must be text, not true (put it in quotes if it is text)"),
        (
            "where: ' '",
            "links[0].where: must be an SQL expression of 1 to 10000 characters, in `where` and `select` of a link",
        ),
        (
            "where: a; drop",
            "links[0].where: must be one SQL expression; take the semicolon out of the link's `where` or `select`",
        ),
        ("select: {topic: a}", "links[0].select.topic: unknown key; the keys here are: payload, key, properties"),
        (
            "engine: embedded, where: a",
            "links[0].where: needs Spark; write `engine: spark` at this link, or in `pipeline` for all",
        ),
        (
            "engine: embedded, select: {key: a}",
            "links[0].select: needs Spark; write `engine: spark` at this link, or in `pipeline` for all",
        ),
    ],
)
def test_a_mistake_in_the_sql_of_a_link_is_named(tmp_path: Path, fields: str, expected: str) -> None:
    engine = "" if "engine" in fields else "engine: spark, "
    assert problem(tmp_path, f"  - {{from: a, to: b, {engine}{fields}}}\n").endswith(expected)


def test_patterns_stand_for_whole_names_of_topics_or_namespaces() -> None:
    link = Link("a", "b", topics=("shop/orders", "bank/eu/pay-.*", "persistent://x/y/z"), exclude=(".*/pay-test",))
    carried = ["shop/orders/any", "bank/eu/pay-1", "x/y/z", "shop/orders/t-partition-3"]
    left = ["shop/orders-2/any", "bank/eu/other", "x/y/zz", "x/y", "bank/eu/pay-test", "bank/eu/pay-test-partition-0"]
    for name in carried + left:
        full = f"persistent://{name if name.count('/') == 2 else name + '/t'}"
        assert link.carries(full) is (name in carried), full


def test_the_topic_of_failovers_is_carried_whatever_the_patterns_say() -> None:
    assert Link("a", "b", topics=("shop/orders",), exclude=(".*",)).carries(EPOCHS_TOPIC)


def test_a_topic_goes_over_the_first_link_of_a_pair_that_carries_it(tmp_path: Path) -> None:
    topology = load(
        tmp_path,
        "  - {from: a, to: b, name: shop, topics: [shop/.*]}\n"
        "  - {from: a, to: b, name: rest}\n"
        "  - {from: a, to: c, topics: [bank/.*]}\n",
    )
    shop, rest, bank = topology.links
    assert topology.link_carrying("a", "b", "persistent://shop/n/t") == shop
    assert topology.link_carrying("a", "b", "persistent://bank/n/t") == rest
    assert [topology.carries(link, "persistent://shop/n/t") for link in topology.links] == [True, False, False]
    assert topology.carries(bank, "persistent://bank/n/t")
    assert topology.link_carrying("a", "c", "persistent://shop/n/t") is None
    assert [topology.carries(link, EPOCHS_TOPIC) for link in topology.links] == [True, False, True]

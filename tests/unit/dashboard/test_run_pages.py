"""Page of a switch: the parts of its report that it shows."""

from __future__ import annotations

from pathlib import Path

from asynchronous import asynchronous

from replicator.dashboard.drilling import Drilling
from replicator.dashboard.fan_out import FanOut
from replicator.dashboard.rendering import parts_for
from replicator.dashboard.runs import RunStart
from replicator.dashboard.switching import Switches, SwitchRun, Wanted
from replicator.dashboard.views import Views
from replicator.failover.report import SubscriptionReport, SwitchReport, TopicReport
from replicator.topology.values import default_topology


@asynchronous
async def test_the_worst_topics_stand_first_and_the_rest_is_counted(tmp_path: Path) -> None:
    topology = default_topology(tmp_path, (1, 2))
    fan_out = FanOut(lambda: topology)
    switches = Switches(fan_out)
    wanted = Wanted("unplanned", "us-east", "eu-west")
    run = SwitchRun(wanted, dry=True, beginning=RunStart("x", "chief", 1, 0.0))
    run.report = SwitchReport("unplanned", "us-east", "eu-west", ("us-east",), 0, outcome="dry run")
    good = [TopicReport(f"persistent://a/b/good-{number:03}", True, "1:1", "1:1", 0) for number in range(150)]
    equal = SubscriptionReport("<b>sub</b>", True, "", 0, 2)
    unknown = SubscriptionReport("other", None, "it is not there", None)
    bad = TopicReport("persistent://a/b/z-bad", True, "1:9", "1:2", 7, False, (equal, unknown))
    run.report.topics = [*good, bad]
    run.seconds = 1.25
    switches._runs["x"] = run
    parts = parts_for(
        await Views(fan_out, switches, Drilling(fan_out, "us-east")).compute("failover-run?id=x"), "token"
    )
    result = parts["result"]
    assert result.index("z-bad") < result.index("good-000")
    assert "at most 7" in result
    assert "51 more topics" in result
    assert "&lt;b&gt;sub&lt;/b&gt;: equal, 2 held" in result
    assert "other: unknown" in result
    assert "Type <strong>eu-west</strong>" in parts["next"]
    assert "1.2 s" in parts["progress"]
    await fan_out.close()

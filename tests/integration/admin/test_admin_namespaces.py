"""Operations on all topics of a namespace, clusters and brokers, and policies that Pulsar has and we do not."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from admin_support import Admin, NoStatus, administered
from engine_support import message, subscribed

NS = "namespaces/acme/orders"
TOPICS = "persistent/acme/orders"
FULL = "persistent://acme/orders"
EARLIEST = {"ledgerId": -1, "entryId": -1}


async def two_topics(admin: Admin) -> None:
    """Make two topics with three messages each, and two subscriptions that have consumed none of them."""
    for name in ("eu", "us"):
        topic = await admin.engine.topic(f"{FULL}/{name}")
        await topic.publish([message()] * 3)
        for subscription in ("jobs", "audit"):
            await admin.done("PUT", f"{TOPICS}/{name}/subscription/{subscription}", EARLIEST)


async def backlogs(admin: Admin) -> dict[str, dict[str, int]]:
    found = {}
    for name in ("eu", "us"):
        subscriptions = (await admin.get(f"{TOPICS}/{name}/stats"))["subscriptions"]
        found[name] = {each: stats["msgBacklog"] for each, stats in subscriptions.items()}
    return found


def test_the_backlog_of_one_subscription_or_of_all_is_cleared_in_every_topic(tmp_path: Path) -> None:
    async def main() -> None:
        async with administered(tmp_path) as admin:
            await two_topics(admin)
            await admin.done("POST", f"{NS}/clearBacklog/jobs")
            assert await backlogs(admin) == {"eu": {"audit": 3, "jobs": 0}, "us": {"audit": 3, "jobs": 0}}
            await admin.done("POST", f"{NS}/0x00000000_0xffffffff/clearBacklog")
            assert await backlogs(admin) == {"eu": {"audit": 0, "jobs": 0}, "us": {"audit": 0, "jobs": 0}}
            await admin.refused(404, "POST", "namespaces/acme/none/clearBacklog")

    asyncio.run(main())


def test_a_subscription_is_deleted_in_every_topic_unless_it_has_consumers_somewhere(tmp_path: Path) -> None:
    async def main() -> None:
        async with administered(tmp_path) as admin:
            await two_topics(admin)
            consumer, _ = await subscribed(await admin.engine.topic(f"{FULL}/us"), "jobs")
            await admin.refused(412, "POST", f"{NS}/unsubscribe/jobs")
            assert await admin.get(f"{TOPICS}/eu/subscriptions") == ["audit", "jobs"], "one was deleted"
            consumer.close()
            await admin.done("POST", f"{NS}/unsubscribe/jobs")
            assert await backlogs(admin) == {"eu": {"audit": 3}, "us": {"audit": 3}}

    asyncio.run(main())


def copies(ensemble: object) -> dict[str, object]:
    return {"bookkeeperEnsemble": ensemble, "bookkeeperWriteQuorum": 1, "bookkeeperAckQuorum": 1}


@pytest.mark.parametrize("at", [NS, f"{TOPICS}/eu"])
def test_a_policy_that_there_is_not_is_read_but_not_set(tmp_path: Path, at: str) -> None:
    async def main() -> None:
        async with administered(tmp_path) as admin:
            await two_topics(admin)
            assert await admin.call("GET", f"{at}/dispatchRate") == (204, None)
            assert await admin.get(f"{at}/encryptionRequired") is False
            assert await admin.get(f"{at}/offloadThreshold") == -1
            limited = {"dispatchThrottlingRateInMsg": 5, "dispatchThrottlingRateInByte": -1, "ratePeriodInSecond": 1}
            assert "rate" in await admin.refused(501, "POST", f"{at}/dispatchRate", limited)
            await admin.done("POST", f"{at}/dispatchRate", limited | {"dispatchThrottlingRateInMsg": -1})
            await admin.refused(501, "POST", f"{at}/encryptionRequired", True)
            await admin.refused(501, "POST", f"{at}/maxTopicsPerNamespace", 1)
            await admin.refused(501, "POST", f"{at}/maxTopicsPerNamespace", False)
            await admin.done("POST", f"{at}/maxTopicsPerNamespace", 0)
            three = {"bookkeeperEnsemble": 3, "bookkeeperWriteQuorum": 2, "bookkeeperAckQuorum": 2}
            assert "copy" in await admin.refused(501, "POST", f"{at}/persistence", three)
            await admin.refused(501, "POST", f"{at}/subscriptionTypesEnabled", ["Shared"])
            await admin.done(
                "POST", f"{at}/subscriptionTypesEnabled", ["Shared", "Exclusive", "Failover", "Key_Shared"]
            )
            for interval in (7, None):
                await admin.done("POST", f"{at}/deduplicationSnapshotInterval", raw=json.dumps(interval).encode())
            for wrong in (-5, True, "-1", 2**31, 2**70, 1.0, [1]):
                raw = json.dumps(wrong).encode()
                await admin.refused(501, "POST", f"{at}/deduplicationSnapshotInterval", raw=raw)
            for wrong in (True, "true", 1.0, False, 2, [1]):
                await admin.refused(501, "POST", f"{at}/persistence", copies(wrong))
            for one in (1, "1", None):
                await admin.done("POST", f"{at}/persistence", copies(one))
            for wrong in (" 1000", "+1000", "1_000", "1e3", "١٠", "9" * 20, "-" + "9" * 20, [1000], {"a": 1}, True, ""):
                for name in ("publishThrottlingRateInMsg", "dispatchThrottlingRateInByte"):
                    assert "rate" in await admin.refused(501, "POST", f"{at}/dispatchRate", {name: wrong})
            for unlimited in (-1, "-1", 0, None, -1.0):
                await admin.done("POST", f"{at}/publishRate", {"publishThrottlingRateInMsg": unlimited})
            await admin.done("DELETE", f"{at}/dispatchRate")
            await admin.refused(404, "GET", f"{at.replace('orders', 'none')}/dispatchRate")

    asyncio.run(main())


def test_permissions_are_kept_where_nobody_asks_for_them_yet(tmp_path: Path) -> None:
    async def main() -> None:
        async with administered(tmp_path) as admin:
            await two_topics(admin)
            for at in (NS, f"{TOPICS}/eu"):
                assert await admin.get(f"{at}/permissions") == {}
                await admin.done("POST", f"{at}/permissions/bob", ["produce"])
                assert await admin.get(f"{at}/permissions") == {"bob": ["produce"]}
                await admin.done("DELETE", f"{at}/permissions/bob")
                assert await admin.get(f"{at}/permissions") == {}
            await admin.refused(404, "GET", f"{TOPICS}/none/permissions")

    asyncio.run(main())


def test_what_a_partition_was_granted_alone_goes_with_its_partitioned_topic(tmp_path: Path) -> None:
    async def main() -> None:
        async with administered(tmp_path) as admin:
            await two_topics(admin)

            async def shown() -> object:
                return (await admin.get(NS))["auth_policies"]["destination_auth"]

            for name in ("asia-partition-7", "asia-partition-1234567"):  # the second is an ordinary topic's name
                await admin.done("POST", f"{TOPICS}/{name}/permissions/eve", ["consume"])
            ordinary = {f"{FULL}/asia-partition-1234567": {"eve": ["consume"]}}
            assert await shown() == {f"{FULL}/asia-partition-7": {"eve": ["consume"]}} | ordinary
            await admin.done("PUT", f"{TOPICS}/asia/partitions", 2)
            assert await shown() == ordinary
            await admin.done("DELETE", f"{TOPICS}/asia/partitions")
            assert await shown() == ordinary
            assert list(admin.engine.catalog.grants.all()) == list(ordinary)

    asyncio.run(main())


def test_a_cluster_is_one_broker_and_one_bundle(tmp_path: Path) -> None:
    async def main() -> None:
        async with administered(tmp_path) as admin:
            await admin.done("PUT", NS)
            host = admin.url.removeprefix("http://")
            assert await admin.get("brokers") == [host]
            assert (await admin.get("brokers/leaderBroker"))["serviceUrl"] == admin.url
            assert await admin.get("clusters") == ["us-east"]
            assert (await admin.get("clusters/us-east"))["brokerServiceUrl"] == f"pulsar://{host}"
            assert "topology" in await admin.refused(501, "PUT", "clusters/eu-west", {"serviceUrl": "http://x"})
            assert (await admin.get(f"{NS}/bundles"))["numBundles"] == 1
            await admin.done("PUT", f"{NS}/unload")
            assert "store" in await admin.refused(501, "GET", "brokers/internal-configuration")
            for part in ("bookies/all", "resource-quotas", "broker-stats/topics", "functions/acme/orders"):
                await admin.refused(501, "GET", part)

    asyncio.run(main())


def test_health_is_that_of_the_worker(tmp_path: Path) -> None:
    class Fenced(NoStatus):
        def ready(self) -> str | None:
            return "eu-west serves"

    async def main() -> None:
        async with (
            administered(tmp_path / "a") as admin,
            admin.session.get(f"{admin.url}/admin/v2/brokers/health") as response,
        ):
            assert (response.status, await response.text()) == (200, "ok")
        async with administered(tmp_path / "b", source=Fenced()) as admin:
            assert "eu-west" in await admin.refused(503, "GET", "brokers/health")
            assert "eu-west" in await admin.refused(503, "GET", "brokers/ready")

    asyncio.run(main())

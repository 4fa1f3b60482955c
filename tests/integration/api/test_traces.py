"""Traces of two real workers, as a collector of OTLP gets them."""

from __future__ import annotations

import ast
import asyncio
import re
import secrets
import subprocess
import sys
import textwrap
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from failover_support import free_ports
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import SpanContext
from traces_support import DEADLINE_SECONDS, Seen, TracedPair, traced_pair

from replicator.client import Client, CompressionType, ConsumerType, InitialPosition
from replicator.client.consuming.consumer import Consumer
from replicator.topology import load_topology
from replicator.topology.traces import TracesSettings

US, EU = "us-east", "eu-west"
WAY = (f"publish {US}", f"append {EU}", f"deliver {EU}", f"acknowledge {EU}")


@pytest.fixture(scope="module")
def pair() -> Iterator[TracedPair]:
    with traced_pair(", sample: 0, per_second: 1000") as started:
        yield started


@pytest.fixture
def topic() -> str:
    return f"persistent://public/default/traced-{secrets.token_hex(4)}"


def new_trace() -> tuple[str, str]:
    """A trace id, and the producer's span in it."""
    return secrets.token_hex(16), secrets.token_hex(8)


def header(trace_id: str, span_id: str, flags: str = "01") -> dict[str, str]:
    return {"traceparent": f"00-{trace_id}-{span_id}-{flags}", "beside": "it"}


async def published(pair: TracedPair, topic: str, properties: Sequence[dict[str, str]], **settings: Any) -> None:
    """Messages with these properties, published in ``us-east``."""
    async with Client(pair.url(US)) as client:
        producer = await client.create_producer(topic, **settings)
        sends = [producer.enqueue(b"%d" % number, each) for number, each in enumerate(properties)]
        await producer.flush()
        await asyncio.gather(*sends)


class Taking:
    """A consumer in one cluster, of all that the topic has."""

    def __init__(self, pair: TracedPair, cluster: str, topic: str, **options: Any) -> None:
        self._pair, self._cluster, self._topic, self._options = pair, cluster, topic, options

    async def __aenter__(self) -> Consumer:
        self._client = Client(self._pair.url(self._cluster))
        return await self._client.subscribe(
            self._topic, "traced", initial_position=InitialPosition.Earliest, **self._options
        )

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()


def check_way(spans: dict[str, Seen], span_id: str) -> None:
    """Check one trace, each span the child of the one before."""
    way = [spans[operation] for operation in WAY]
    assert [each.parent_id for each in way] == [span_id, *(each.span_id for each in way[:-1])]
    assert len({each.trace_id for each in way}) == 1
    assert all(each.start_ns <= each.end_ns for each in way)


def test_one_message_is_one_trace_from_its_send_to_its_acknowledgement_elsewhere(pair: TracedPair, topic: str) -> None:
    trace_id, span_id = new_trace()

    async def work() -> None:
        await published(pair, topic, [header(trace_id, span_id)])
        async with Taking(pair, EU, topic) as consumer:
            message = await consumer.receive()
            assert message.properties() == header(trace_id, span_id)  # as they came
            await consumer.acknowledge(message)

    asyncio.run(work())
    spans = pair.collector.trace(trace_id, *WAY)
    check_way(spans, span_id)
    assert spans.keys() == set(WAY)
    publish, append = spans[WAY[0]], spans[WAY[1]]
    (block,) = pair.collector.wait_for(
        lambda seen: [each for each in seen if (trace_id, publish.span_id) in each.links] or None
    )
    assert (block.operation, block.cluster, block.trace_id != trace_id) == ("copy", US, True)
    assert append.links == ((block.trace_id, block.span_id),)
    assert block.attributes["replicator.link"] == f"{US}>{EU}"
    assert spans[WAY[3]].attributes["messaging.destination.subscription.name"] == "traced"
    assert spans[WAY[3]].attributes["messaging.destination.name"] == topic
    assert not any(each.error for each in (*spans.values(), block))


@pytest.mark.parametrize("compression", [CompressionType.NONE, CompressionType.LZ4])
def test_a_message_of_a_batch_is_acknowledged_by_itself(
    pair: TracedPair, topic: str, compression: CompressionType
) -> None:
    trace_id, span_id = new_trace()
    properties: list[dict[str, str]] = [{}] * 10
    properties[3] = header(trace_id, span_id)

    async def work() -> None:
        await published(
            pair,
            topic,
            properties,
            batching_enabled=True,
            batching_max_publish_delay_ms=5000,
            compression_type=compression,
        )
        async with Taking(pair, EU, topic, consumer_type=ConsumerType.Shared) as consumer:
            messages = [await consumer.receive() for _ in range(10)]
            for number in (2, 4):
                await consumer.acknowledge(messages[number])
            await consumer.flush_acknowledgements()
            assert not any(each.operation == "acknowledge" for each in pair.collector.seen_of(trace_id))
            await consumer.acknowledge(messages[3])

    asyncio.run(work())
    spans = pair.collector.trace(trace_id, *WAY)
    check_way(spans, span_id)
    assert spans[WAY[0]].attributes["messaging.message.id"].endswith(":3")


@pytest.mark.parametrize("batched", [True, False])
def test_all_up_to_a_message_are_acknowledged_at_once(pair: TracedPair, topic: str, batched: bool) -> None:
    traces = [new_trace() for _ in range(6)]

    async def work() -> None:
        await published(
            pair,
            topic,
            [header(*each) for each in traces],
            batching_enabled=batched,
            batching_max_publish_delay_ms=5000,
        )
        async with Taking(pair, EU, topic) as consumer:
            messages = [await consumer.receive() for _ in traces]
            await consumer.acknowledge_cumulative(messages[4])

    asyncio.run(work())
    for trace_id, span_id in traces[:5]:
        check_way(pair.collector.trace(trace_id, *WAY), span_id)
    pair.collector.trace(traces[5][0], *WAY[:3])
    assert not any(each.operation == "acknowledge" for each in pair.collector.seen_of(traces[5][0]))


def test_consumers_of_the_same_region_continue_the_trace_too(pair: TracedPair, topic: str) -> None:
    trace_id, span_id = new_trace()

    async def work() -> None:
        await published(pair, topic, [header(trace_id, span_id)])
        async with Taking(pair, US, topic) as consumer:
            await consumer.acknowledge(await consumer.receive())

    asyncio.run(work())
    spans = pair.collector.trace(trace_id, *WAY[:2], f"deliver {US}", f"acknowledge {US}")
    publish, deliver = spans[f"publish {US}"], spans[f"deliver {US}"]
    assert deliver.parent_id == publish.span_id
    assert spans[f"acknowledge {US}"].parent_id == deliver.span_id


def test_what_is_sent_again_is_one_more_delivery(pair: TracedPair, topic: str) -> None:
    trace_id, span_id = new_trace()

    async def work() -> None:
        await published(pair, topic, [header(trace_id, span_id)])
        async with Taking(pair, EU, topic, consumer_type=ConsumerType.Shared) as consumer:
            await consumer.receive()
            consumer.redeliver_unacknowledged_messages()
            await consumer.acknowledge(await consumer.receive())

    asyncio.run(work())
    pair.collector.trace(trace_id, *WAY)
    seen = pair.collector.seen_of(trace_id)
    first, second = [each for each in seen if each.operation == "deliver"]
    assert [each.attributes["replicator.redelivery_count"] for each in (first, second)] == [0, 1]
    assert [each.parent_id for each in seen if each.operation == "acknowledge"] == [second.span_id]


def test_a_trace_that_its_producer_does_not_sample_has_no_spans(pair: TracedPair, topic: str) -> None:
    unsampled, sampled, broken = new_trace(), new_trace(), new_trace()

    async def work() -> None:
        await published(
            pair,
            topic,
            [
                header(*unsampled, "00"),
                {"traceparent": f"00-{broken[0]}-nonsense-01"},
                header(*sampled),
            ],
        )
        async with Taking(pair, EU, topic) as consumer:
            for _ in range(3):
                await consumer.acknowledge(await consumer.receive())

    asyncio.run(work())
    check_way(pair.collector.trace(sampled[0], *WAY), sampled[1])
    assert not pair.collector.seen_of(unsampled[0]) + pair.collector.seen_of(broken[0])


def test_the_worker_begins_traces_at_a_rate_that_a_reload_changes(pair: TracedPair, topic: str) -> None:
    def settings(sample: float) -> Any:
        endpoint = pair.topology.traces.endpoint
        return replace(pair.topology, traces=TracesSettings(endpoint=endpoint, sample=sample, per_second=1000))

    unsampled = new_trace()

    async def work() -> None:
        await published(pair, topic, [{}, header(*unsampled, "00"), {}], batching_enabled=True)
        async with Taking(pair, EU, topic) as consumer:
            for _ in range(3):
                await consumer.acknowledge(await consumer.receive())

    pair.run(pair.workers[US].reload(settings(1.0)))
    try:
        asyncio.run(work())
    finally:
        pair.run(pair.workers[US].reload(settings(0.0)))
    began = pair.collector.wait_for(
        lambda seen: (
            found
            if len(found := [each for each in seen if each.name == f"publish {topic}" and not each.parent_id]) == 2
            else None
        )
    )
    for each in began:
        check_way(pair.collector.trace(each.trace_id, *WAY), "")
    assert not pair.collector.seen_of(unsampled[0])


def test_status_and_metrics_say_what_became_of_spans(pair: TracedPair, topic: str) -> None:
    before = pair.status(US)
    trace_id, span_id = new_trace()
    asyncio.run(published(pair, topic, [header(trace_id, span_id)]))
    pair.collector.trace(trace_id, *WAY[:2])
    until = time.monotonic() + DEADLINE_SECONDS
    while (after := pair.status(US))["exported"] < before["exported"] + 2:  # counted once the answer is here
        assert time.monotonic() < until
        time.sleep(0.01)
    assert after["messages"] == before["messages"] + 1
    assert (after["dropped"], after["refused"], after["detail"]) == (0, 0, "")
    with urllib.request.urlopen(f"{pair.topology.cluster(US).url}/metrics") as answer:
        metrics = answer.read().decode()
    counted = re.search(rf'replicator_traces_spans_total{{cluster="{US}",outcome="exported"}} (\S+)', metrics)
    assert counted is not None
    assert float(counted[1]) >= after["exported"]
    assert f'replicator_traces_messages_total{{cluster="{US}"}} {float(after["messages"])}' in metrics


def test_our_client_brings_the_context_of_the_span_that_sends(pair: TracedPair, topic: str) -> None:
    tracer = TracerProvider().get_tracer("a test")
    own = header(*new_trace(), "00")

    async def work() -> SpanContext:
        async with Client(pair.url(US), propagate_trace_context=True) as client:
            producer = await client.create_producer(topic, batching_enabled=True)
            await producer.send(b"without a span")
            with tracer.start_as_current_span("place an order") as span:
                await producer.send_many([b"within it"])
                await producer.send(b"with a context of its own", own)
        async with Taking(pair, EU, topic) as consumer:
            messages = [await consumer.receive() for _ in range(3)]
            for message in messages:
                await consumer.acknowledge(message)
        context = span.get_span_context()
        sent = f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
        assert [each.properties() for each in messages] == [{}, {"traceparent": sent}, own]
        return context

    context = asyncio.run(work())
    check_way(pair.collector.trace(f"{context.trace_id:032x}", *WAY), f"{context.span_id:016x}")


def test_the_examples_of_the_page_work(pair: TracedPair, tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "traces.md").read_text()
    (tmp_path / "topology.yaml").write_text(re.findall(r"^```yaml\n(.*?)^```", page, re.DOTALL | re.MULTILINE)[0])
    assert load_topology(tmp_path / "topology.yaml").traces.endpoint == "http://localhost:4318"
    examples = "".join(re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE))
    for shown, cluster in (("pulsar://127.0.0.1:7101", US), ("pulsar://127.0.0.1:7102", EU)):
        examples = examples.replace(shown, pair.url(cluster))
    names = {"tracer": TracerProvider().get_tracer("a test")}
    asyncio.run(eval(compile(examples, "traces.md", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names))
    check_way(pair.collector.trace("0af7651916cd43dd8448eb211c80319c", *WAY), "b7ad6b7169203331")


def test_without_an_endpoint_nothing_of_opentelemetry_is_imported(data_dir: Path) -> None:
    (port,) = free_ports(1)
    data_dir.mkdir()
    file = data_dir / "topology.yaml"
    file.write_text(f"clusters: {{solo: {{address: '127.0.0.1:{port}', data: {data_dir / 'data'}}}}}\n")
    script = textwrap.dedent(
        f"""
        import asyncio, sys
        from pathlib import Path
        from replicator.client import Client
        from replicator.topology import load_topology
        from replicator.worker.starting import start_worker

        async def main():
            worker = await start_worker(load_topology(Path({str(file)!r})), "solo")
            async with Client("pulsar://127.0.0.1:{port}") as client:
                producer = await client.create_producer("t")
                await producer.send(b"m", {header(*new_trace())!r})
            assert worker.parts.traces is None and worker.parts.engine.tracing is None
            await worker.stop()

        asyncio.run(main())
        print([name for name in sys.modules if name.startswith("opentelemetry")])
        """
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[-1] == "[]"

"""A Spark session with its UI on, in a process that was given a token: runs a job whose tasks use the token, and prints
what the UI shows.

Every page and every answer of its REST API is fetched, so that what a later version of Spark adds is searched too.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator
from urllib.error import HTTPError
from urllib.parse import urljoin
from urllib.request import urlopen

import pyarrow as pa

from replicator.pipeline.spark.session import spark_session

PAGES_MAX = 200


def lengths(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield, for each batch, the length of the worker token in the environment of the Spark task."""
    for _ in batches:
        yield pa.RecordBatch.from_pydict({"length": [len(os.environ["REPLICATOR_TOKEN"])]})


def fetched(url: str) -> str:
    try:
        with urlopen(url, timeout=30) as response:
            return str(response.read().decode(errors="replace"))
    except HTTPError as error:
        return error.read().decode(errors="replace")


def pages(base: str, application: str) -> dict[str, str]:
    """Return by address the text of all pages that links reach from the first page, and of the REST API."""
    api = f"{base}/api/v1/applications"
    names = ("", "/environment", "/jobs", "/stages", "/executors", "/allexecutors", "/sql?details=true", "/storage/rdd")
    waiting = [
        f"{base}/jobs/",
        f"{base}/environment/",
        f"{base}/SQL/",
        api,
        *(f"{api}/{application}{n}" for n in names),
    ]
    found: dict[str, str] = {}
    while waiting and len(found) < PAGES_MAX:
        url = waiting.pop(0)
        if url in found:
            continue
        found[url] = fetched(url)
        for link in re.findall(r'href="([^"#]+)"', found[url]):
            target = urljoin(url, link)
            if target.startswith(base) and "/static/" not in target and "/kill" not in target:
                waiting.append(target)
    return found


spark = spark_session("local[1]", conf={"spark.ui.enabled": "true", "spark.ui.port": "0"})
try:
    (row,) = spark.range(1).mapInArrow(lengths, "length long").collect()
    assert row.length == len(os.environ["REPLICATOR_TOKEN"])
    address = spark.sparkContext.uiWebUrl
    assert address is not None
    port = address.rpartition(":")[2]
    for url, text in pages(f"http://127.0.0.1:{port}", spark.sparkContext.applicationId).items():
        sys.stdout.write(f"== {url}\n{text}\n")
finally:
    spark.stop()

"""A stand-in for the driver of live copy: does what its settings say, and ends when its input does."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

conf = json.loads(os.environ["REPLICATOR_PIPELINE_CONF"])
if "spark.test.deaf" in conf:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
with Path(conf["spark.test.file"]).open("a") as file:
    file.write(f"{os.getpid()} {' '.join(sys.argv[1:])}\n")
print("WARN something of Spark's", flush=True)
if "spark.test.ready" in conf:
    print("live copy: ready", flush=True)
print("live copy: " + conf.get("spark.test.says", "nothing to say"), file=sys.stderr, flush=True)
while "spark.test.alive" in conf:
    print("live copy: alive", file=sys.stderr, flush=True)
    time.sleep(0.05)
if "spark.test.ends" in conf:
    sys.exit(3)
while sys.stdin.buffer.read(1):
    time.sleep(0.01)
with Path(conf["spark.test.file"]).open("a") as file:
    file.write("its input ended\n")
if "spark.test.lingers" in conf:
    time.sleep(60)

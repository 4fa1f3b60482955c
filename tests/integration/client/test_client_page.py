"""The examples of docs/client.md run as they stand there, but for the port, and print what they say they print."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
from pathlib import Path
from types import CodeType
from typing import Any

import pytest
from client_support import running_worker
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from replicator.client import Client
from replicator.engine.policies import TopicPolicies

PAGE = Path(__file__).parents[3] / "docs" / "client.md"
SHOWN_URL = "pulsar://127.0.0.1:7101"
DEADLINE_SECONDS = 60


def examples() -> list[tuple[int, str]]:
    """Each example with the line of the page that it begins at."""
    page = PAGE.read_text()
    found = re.finditer(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    return [(page.count("\n", 0, match.start(1)) + 1, match[1]) for match in found]


def compiled(line: int, text: str) -> CodeType:
    """The example as code whose errors show the page's lines."""
    code: CodeType = compile("\n" * (line - 1) + text, str(PAGE), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    return code


async def run(line: int, text: str, names: dict[str, Any]) -> None:
    code = compiled(line, text)
    if code.co_flags & inspect.CO_COROUTINE:
        await eval(code, names)
    elif "SyncClient" in text:
        await asyncio.to_thread(exec, code, names)  # it blocks, and the worker runs in this loop
    else:
        exec(code, names)


def write_keys(directory: Path) -> None:
    """Write a pair of keys as the page names them."""
    key = rsa.generate_private_key(65537, 2048)
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (directory / "public.pem").write_bytes(public)
    (directory / "private.pem").write_bytes(private)


def test_every_example_of_the_client_page_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_keys(tmp_path)
    printed: list[str] = []
    names: dict[str, Any] = {"print": lambda *values: printed.append(" ".join(map(str, values)))}

    async def main() -> None:
        async with asyncio.timeout(DEADLINE_SECONDS), running_worker(tmp_path / "worker") as worker:
            await (await worker.engine.topic("payments")).policies.set(TopicPolicies(deduplication=True))
            for line, text in examples():
                printed.clear()
                await run(line, text.replace(SHOWN_URL, worker.url), names)
                expected = re.findall(r"print\(.*\)  # (.*)$", text, re.MULTILINE)
                assert printed == expected, f"the example at line {line}"

    asyncio.run(main())


def test_the_page_names_every_argument_of_the_client() -> None:
    page = PAGE.read_text()
    for method in (Client.create_producer, Client.subscribe):
        for name in inspect.signature(method).parameters:
            if name in ("self", "topic", "subscription_name", "consumer_type", "unsupported"):
                continue
            short = re.sub(r"^(acknowledgement|batching)_", "…_", name)
            assert f"`{name}`" in page or f"`{short}`" in page or f"{name}=" in page, name

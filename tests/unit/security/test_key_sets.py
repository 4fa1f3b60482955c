"""Keys from a URL: however they come, kept while the URL does not answer, and asked for when one is missing."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import jwt
import pytest
from aiohttp import web
from asynchronous import asynchronous
from engine_support import eventually

from replicator.running.supervisor import Supervisor
from replicator.security.errors import NotIdentified, SecurityError
from replicator.security.key_sets import KeySet
from replicator.security.tokens import Tokens, create_token, new_key_pair, read_private_key, read_public_key


class Provider:
    """Serves a key set, a few bytes at a time."""

    def __init__(self) -> None:
        self.body = b""
        self.status = 200
        self.url = ""
        self._runner: web.AppRunner

    async def start(self) -> None:
        async def keys(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse(status=self.status)
            await response.prepare(request)
            for at in range(0, len(self.body), 100):
                await response.write(self.body[at : at + 100])
                await asyncio.sleep(0.001)
            return response

        app = web.Application()
        app.router.add_get("/keys", keys)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/keys"

    async def stop(self) -> None:
        await self._runner.cleanup()


def pair(directory: Path, key_id: str) -> tuple[str, bytes]:
    """A token that names a key, and the key set that has it."""
    private, public = new_key_pair("ES256")
    (directory / "private").write_bytes(private)
    (directory / "public").write_bytes(public)
    key = read_private_key(directory / "private")
    token = jwt.encode({"sub": "app"}, key.material, algorithm="ES256", headers={"kid": key_id})
    jwk = jwt.algorithms.ECAlgorithm.to_jwk(read_public_key(directory / "public").material, as_dict=True)
    return token, json.dumps({"keys": [{**jwk, "kid": key_id}]}).encode()


@asynchronous
async def test_keys_are_fetched_in_pieces_and_kept_while_the_url_does_not_answer(tmp_path: Path) -> None:
    provider = Provider()
    await provider.start()
    try:
        token, provider.body = pair(tmp_path, "one")
        keys = KeySet(provider.url)
        tokens = Tokens(keys)
        with pytest.raises(NotIdentified, match="not known"):
            tokens.identify(token)
        await keys.fetch()
        assert tokens.identify(token).role == "app"
        for status, body in ((500, provider.body), (200, b"no keys"), (302, provider.body), (200, b"x" * 2_000_000)):
            provider.status, provider.body = status, body
            with pytest.raises(SecurityError):
                await keys.fetch()
            assert tokens.identify(token).role == "app"
        assert Tokens(KeySet("http://127.0.0.1:9/other", keys)).identify(token).role == "app"
        assert create_token(read_private_key(tmp_path / "private"), "x")
    finally:
        await provider.stop()


@asynchronous
async def test_a_running_set_fetches_when_it_starts(tmp_path: Path) -> None:
    provider = Provider()
    await provider.start()
    supervisor = Supervisor()
    try:
        token, provider.body = pair(tmp_path, "one")
        keys = KeySet(provider.url)
        task = keys.start(supervisor)
        await eventually(lambda: keys.key_for("one") is not None, "the keys are there")
        assert Tokens(keys).identify(token).role == "app"
        await task.stop()
    finally:
        await supervisor.stop()
        await provider.stop()

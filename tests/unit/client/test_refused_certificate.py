"""A server that does not let a certificate in: the client hears of it at once, on each event loop."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop

from replicator.client.authentication import AuthenticationTLS, ConnectionSecurity
from replicator.client.errors import PulsarException
from replicator.client.wire.connector import BrokerConnector
from replicator.security.certificate_making import Authority

Run = Callable[[Coroutine[Any, Any, None]], None]


class FromSetting(AuthenticationTLS):
    source = "a setting"


async def hears(directory: Path, authentication: AuthenticationTLS) -> PulsarException:
    """Return the error of a client with this certificate at a server that trusts the authority of ``directory``."""
    authority = Authority(directory / "authority")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority.file))
    context.load_cert_chain(*authority.give("server"))
    context.verify_mode = ssl.CERT_REQUIRED
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=context)
    connector = BrokerConnector(
        f"pulsar+ssl://127.0.0.1:{server.sockets[0].getsockname()[1]}",
        connection_timeout_seconds=5,
        operation_timeout_seconds=5,
        showing=ConnectionSecurity(authentication, str(authority.file)),
    )
    try:
        with pytest.raises(PulsarException) as heard:
            await connector.partitions("persistent://public/default/t")
        return heard.value
    finally:
        await connector.close()
        server.close()


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_a_certificate_of_another_authority_is_named(tmp_path: Path, run: Run) -> None:
    async def main() -> None:
        shown = FromSetting(*map(str, Authority(tmp_path / "stranger").give("me")))
        error = await hears(tmp_path, shown)
        assert "no answer within" not in str(error)
        assert str(error).endswith("before the server answered (shown: a setting)")

    run(main())

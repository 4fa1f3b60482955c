"""The node that stands in for kubelet tells the API server what it has to tell, also one that is busy."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from aiohttp import ClientSession, web
from answering_admin import answering
from kubelet.api import Api, Refused

_OTHER = "Precondition failed: UID in precondition: a, UID in object meta: b"


def _tell(refusals: Sequence[tuple[int, str]]) -> int:
    """Return how many calls are needed at a server that refuses so, one after the other, and then agrees."""
    told = 0

    async def answer(request: web.Request) -> web.Response:
        nonlocal told
        if request.method != "PATCH":  # what the node watches
            return web.Response(status=403)
        told += 1
        if told > len(refusals):
            return web.json_response({})
        status, text = refusals[told - 1]
        if not status:
            assert request.transport is not None
            request.transport.abort()
        return web.Response(status=status or 500, text=text)

    async def main() -> int:
        async with answering(answer) as url, ClientSession(url) as session:
            await Api(session).call("PATCH", "/api/v1/namespaces/default/pods/one/status", {"status": {}})
        return told

    return asyncio.run(main())


def test_a_call_is_made_again_where_that_helps() -> None:
    busy = [(409, "the object has been modified"), (429, "later"), (0, ""), (500, "etcdserver: request timed out")]
    assert _tell(busy) == len(busy) + 1


@pytest.mark.parametrize("refusal", [(404, "not found"), (409, _OTHER), (422, "metadata.uid: field is immutable")])
def test_a_call_that_is_refused_for_good_is_not_made_again(refusal: tuple[int, str]) -> None:
    with pytest.raises(Refused, match=refusal[1]) as refused:
        _tell([refusal])
    assert refused.value.status == refusal[0]

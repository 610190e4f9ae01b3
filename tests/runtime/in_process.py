"""Requests to an ASGI app without a server."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import httpx


def requested(
    app: Any, path: str, *, method: str = "GET", headers: Mapping[str, str] | None = None, peer: str = "127.0.0.1"
) -> httpx.Response:
    """The response to one request of a client with this address."""

    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(app, client=(peer, 50000))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.request(method, path, headers=headers)

    return asyncio.run(send())

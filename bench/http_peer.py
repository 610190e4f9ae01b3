"""A server that answers with as many bytes as it is asked for, by bare Starlette and uvicorn, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def bare_starlette() -> Iterator[str]:
    """Where it is."""
    command = [sys.executable, "-m", "bench.http_peer"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


def serve() -> None:
    """Run it, and print its address."""
    import socket

    import uvicorn

    # asyncio sends at once what it is given only on sockets that say that they are TCP; else answers wait for 40 ms.
    door = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    door.bind(("127.0.0.1", 0))
    door.listen()
    print(f"http://127.0.0.1:{door.getsockname()[1]}", flush=True)
    uvicorn.Server(uvicorn.Config(app(), log_level="warning")).run(sockets=[door])


def app() -> Any:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    async def answer(request: Request) -> Response:
        return Response(b" " * int(request.query_params["size"]), media_type="application/json")

    return Starlette(routes=[Route("/", answer)])


if __name__ == "__main__":
    serve()

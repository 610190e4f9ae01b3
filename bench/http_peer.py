"""A bare Starlette and uvicorn server that returns as many bytes as a request asks for, in its own process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def bare_starlette() -> Iterator[str]:
    """Run the server for the duration of the block, and yield its address."""
    command = [sys.executable, "-m", "bench.http_peer"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


def serve() -> None:
    """Print the address and serve."""
    import socket

    import uvicorn

    # asyncio disables Nagle's algorithm only for sockets declared as TCP; on others, responses are delayed by 40 ms.
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

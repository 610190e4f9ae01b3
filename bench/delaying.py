"""A TCP proxy that delays what it forwards, as a network between client and server does.

    python -m bench.delaying ADDRESS MILLISECONDS READY_FILE

listens on loopback and forwards connections to ADDRESS, which is on loopback too. Each direction takes the given time longer, so
a round trip takes twice that. The bandwidth is not limited, but what is under way is: `MAX_BYTES` per connection and direction.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from bench.serving import started

__all__ = ["delayed"]

MAX_BYTES: Final = 16 << 20
_PART_BYTES: Final = 256 << 10
_MAX_DELAY_S: Final = 1.0


@contextlib.contextmanager
def delayed(location: str, round_trip_s: float) -> Iterator[str]:
    """The location of a server behind a network on which a round trip takes this long; without delay, the server's own."""
    if not round_trip_s:
        yield location
        return
    scheme, _, address = location.rpartition("://")
    command = [sys.executable, "-m", "bench.delaying", address, str(round_trip_s * 500)]
    with started(command) as doors:
        yield f"{scheme}://{doors['address']}"


async def serve(address: str, delay_s: float, ready: Path) -> None:
    """Serve until the process ends. The ready file then has the address of the proxy."""
    host, _, port = address.rpartition(":")
    if host not in ("127.0.0.1", "localhost") or not 0 <= delay_s <= _MAX_DELAY_S:
        sys.exit("the proxy only delays connections on this machine, by up to a second")

    async def connected(client_reader: asyncio.StreamReader, client_writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_connection(host, int(port), limit=_PART_BYTES)
        try:
            await asyncio.gather(
                _forward(client_reader, server_writer, delay_s), _forward(server_reader, client_writer, delay_s)
            )
        except ConnectionError:  # one side is gone, so the other one has to go, too
            pass
        finally:
            client_writer.close()
            server_writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0, limit=_PART_BYTES)
    number = server.sockets[0].getsockname()[1]
    ready.write_text(json.dumps({"address": f"127.0.0.1:{number}"}))
    await server.serve_forever()


async def _forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_s: float) -> None:
    """Forward one direction until its end, which is forwarded, too."""
    loop = asyncio.get_running_loop()
    parts = asyncio.Queue[tuple[float, bytes]](MAX_BYTES // _PART_BYTES)

    async def read() -> None:
        data = b"."
        while data:
            try:
                data = await reader.read(_PART_BYTES)
            except ConnectionError:
                data = b""
            await parts.put((loop.time() + delay_s, data))

    reading = asyncio.create_task(read())
    try:
        while True:
            due, data = await parts.get()
            await asyncio.sleep(due - loop.time())
            if not data:
                writer.write_eof()
                return
            writer.write(data)
            await writer.drain()
    finally:
        reading.cancel()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], float(sys.argv[2]) / 1000, Path(sys.argv[3])))

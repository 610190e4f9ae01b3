"""The numbers of calls of typical statements stay within the limits in `calls.toml`."""

from __future__ import annotations

import json
from pathlib import Path

from live.calls import counted, prepare
from live.clients import Client
from live.servers import lake, serving


def test_statements_take_no_more_calls_than_their_limits(client: Client, folder: Path) -> None:
    with serving(lake, folder / "calls") as server, client.session() as session:
        doors = json.loads((server.folder / "home" / "ready.json").read_text())
        prepare(session, server.attach(), doors["rpc"])
        found = list(counted(session, server.attach(), f"{doors['http']}/metrics"))
    for statement, calls in found:
        print(f"{statement.name:<45} {calls.total():>3}  {', '.join(f'{n} {name}' for name, n in calls.items())}")
    above = {each.name: (calls.total(), each.calls) for each, calls in found if calls.total() > each.calls}
    assert above == {}, "more calls than calls.toml allows: avoid them, or raise the limit there and say why"

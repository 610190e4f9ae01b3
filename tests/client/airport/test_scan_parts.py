"""The parts of a scan: other processes read them."""

from __future__ import annotations

import pickle

import pyarrow as pa

from skiway.airport import CatalogBuilder, Server
from skiway.client import AirportClient, col


def test_pickled_parts_give_the_rows_of_the_scan() -> None:
    demo = CatalogBuilder("demo")
    rows = pa.table({"id": [1, 2, 3], "name": ["Ada", None, "Alan"]})
    demo.schema("s").table(name="people", schema=rows.schema)(lambda scan: rows)
    with Server(demo.build(), port=0) as server:
        with AirportClient(server.location, "demo", token="canary-4711") as client:
            bound = client.bind("s.people", columns=["name"], where=col("id") > 1)
            sent = [pickle.dumps(part) for part in bound.parts()]
            expected = bound.read().read_all()
        with AirportClient(server.location, "demo") as other:
            parts = [pickle.loads(each) for each in sent]
            found = pa.concat_tables(other.read_part(part).read_all() for part in parts)
    assert found == expected
    assert found["name"].to_pylist() == [None, "Alan"]
    assert [part.schema for part in parts] == [expected.schema]
    assert not any(b"canary" in each for each in sent)

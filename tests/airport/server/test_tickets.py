"""Descriptors: a name that cannot be sent in a header is never a path, and every name is found again."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skiway.airport import Catalog, CatalogBuilder, Commands, ScanOptions, Schema, Server, Table
from skiway.airport.memory import MemoryCatalog
from skiway.airport.server.tickets import ObjectPath, Ticket, TicketOffice, object_path
from skiway.airport.wire import protocol
from skiway.client import AirportClient, col
from skiway.errors import InvalidArgument, NotFound, PreconditionFailed
from skiway.model.flight_pb2 import FlightDescriptor

names = st.text(alphabet=st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)


@given(names, names, names, st.sampled_from(["", "id@1"]))
def test_object_is_found_by_its_descriptor(catalog: str, schema: str, name: str, binding: str) -> None:
    path = ObjectPath(catalog, schema, name, signature=binding)
    assert object_path(FlightDescriptor.FromString(path.descriptor().SerializeToString())) == path


@given(names, names)
def test_a_path_can_be_repeated_in_a_header(schema: str, name: str) -> None:
    assert protocol.can_carry("/".join(ObjectPath("c", schema, name).descriptor().path))


def test_plain_names_form_a_readable_path() -> None:
    assert list(ObjectPath("demo", "sales", "people").descriptor().path) == ["demo", "sales", "people"]
    typed = FlightDescriptor(type=FlightDescriptor.CMD, cmd='["demo", "sales", "Größe"]'.encode())
    assert object_path(typed) == ObjectPath("demo", "sales", "Größe")


@pytest.mark.parametrize("payload", [b"", b"\x90", b"\x92\xcf\xff\xff\xff\xff\xff\xff\xff\xff\x91\x2a"])
def test_signed_ticket_of_another_version_is_rejected(payload: bytes) -> None:
    office = TicketOffice(b"k" * 32)
    issued = office.issue(Ticket(None))[:1] + payload
    with pytest.raises(PreconditionFailed, match="another version of this server: request endpoints again"):
        office.redeem(issued + office._mac(issued))


@pytest.mark.parametrize("command", [b"", b" ", b'["a"]', b'["a","b","c","d"]', b"\xff"])
def test_paths_of_another_length_are_rejected(command: bytes) -> None:
    with pytest.raises(InvalidArgument, match=r"name a table as \[catalog, schema, table\]"):
        object_path(FlightDescriptor(type=FlightDescriptor.CMD, cmd=command))


@pytest.mark.parametrize("command", ["q", "{}", "[]", "[1]", '["a"', "SELECT 'Größe'"])
def test_other_commands_are_for_catalogs_that_answer_commands(command: str) -> None:
    descriptor = FlightDescriptor(type=FlightDescriptor.CMD, cmd=command.encode())
    path = object_path(descriptor)
    assert (path.kind, path.name, path.descriptor()) == ("command", command, descriptor)


class Echo(Catalog, Commands):
    """Answers a command with its words."""

    def schemas(self) -> list[Schema]:
        return []

    def command(self, text: str) -> Table:
        class Words(Table):
            name = "words"
            schema = pa.schema({"word": pa.string(), "length": pa.int64()})

            def scan(self, options: ScanOptions) -> Any:
                if text == "gone":
                    raise NotFound("there are no words")
                return [{"word": word, "length": len(word)} for word in text.split()]

        return Words()


def test_commands_are_answered_by_the_catalog() -> None:
    with Server(Echo(), port=0) as server, AirportClient(server.location, "") as db:
        assert db.take_flight("two words", columns=["length"]).read_all().to_pylist() == [{"length": 3}, {"length": 5}]
        with pytest.raises(NotFound, match="there are no words"):
            db.take_flight("gone").read_all()
    without = CatalogBuilder("").build()
    with (
        Server(without, port=0) as server,
        AirportClient(server.location, "") as db,
        pytest.raises(InvalidArgument, match="not a path"),
    ):
        db.take_flight("two words")


@pytest.mark.parametrize("name", ["Größe", "表", "🛬", "a\nb", "x" * 5000])
def test_tables_and_functions_with_any_name_are_reachable(name: str) -> None:
    catalog = CatalogBuilder("c")
    schema = catalog.schema(name)

    @schema.table(name=name, schema=pa.schema({"id": pa.int64()}))
    def rows(scan: ScanOptions) -> pa.Table:
        return pa.table({"id": [1, 2]})

    @schema.scalar_function(name=name)
    def twice(number: pa.Int64Array) -> pa.Int64Array:
        return pc.multiply(number, 2)

    with Server(catalog.build(), port=0) as server, AirportClient(server.location, "c") as db:
        assert db.scan((name, name), where=col("id") == 2).read_all().to_pydict() == {"id": [2]}
        assert db.call_scalar((name, name), pa.array([21])).to_pylist() == [42]
        assert not db.table((name, name)).descriptor.path


def test_in_memory_catalog_with_such_names_supports_all_statements() -> None:
    with Server(MemoryCatalog("c"), port=0) as server, AirportClient(server.location, "c") as db:
        db.create_schema("Größe")
        table = ("Größe", "🛬")
        db.create_table(table, pa.schema({"id": pa.int64()}))
        db.insert(table, pa.table({"id": [1, 2, 3]}))
        db.update(table, {"id": 4}, where=col("id") == 3)
        db.delete(table, where=col("id") == 1)
        assert sorted(db.scan(table).read_all()["id"].to_pylist()) == [2, 4]
        db.rename_table(table, "❄")
        db.drop_table(("Größe", "❄"))

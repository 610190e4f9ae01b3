"""The catalog listing that clients see, and how often it is built."""

from __future__ import annotations

import hashlib

import pyarrow as pa
import pytest

from airport.raw import Raw
from skiway.airport import (
    ANY,
    Catalog,
    CatalogBuilder,
    CatalogVersion,
    ColumnStatistics,
    LazyListing,
    Parameter,
    ScanOptions,
    Schema,
    Server,
    SharedListing,
    Table,
    TableInOutFunction,
    Versioned,
    find_rowid_column,
    project_schema,
)
from skiway.airport.server.discovery import ListingCache, object_infos
from skiway.airport.wire.protocol import (
    CatalogRequest,
    CatalogRoot,
    ObjectMetadata,
    VersionInfo,
    decode,
    encode,
    unseal,
)
from skiway.errors import AlreadyExists, InvalidArgument
from skiway.model import flight_pb2 as flight


def listing(raw: Raw, name: str = "demo") -> CatalogRoot:
    (body,) = raw.action("list_schemas", encode(CatalogRequest(name)))
    return unseal(body, CatalogRoot, "listing")


def objects(root: CatalogRoot, index: int = 0) -> dict[str, flight.FlightInfo]:
    contents = root.schemas[index].contents
    assert contents.serialized is not None
    infos = [flight.FlightInfo.FromString(data) for data in unseal(contents.serialized, list[bytes], "schema")]
    return {decode(info.app_metadata, ObjectMetadata, "object").name: info for info in infos}


def metadata(info: flight.FlightInfo) -> ObjectMetadata:
    return decode(info.app_metadata, ObjectMetadata, "object")


def schema_of(info: flight.FlightInfo) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(info.schema))


class Doubling(TableInOutFunction):
    name = "doubling"
    parameters = (Parameter("times", pa.int64()),)

    def schema_for(self, arguments, rows):
        return rows

    def open(self, arguments, rows):
        raise NotImplementedError


def demo() -> Catalog:
    builder = CatalogBuilder("demo", version=7)
    sales = builder.schema("sales", comment="orders and people", tags={"team": "x"})
    fields = [pa.field("id", pa.int64(), nullable=False, metadata={"comment": "key"}), pa.field("rowid", pa.int64())]

    @sales.table(schema=pa.schema(fields, metadata={"check_constraints": b"x"}), comment="all of them")
    def people(scan: ScanOptions):
        return ()

    @sales.scalar_function(volatility="volatile")
    def first(text: pa.StringArray, other: pa.Array) -> pa.StringArray:
        """The first one."""
        return text

    @sales.table_function(schema=pa.schema({"n": pa.int64()}))
    def numbers(upto: pa.Int64Scalar, *, step: int = 1):
        return ()

    sales.table_function(Doubling())
    builder.schema("empty")
    return builder.build()


def test_listing_contains_schemas_tables_and_functions() -> None:
    with Server(demo(), port=0) as server, Raw(server.location) as raw:
        root = listing(raw)
    assert root.version_info == VersionInfo(7, True)
    assert [(s.name, s.description, s.tags, s.is_default) for s in root.schemas] == [
        ("sales", "orders and people", {"team": "x"}, True),
        ("empty", "", {}, False),
    ]
    assert objects(root, 1) == {}
    found = objects(root)
    assert list(found) == ["people", "first", "numbers", "doubling"]
    assert metadata(found["people"]) == ObjectMetadata(
        type="table", catalog="demo", schema="sales", name="people", comment="all of them"
    )
    *address, kind, binding = found["people"].flight_descriptor.path
    assert (address, kind) == (["demo", "sales", "people"], "table")
    assert binding
    assert len(found["people"].endpoint) == 0


def test_hash_covers_the_contents_as_sent() -> None:
    with Server(demo(), port=0) as server, Raw(server.location) as raw:
        contents = listing(raw).schemas[0].contents
    assert contents.serialized is not None
    assert contents.sha256 == hashlib.sha256(contents.serialized).hexdigest()


def test_table_metadata_is_sent_and_the_row_id_is_marked() -> None:
    with Server(demo(), port=0) as server, Raw(server.location) as raw:
        schema = schema_of(objects(listing(raw))["people"])
    assert schema.metadata == {b"check_constraints": b"x"}
    assert schema.field("id").metadata == {b"comment": b"key"}
    assert not schema.field("id").nullable
    assert schema.field("rowid").metadata == {b"is_rowid": b"1"}


def test_functions_describe_their_parameters_in_the_clients_form() -> None:
    with Server(demo(), port=0) as server, Raw(server.location) as raw:
        found = objects(listing(raw))
    first = metadata(found["first"])
    assert first.type == "scalar_function"
    assert first.extra_data == encode({"stability": "volatile"})
    assert first.description == "The first one."
    assert first.input_schema is not None
    inputs = pa.ipc.read_schema(pa.py_buffer(first.input_schema))
    assert [(f.name, f.type, f.metadata) for f in inputs] == [
        ("text", pa.string(), None),
        ("other", pa.null(), {b"is_any_type": b"1"}),
    ]
    assert schema_of(found["first"]) == pa.schema({"result": pa.string()})
    numbers = metadata(found["numbers"])
    assert numbers.type == "table_function"
    inputs = pa.ipc.read_schema(pa.py_buffer(numbers.input_schema))
    assert [(f.name, f.type, f.metadata) for f in inputs] == [
        ("upto", pa.int64(), None),
        ("step", pa.int64(), {b"is_named_parameter": b"1"}),
    ]
    doubling = pa.ipc.read_schema(pa.py_buffer(metadata(found["doubling"]).input_schema))
    assert doubling.field(-1).metadata == {b"is_table_type": b"1"}


def test_an_empty_catalog_lists_nothing() -> None:
    with Server(CatalogBuilder("demo").build(), port=0) as server, Raw(server.location) as raw:
        assert listing(raw).schemas == []


def test_catalog_version_is_always_complete() -> None:
    with Server(demo(), port=0) as server, Raw(server.location) as raw:
        (body,) = raw.action("catalog_version", encode(CatalogRequest("demo")))
        assert decode(body, dict, "x") == {"catalog_version": 7, "is_fixed": True}
        (body,) = raw.action("create_transaction", encode(CatalogRequest("demo")))
        assert decode(body, dict, "x") == {"identifier": None}


# -- how often listings are built -------------------------------------------------------------------------------------


class Counting(Catalog):
    name = "demo"

    def __init__(self) -> None:
        self.built = 0

    def schemas(self) -> list[Schema]:
        self.built += 1
        return []


class CountingVersioned(Counting, Versioned):
    number = 1

    def version(self) -> CatalogVersion:
        return CatalogVersion(self.number)


class CountingShared(CountingVersioned, SharedListing):
    key = "all"

    def visibility_key(self) -> str:
        return self.key


def test_versioned_listing_is_built_once_per_version() -> None:
    catalog, listings = CountingVersioned(), ListingCache()
    for _ in range(3):
        listings.list_schemas(catalog, "demo")
    assert catalog.built == 1
    catalog.number = 2
    listings.list_schemas(catalog, "demo")
    listings.list_schemas(catalog, "other name")
    assert catalog.built == 3


def test_callers_with_equal_visibility_keys_share_a_listing() -> None:
    catalog, listings = CountingShared(), ListingCache()
    listings.list_schemas(catalog, "demo")
    catalog.key = "few"
    listings.list_schemas(catalog, "demo")
    catalog.key = "all"
    listings.list_schemas(catalog, "demo")
    assert catalog.built == 2


def test_catalog_without_a_version_is_listed_each_time() -> None:
    catalog, listings = Counting(), ListingCache()
    listings.list_schemas(catalog, "demo")
    listings.list_schemas(catalog, "demo")
    assert catalog.built == 2


def test_listing_built_while_the_version_changed_is_not_cached() -> None:
    class Restless(CountingVersioned):
        def schemas(self):
            self.number += 1
            return super().schemas()

    catalog, listings = Restless(), ListingCache()
    listings.list_schemas(catalog, "demo")
    listings.list_schemas(catalog, "demo")
    assert catalog.built == 2


def test_number_of_cached_listings_is_limited() -> None:
    catalog, listings = CountingShared(), ListingCache(size=2)
    for key in ("a", "b", "c", "a"):
        catalog.key = key
        listings.list_schemas(catalog, "demo")
    assert catalog.built == 4


# -- lazy schemas -----------------------------------------------------------------------------------------------------


class Numbers(Table):
    schema = pa.schema({"n": pa.int64()})

    def __init__(self, name: str) -> None:
        self.name = name

    def scan(self, options: ScanOptions) -> pa.Table:
        raise NotImplementedError


class Area(Schema, LazyListing):
    def __init__(self, name: str, tables: list[str], *, lazy: bool) -> None:
        self.name, self._tables, self._lazy, self.listed = name, tables, lazy, 0

    @property
    def is_lazy(self) -> bool:
        return self._lazy

    def tables(self) -> list[Table]:
        self.listed += 1
        return [Numbers(name) for name in self._tables]


class Areas(CountingShared):
    """Two schemas; callers with the visibility key "few" see other tables than those with the key "all"."""

    def __init__(self, *, lazy: bool) -> None:
        super().__init__()
        self.first = {key: Area("first", [f"{key}_1", f"{key}_2"], lazy=lazy) for key in ("all", "few")}
        self.second = Area("second", ["other"], lazy=lazy)

    def schemas(self) -> list[Schema]:
        self.built += 1
        return [self.first[self.key], self.second]


def names_listed(listings: ListingCache, catalog: Catalog) -> dict[str, list[str] | None]:
    """The names of the objects in each schema of a listing; None if the listing leaves them out."""
    root = unseal(listings.list_schemas(catalog, "demo"), CatalogRoot, "listing")
    shown = [entry.contents.serialized is not None for entry in root.schemas]
    return {
        entry.name: list(objects(root, index)) if shown[index] else None for index, entry in enumerate(root.schemas)
    }


def test_lazy_schema_is_part_of_listings_after_its_first_use() -> None:
    catalog, listings = Areas(lazy=True), ListingCache()
    assert names_listed(listings, catalog) == {"first": None, "second": None}
    assert catalog.first["all"].listed == 0
    for _ in range(3):
        listed = list(listings.object_infos(catalog, "demo", "first"))
    assert listed == [info.SerializeToString() for info in object_infos(catalog.first["all"], "demo")]
    assert catalog.first["all"].listed == 2, "once for the server, and once for this test"
    assert names_listed(listings, catalog) == {"first": ["all_1", "all_2"], "second": None}
    list(listings.object_infos(catalog, "demo", "second"))
    assert listings.list_schemas(catalog, "demo") == ListingCache().list_schemas(Areas(lazy=False), "demo")
    assert list(listings.object_infos(catalog, "demo", "third")) == []


def test_lazy_schema_is_listed_again_for_each_version_and_for_callers_who_see_something_else() -> None:
    catalog, listings = Areas(lazy=True), ListingCache()
    listed = list(listings.object_infos(catalog, "demo", "first"))
    catalog.key = "few"
    assert names_listed(listings, catalog) == {"first": None, "second": None}
    others = [flight.FlightInfo.FromString(data) for data in listings.object_infos(catalog, "demo", "first")]
    assert [metadata(info).name for info in others] == ["few_1", "few_2"]
    catalog.key, catalog.number = "all", 2
    assert names_listed(listings, catalog) == {"first": None, "second": None}
    catalog.first["all"]._tables.pop()
    assert list(listings.object_infos(catalog, "demo", "first")) == listed[:1]


def test_schema_that_is_not_lazy_is_listed_at_once_and_again_with_each_call() -> None:
    catalog, listings = Areas(lazy=False), ListingCache()
    assert names_listed(listings, catalog) == {"first": ["all_1", "all_2"], "second": ["other"]}
    listed = [list(listings.object_infos(catalog, "demo", "first")) for _ in range(2)]
    assert listed[0] == listed[1]
    assert catalog.first["all"].listed == 3


def test_lazy_schemas_of_a_catalog_without_a_version_are_listed_with_each_call() -> None:
    class Unversioned(Counting):
        area = Area("first", ["t"], lazy=True)

        def schemas(self) -> list[Schema]:
            return [self.area]

    catalog, listings = Unversioned(), ListingCache()
    assert len(list(listings.object_infos(catalog, "demo", "first"))) == 1
    assert names_listed(listings, catalog) == {"first": None}


def test_listing_that_is_built_while_a_lazy_schema_is_listed_is_not_kept() -> None:
    catalog, listings = Areas(lazy=True), ListingCache()
    schemas = catalog.schemas

    def interrupted() -> list[Schema]:
        catalog.schemas = schemas  # type: ignore[method-assign]
        list(listings.object_infos(catalog, "demo", "first"))
        return schemas()

    catalog.schemas = interrupted  # type: ignore[method-assign]
    assert names_listed(listings, catalog) == {"first": None, "second": None}
    assert names_listed(listings, catalog) == {"first": ["all_1", "all_2"], "second": None}


# -- builder and helpers ----------------------------------------------------------------------------------------------


def test_builder_rejects_unreachable_and_duplicate_names() -> None:
    builder = CatalogBuilder("demo")
    for name in ("main", "Main"):
        with pytest.raises(InvalidArgument, match=f"named '{name}'"):
            builder.schema(name)
    with pytest.raises(InvalidArgument, match="name"):
        builder.schema("")
    schema = builder.schema("s")
    with pytest.raises(AlreadyExists):
        builder.schema("s")
    with pytest.raises(InvalidArgument, match="schema="):
        schema.table()  # type: ignore[call-overload]
    table = schema.table(schema=pa.schema({"a": pa.int64()}), name="t")
    table(lambda scan: ())
    with pytest.raises(AlreadyExists, match=r"s\.t"):
        table(lambda scan: ())
    with pytest.raises(InvalidArgument, match="cannot derive an Arrow type"):
        schema.scalar_function(lambda x: x)


def test_overloads_must_differ() -> None:
    schema = CatalogBuilder("demo").schema("s")

    def f(x: pa.Int64Array) -> pa.Int64Array:
        return x

    def g(x: pa.StringArray) -> pa.StringArray:
        return x

    schema.scalar_function(f, name="f")
    schema.scalar_function(g, name="f")
    with pytest.raises(AlreadyExists, match="overloads"):
        schema.scalar_function(f, name="f")


def test_named_parameters_that_the_client_drops_are_rejected() -> None:
    with pytest.raises(InvalidArgument, match="headers"):
        Parameter("headers", pa.string(), named=True)
    with pytest.raises(InvalidArgument, match="ANY"):
        Parameter("x", ANY, named=True)


def test_project_schema() -> None:
    schema = pa.schema({"a": pa.int64(), "b": pa.string()}, metadata={"k": "v"})
    assert project_schema(schema, None) is schema
    projected = project_schema(schema, ["b"])
    assert projected.names == ["b"]
    assert projected.metadata == {b"k": b"v"}
    assert project_schema(schema, ["b", "a"]).names == ["b", "a"]
    with pytest.raises(InvalidArgument, match="'c'"):
        project_schema(schema, ["c"])


def test_find_rowid_column() -> None:
    marked = pa.field("id", pa.int64(), metadata={"is_rowid": "1"})
    assert find_rowid_column(pa.schema([pa.field("a", pa.int64()), marked])) == 1
    assert find_rowid_column(pa.schema([pa.field("rowid", pa.int64()), marked])) == 1
    assert find_rowid_column(pa.schema({"a": pa.int64(), "rowid": pa.int64()})) == 1
    assert find_rowid_column(pa.schema({"ROWID": pa.int64()})) is None
    assert find_rowid_column(pa.schema([pa.field("x", pa.int64(), metadata={"is_rowid": ""})])) is None


def test_table_has_a_projected_schema() -> None:
    class T(Table):
        name = "t"
        schema = pa.schema({"a": pa.int64(), "b": pa.string()})

        def scan(self, options):
            return ()

    assert T().projected_schema(["b"]).names == ["b"]
    assert ColumnStatistics().min is None

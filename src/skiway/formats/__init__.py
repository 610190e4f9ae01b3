"""Read Iceberg, Delta and Parquet tables through one interface; write Iceberg tables.

    from skiway.formats import open_source

    with open_source("parquet", "./data") as source:
        people = source.load((), "people")
        people.read(people.current()).read_all()

A table that cannot be read correctly raises an error. Libraries that take long to load are imported when a source of
their kind is opened.
"""

from skiway.foundation import extras

extras.check("lake")

from skiway.airport.filters import Filter
from skiway.formats.canonical import canonical_columns, partition_json
from skiway.formats.delta.upkeep import RewritableTable
from skiway.formats.files import FileCache, Found
from skiway.formats.opening import OpenedTable, open_source
from skiway.formats.readers.parquet import MatchingPart
from skiway.formats.readers.scanning import FILE_ORDINAL, ROW_POSITION
from skiway.formats.schemas import TableSchema, element_leaves, field_id, leaves
from skiway.formats.source import (
    FILE_COLUMNS,
    Content,
    Format,
    Namespace,
    Packed,
    PartitionField,
    PartitionSpec,
    SizedFile,
    Snapshot,
    Source,
    TableHandle,
    TableName,
    WholeFile,
    data_files,
)
from skiway.formats.statistics import ColumnUnits, bound_type
from skiway.security.source_access import Location, location

__all__ = [
    "FILE_COLUMNS",
    "FILE_ORDINAL",
    "ROW_POSITION",
    "ColumnUnits",
    "Content",
    "FileCache",
    "Filter",
    "Format",
    "Found",
    "Location",
    "MatchingPart",
    "Namespace",
    "OpenedTable",
    "Packed",
    "PartitionField",
    "PartitionSpec",
    "RewritableTable",
    "SizedFile",
    "Snapshot",
    "Source",
    "TableHandle",
    "TableName",
    "TableSchema",
    "WholeFile",
    "bound_type",
    "canonical_columns",
    "data_files",
    "element_leaves",
    "field_id",
    "leaves",
    "location",
    "open_source",
    "partition_json",
]

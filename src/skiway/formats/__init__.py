"""Tables of others: Iceberg, Delta and Parquet behind one small interface.

    from skiway.formats import open_source

    with open_source("parquet", "./data") as source:
        people = source.load((), "people")
        people.read(people.current()).read_all()

What cannot be read rightly is refused, never read wrongly. Heavy libraries are loaded when a source of their kind is
opened.
"""

import skiway.extras.lake  # noqa: F401 - names the extra to install
from skiway.formats.opening import open_source
from skiway.formats.parquet.reading import FILE_ORDINAL, ROW_POSITION
from skiway.formats.schemas import TableSchema
from skiway.formats.source import (
    FILE_COLUMNS,
    Content,
    Format,
    Namespace,
    PartitionField,
    PartitionSpec,
    Snapshot,
    Source,
    TableHandle,
    TableName,
    data_files,
)

__all__ = [
    "FILE_COLUMNS",
    "FILE_ORDINAL",
    "ROW_POSITION",
    "Content",
    "Format",
    "Namespace",
    "PartitionField",
    "PartitionSpec",
    "Snapshot",
    "Source",
    "TableHandle",
    "TableName",
    "TableSchema",
    "data_files",
    "open_source",
]

"""Objects as the index reads them from the store: what is searched, and what totals are made of.

The server itself reads them, so nothing is hidden here. `showing` returns what callers see.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from sys import getsizeof
from typing import Final

from skiway.metastore.records import keys
from skiway.metastore.records.kinds import COLUMN_TAGS, TABLE, VIEW
from skiway.metastore.records.policies import current_columns
from skiway.metastore.records.realm import Realm
from skiway.metastore.resources import tables, views
from skiway.metastore.search.ranking import PART, Document, Tags, column_comments
from skiway.metastore.statistics import size_of
from skiway.model import v1

__all__ = ["Entry", "all_tags", "container", "document_of", "format_of", "read_table", "read_view", "relations_in"]

OVERHEAD: Final = 600
"""About how many bytes an entry takes besides its text."""

TagsByTable = Mapping[str, v1.ColumnTags]


@dataclass(slots=True)
class Entry:
    """An object in the index. `text` is the one of its document; that of a table or view has no path until it is in an index."""

    kind: int
    id: str
    name: str
    text: str
    format: int = v1.TF_UNSPECIFIED
    rows: int | None = None
    size_bytes: int | None = None
    tags: Tags = ()
    is_damaged: bool = False
    rows_are_bound: bool = False

    @property
    def weight(self) -> int:
        """About how many bytes it takes."""
        return OVERHEAD + getsizeof(self.text) + sum(getsizeof(tag) for _, tag in self.tags)

    def move(self, path: tuple[str, ...]) -> None:
        """Change the path of what contains it."""
        _, _, rest = self.text.partition(PART)
        start, _, _ = Document.at(self.kind, (*path, self.name)).text().partition(PART)
        self.text = f"{start}{PART}{rest}"


def container(kind: int, of: v1.Catalog | v1.Namespace, path: tuple[str, ...]) -> Entry:
    """The entry of a catalog or a namespace."""
    text = Document.at(kind, path, comment=of.description).text()
    return Entry(kind, of.resource_id.id, path[-1], text, is_damaged=bool(of.damage))


def relations_in(realm: Realm, namespace_id: str, tags: TagsByTable) -> Iterator[Entry]:
    """The entries of all tables and views of a namespace. `tags` are those of all tables."""
    for table in tables.scan(realm, namespace_id):
        yield _table(realm, table, tags.get(table.resource_id.id))
    for view in views.scan(realm, namespace_id):
        yield _view(view)


def all_tags(realm: Realm) -> TagsByTable:
    """The tags of the columns of all tables that have some."""
    found = realm.all(COLUMN_TAGS).entries(keys.column_tags(realm.account_id))
    return {each.value.table_id.id: each.value for each in found}


def read_table(realm: Realm, table_id: str) -> tuple[str, Entry] | None:
    """The id of the namespace of a table, and its entry; None if it does not exist."""
    found = realm.all(TABLE).entry(realm.stores.pointers.get(keys.table(realm.account_id, table_id)))
    if found is None:
        return None
    tags = realm.all(COLUMN_TAGS).find(keys.column_tags(realm.account_id, table_id))
    return found.value.namespace_id.id, _table(realm, found.value, None if tags is None else tags.value)


def read_view(realm: Realm, view_id: str) -> tuple[str, Entry] | None:
    """As `read_table`, for a view."""
    found = realm.all(VIEW).entry(realm.stores.pointers.get(keys.view(realm.account_id, view_id)))
    return None if found is None else (found.value.namespace_id.id, _view(found.value))


def _table(realm: Realm, table: v1.Table, tags: v1.ColumnTags | None) -> Entry:
    size = size_of(realm, table)
    known = size is not None and not size.damage
    return Entry(
        v1.RK_TABLE,
        table.resource_id.id,
        table.display_name,
        document_of(table, (table.display_name,)).text(),
        format_of(table),
        size.row_count if size is not None and known else None,
        size.total_size_bytes if size is not None and known else None,
        () if tags is None else _tags(table, tags.columns),
        bool(table.damage) or (size is not None and bool(size.damage)),
        size is not None and size.row_count_is_bound,
    )


def _view(view: v1.View) -> Entry:
    text = document_of(view, (view.display_name,)).text()
    return Entry(v1.RK_VIEW, view.resource_id.id, view.display_name, text, is_damaged=bool(view.damage))


def document_of(relation: v1.Table | v1.View, path: tuple[str, ...]) -> Document:
    """What is searched of a table or view."""
    if isinstance(relation, v1.View):
        return Document.at(v1.RK_VIEW, path, comment=relation.description)
    comments = column_comments(relation.schema_json)
    comment = " ".join(filter(None, (relation.description, *comments.values())))
    return Document.at(v1.RK_TABLE, path, tuple(comments), comment)


def format_of(table: v1.Table) -> v1.TableFormat.ValueType:
    """The format of a table. Managed tables are Iceberg tables."""
    return v1.TF_ICEBERG if table.metadata_location else table.upstream.format


def _tags(table: v1.Table, tagged: Iterable[v1.TaggedColumn]) -> Tags:
    """The tags with the present names of their columns."""
    now = {number: name for name, number in current_columns(table).items()}
    return tuple((now.get(each.column_id, each.name), tag) for each in tagged for tag in each.tags)

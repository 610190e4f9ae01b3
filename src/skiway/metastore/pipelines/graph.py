"""The order of the tables of a pipeline: each after the tables of the pipeline that it reads."""

from __future__ import annotations

from collections.abc import Sequence
from graphlib import CycleError, TopologicalSorter

from skiway.errors import InvalidArgument
from skiway.formats import TableName
from skiway.metastore.pipelines.projects import DerivedTable, Project, key_of

__all__ = ["in_order", "read_tables"]


def in_order(project: Project) -> list[DerivedTable]:
    """The tables of the project, each after those that it reads. Raise `InvalidArgument` if tables read each other."""
    graph = {key: sorted(map(key_of, read_tables(project, table))) for key, table in sorted(project.tables.items())}
    for key, reads in graph.items():
        if key in reads:
            name = project.tables[key].name
            raise InvalidArgument(
                f"table {name} reads itself, in {project.tables[key].file}: read the tables that it is made from",
                key="pipeline.cycle",
                cycle=str(name),
            )
    try:
        ordered = list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        # The error has each table before one that reads it.
        names = [str(project.tables[key].name) for key in reversed(error.args[1])]
        raise InvalidArgument(
            f"tables of pipeline {project.name} read each other: {' reads '.join(names)}; remove one of these reads",
            key="pipeline.cycle",
            cycle=" > ".join(names),
        ) from None
    return [project.tables[key] for key in ordered]


def read_tables(project: Project, table: DerivedTable) -> Sequence[TableName]:
    """The tables of the same pipeline that a table reads."""
    return [name for name in table.reads.values() if key_of(name) in project.tables]

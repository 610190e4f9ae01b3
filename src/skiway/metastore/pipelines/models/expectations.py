"""Expectations: rules about the rows of a derived table that are evaluated before the rows are published.

    new rows  ->  one boolean column for each rule  ->  good rows | rows in quarantine, counts  ->  verdicts  ->  one commit

The same pass over the rows evaluates the rules and writes the files. Rows that break a rule with `drop` go to a table of their own, with
the reason. If rows break a rule with `fail`, nothing is published. The verdicts are in the summary of the snapshot that has the rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from skiway.errors import ConstraintViolation, InvalidArgument
from skiway.formats import TableName
from skiway.formats.iceberg.writing.data_files import DataFileWriter
from skiway.metastore.ingest.rows import Target
from skiway.metastore.pipelines.models.declarations import Expectation, literal, predicate
from skiway.metastore.pipelines.spark_sql import sql_text
from skiway.metastore.quality.verdicts import Verdicts

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile

QUARANTINE: Final = "_quarantine"
"""The end of the name of a table with the rows that were dropped from another."""

QUARANTINE_OF: Final = "skiway.pipeline.quarantine-of"
"""The property of a quarantine with the id of its table."""

REASON: Final = "skiway_reason"
"""The column of a quarantine with the names of the rules that a row breaks."""

CARRIED: Final = "$carried"
"""The reason of a row that was in quarantine before and stays there; NULL for all other rows."""


def quoted(name: str) -> str:
    """A name in the SQL of Spark."""
    return sql_text(exp.to_identifier(name, quoted=True))


def flag(number: int) -> str:
    """The column that says whether a row breaks a rule."""
    return f"$broken{number}"


def parents(rules: Sequence[Expectation]) -> dict[int, TableName]:
    """The tables that the values of columns must be in, as they are written, by the number of the rule."""
    found = {}
    for number, rule in enumerate(rules):
        if rule.kind == "relationships":
            *path, name = rule.to.split(".")
            found[number] = TableName(tuple(path), name)
    return found


def judged_rows(rules: Sequence[Expectation], rows: str, views: Mapping[TableName, str], kept: str = "") -> str:
    """A query with the rows of a relation and what they break. `views` are the names of the tables that they must be in.

    `kept` is the relation of the rows that the table has and keeps, among which new keys must be unique, too.
    """
    above = parents(rules)
    joins, tests = list[str](), dict[int, str]()
    for number, rule in enumerate(rules):
        column = f"n.{quoted(rule.columns[0])}" if rule.columns else ""
        match rule.kind:
            case "not_null":
                tests[number] = f"{column} IS NULL"
            case "accepted_values":
                tests[number] = f"NOT {column} IN ({', '.join(map(literal, rule.values))})"
            case "condition":
                tests[number] = f"NOT ({predicate(rule.condition, 'n')})"
            case "relationships":
                field, parent = quoted(rule.field), quoted(views[above[number]])
                known = f"SELECT DISTINCT {field} AS `$key` FROM {parent}"
                joins.append(f"LEFT JOIN ({known}) AS p{number} ON p{number}.`$key` = {column}")
                tests[number] = f"{column} IS NOT NULL AND p{number}.`$key` IS NULL"
    found = f"SELECT n.*{_flags(tests)} FROM {rows} AS n {' '.join(joins)}"
    keys = {number: rule.columns for number, rule in enumerate(rules) if rule.kind == "unique"}
    if not keys:
        return found
    dropped = " OR ".join(f"n.`{flag(number)}`" for number in tests if rules[number].on_failure == "drop") or "FALSE"
    return _with_repeated(found, keys, dropped, kept)


def _with_repeated(rows: str, keys: Mapping[int, Sequence[str]], dropped: str, kept: str) -> str:
    """The query with rows, and whether their keys occur in several of those that other rules have not `dropped`."""
    joins, tests = list[str](), dict[int, str]()
    for number, names in keys.items():
        columns = [f"n.{quoted(name)}" for name in names]
        test = f"count(*) OVER (PARTITION BY {', '.join(columns)}, {dropped}) > 1"
        test += "".join(f" OR {column} IS NULL" for column in columns)
        if kept:
            same = " AND ".join(f"u{number}.{quoted(name)} = n.{quoted(name)}" for name in names)
            known = f"SELECT DISTINCT {', '.join(map(quoted, names))}, TRUE AS `$known` FROM {kept}"
            joins.append(f"LEFT JOIN ({known}) AS u{number} ON {same}")
            test += f" OR u{number}.`$known`"
        tests[number] = f"NOT ({dropped}) AND ({test})"
    return f"SELECT n.*{_flags(tests)} FROM ({rows}) AS n {' '.join(joins)}"


def _flags(tests: Mapping[int, str]) -> str:
    return "".join(f", coalesce({test}, FALSE) AS `{flag(number)}`" for number, test in tests.items())


@dataclass(frozen=True, slots=True)
class SplitRows:
    """Data files with good rows and with rows in quarantine, and how many rows break each rule. `rows` were judged."""

    good: tuple[DataFile, ...] = ()
    bad: tuple[DataFile, ...] = ()
    rows: int = 0
    broken: tuple[int, ...] = ()

    @classmethod
    def all(cls, parts: Iterable[SplitRows], rules: int) -> SplitRows:
        """The parts together, with the counts of all rules. There may be none: Spark runs no task for an empty result."""
        made = list(parts)
        return cls(
            tuple(file for part in made for file in part.good),
            tuple(file for part in made for file in part.bad),
            sum(part.rows for part in made),
            tuple(sum(part.broken[rule] for part in made) for rule in range(rules)),
        )


@dataclass(frozen=True, slots=True)
class Split:
    """Writes judged rows into new files of a table, and those that break a rule with `drop` into files of its quarantine."""

    rules: tuple[tuple[str, bool], ...]
    """The names of the rules, and whether rows that break them are dropped."""
    target: Target
    quarantine: Target | None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> SplitRows:
        """Write the rows, in the order of the columns of the target."""
        names = self.target.columns.names
        counts, total = [0] * len(self.rules), 0
        aside = self.quarantine or self.target
        with (
            DataFileWriter(self.target.files, self.target.metadata) as good,
            DataFileWriter(aside.files, aside.metadata) as bad,
        ):
            for batch in batches:
                rows = pa.RecordBatch.from_arrays(batch.columns[: len(names)], names=names)
                broken = [batch.column(flag(number)) for number in range(len(self.rules))]
                carried = batch.column(CARRIED) if CARRIED in batch.schema.names else None
                # Rows that are only written again have NULL.
                total += len(broken[0]) - broken[0].null_count if broken else batch.num_rows
                reasons = self._reasons(broken, carried, batch.num_rows)
                for number, (mask, (_, drops)) in enumerate(zip(broken, self.rules, strict=True)):
                    # The other rules are about the rows that are not dropped.
                    counts[number] += mask.true_count if drops else pc.and_(mask, reasons.is_null()).true_count
                good.write(rows.filter(reasons.is_null()))
                if reasons.null_count < len(reasons):
                    apart = rows.append_column(pa.field(REASON, pa.string()), reasons)
                    bad.write(apart.filter(reasons.is_valid()))
            return SplitRows(tuple(good.close()), tuple(bad.close()), total, tuple(counts))

    def _reasons(self, broken: Sequence[pa.Array], carried: pa.Array | None, size: int) -> pa.Array:
        """Why rows are dropped; NULL for those that are kept."""
        text = pa.nulls(size, pa.string())
        for (name, drops), mask in zip(self.rules, broken, strict=True):
            if drops and mask.true_count:
                more = pc.coalesce(pc.binary_join_element_wise(text, name, ", "), name)
                text = pc.if_else(mask.fill_null(False), more, text)
        return text if carried is None else pc.coalesce(text, carried.cast(pa.string()))


def verdicts_on(rules: Sequence[Expectation], found: SplitRows) -> Verdicts:
    """The verdicts on rows that were judged."""
    return {rule.name: (broken, found.rows) for rule, broken in zip(rules, found.broken, strict=False)}


def require_met(rules: Sequence[Expectation], verdicts: Verdicts, table: TableName) -> None:
    """Raise `ConstraintViolation` if rows break a rule that keeps them from being published."""
    found = [
        f"{rule.place}: {verdicts[rule.name][0]} of {verdicts[rule.name][1]} rows break {rule.name} ({rule.expected})"
        for rule in rules
        if rule.on_failure == "fail" and verdicts[rule.name][0]
    ]
    if found:
        raise ConstraintViolation(
            f"{'; '.join(found)}; so the new rows of {table} were not published: correct them where they come from, or choose "
            "on_failure: drop or warn",
            key="pipeline.expectation",
            table=str(table),
        )


def require_columns(rules: Sequence[Expectation], columns: Sequence[str]) -> None:
    """Raise `InvalidArgument` if a rule is about a column that the table does not have."""
    known = {name.casefold() for name in columns}
    for rule in rules:
        missing = next((name for name in rule.columns if name.casefold() not in known), None)
        if missing is not None:
            raise InvalidArgument(
                f"{rule.place}: {rule.name} is about column {missing!r}, which the table does not have; its columns are "
                f"{', '.join(columns)}",
                key="pipeline.file",
                file=rule.place.partition(",")[0],
            )

"""What a refresh tells: notes of the run, results of rules, and lineage."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

import pyarrow.compute as pc

from skiway.errors import SkiwayError
from skiway.formats.iceberg.metadata import summary_properties
from skiway.metastore.managed.states import ManagedTable
from skiway.metastore.pipelines.inputs import Input
from skiway.metastore.pipelines.models.declarations import Expectation
from skiway.metastore.quality.expectations import ExpectationRule, record
from skiway.metastore.quality.verdicts import Verdicts, read_verdicts
from skiway.metastore.records.branches import branch_of
from skiway.metastore.records.realm import Realm
from skiway.model import v1
from skiway.telemetry.lineage import Assertion, Dataset

log = logging.getLogger("skiway.pipelines")


def with_earlier(output: ManagedTable | None, verdicts: Verdicts, *, adds: bool) -> Verdicts:
    """The verdicts on all rows of a table. If the new rows were only added, the earlier verdicts still hold."""
    if not adds or output is None:
        return verdicts
    current = output.metadata.current_snapshot()
    before = {} if current is None else read_verdicts(summary_properties(current))
    return {
        name: (broken + before.get(name, (0, 0))[0], rows + before.get(name, (0, 0))[1])
        for name, (broken, rows) in verdicts.items()
    }


def record_verdicts(
    realm: Realm,
    name: str,
    rules: Sequence[Expectation],
    output: ManagedTable,
    verdicts: Verdicts,
    *,
    snapshot_id: int | None,
) -> None:
    """Show the verdicts on what is called `name` as results of quality rules. The snapshot has them, too, so nothing depends on it.

    Branches have no rules of their own, so nothing is shown on one.
    """
    if branch_of(realm.stores) is not None:
        return
    declared = [
        ExpectationRule(
            f"{name}.{rule.name}",
            v1.ExpectationCheck(
                name=rule.name, expected=rule.expected, on_failure=rule.on_failure, columns=rule.columns
            ),
        )
        for rule in rules
    ]
    try:
        record(realm, output.table.resource_id, declared, verdicts, snapshot_id=snapshot_id)
    except SkiwayError as error:
        log.warning("the results of the expectations of %s were not stored: %s", name, error)


def notes_on(name: str, rules: Sequence[Expectation], verdicts: Verdicts) -> Iterator[str]:
    """What a run says about rules that rows break without failing the table `name`."""
    for rule in rules:
        broken, rows = verdicts.get(rule.name, (0, 0))
        if broken:
            done = "are in quarantine" if rule.on_failure == "drop" else "were published"
            yield f"{name}: {broken} of {rows} rows break {rule.name} ({rule.expected}) and {done}"


def dataset_of(read: Input) -> Dataset:
    """An input, as events of lineage name it."""
    files = read.files
    rows, size = (
        (None, None) if files is None else (pc.sum(files[each]).as_py() or 0 for each in ("row_count", "size_bytes"))
    )
    version = "" if read.snapshot is None else str(read.snapshot.id)
    count = None if files is None else files.num_rows
    return Dataset(".".join(read.path), read.columns, version, rows, size, count)


def assertions_on(rules: Sequence[Expectation], verdicts: Verdicts) -> list[Assertion]:
    """What a run has found about rules, as events of lineage name it."""
    return [
        Assertion(
            rule.name,
            rule.expected,
            rule.columns,
            not verdicts[rule.name][0],
            f"{verdicts[rule.name][0]} of {verdicts[rule.name][1]} rows break it",
            rule.on_failure == "fail",
        )
        for rule in rules
        if rule.name in verdicts
    ]

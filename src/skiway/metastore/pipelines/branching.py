"""Runs of pipelines on branches of the lake: on one that exists, or on one of their own, which is merged at the end.

A run on a branch of its own publishes all tables together. If one fails, or a rule about one, nothing is merged, and the branch stays so
that people can look at it. The next run of the pipeline deletes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

from skiway.errors import NotFound, SkiwayError
from skiway.metastore import branches
from skiway.metastore.pipelines.inputs import LakeTables
from skiway.metastore.pipelines.models.reporting import record_verdicts
from skiway.metastore.pipelines.models.statements import FunctionEngine, QueryEngine
from skiway.metastore.pipelines.projects import DerivedTable
from skiway.metastore.pipelines.refreshing import PipelineRun
from skiway.metastore.quality import rules
from skiway.metastore.quality.verdicts import read_verdicts
from skiway.metastore.reconcile.outcomes import TRANSIENT, Control, Outcome
from skiway.metastore.records import keys
from skiway.metastore.records.errors import failure
from skiway.metastore.records.kinds import JOB
from skiway.metastore.records.names import BRANCH_MARK
from skiway.metastore.records.realm import Realm
from skiway.model import v1

RUNNING: Final = (v1.JS_QUEUED, v1.JS_RUNNING)
_MADE_FOR: Final = "a run of pipeline "

Refresh = Callable[[PipelineRun], Outcome]


def tables_on(tables: LakeTables, branch: str, *, is_own: bool = False) -> LakeTables:
    """The same tables as they are on a branch of the catalog of the pipeline, by its name with or without that of the catalog."""
    name = branch if BRANCH_MARK in branch else f"{tables.catalog}{BRANCH_MARK}{branch}"
    found = branches.on_branch(tables.realm, tables.warehouse, name)
    if found is None or branches.split_name(name)[0] != tables.catalog:
        raise failure(NotFound, "branch.by.name.missing", catalog=tables.catalog, name=branch)
    return replace(tables, realm=found[0], elsewhere=tables.realm, is_own_branch=is_own)


def run_on_own_branch(
    run: PipelineRun,
    run_id: str,
    engine: QueryEngine,
    control: Control,
    functions: FunctionEngine | None = None,
) -> Outcome:
    """Refresh all tables on a branch, check their rules there, and merge it. The owner of the pipeline does all of this."""
    main, name = run.tables, f"{run.project.name[:80]}-{run_id[:18]}"
    full = f"{main.catalog}{BRANCH_MARK}{name}"
    branch = _begun(run, name, full, run_id)
    if branch.state == v1.BS_MERGED:  # the run was killed after the merge
        return _ended(run, Outcome(note=f"merged branch {full}"), full)
    on_it = replace(run, tables=tables_on(main, name, is_own=True))
    outcome = on_it.run(engine, control, functions)
    if outcome.failures:
        outcome.note = "; ".join(
            filter(None, (outcome.note, f"nothing was merged; branch {full} has what was refreshed"))
        )
        return outcome
    control.check()
    request = v1.MergeBranchRequest(name=full, required_rules=_rules_of(on_it))
    try:
        branches.merge(main.realm, request, warehouse=main.warehouse)
    except SkiwayError as error:
        outcome.failures[full] = error.message
        outcome.transient = isinstance(error, TRANSIENT) or error.key == "branch.unfinished"
        return outcome
    return _ended(run, outcome, full)


def _begun(run: PipelineRun, name: str, full: str, run_id: str) -> v1.Branch:
    """The branch of this run, which a killed attempt may have created. Branches of earlier runs are deleted."""
    main = run.tables
    made_for = f"{_MADE_FOR}{run.project.name}, job "
    found: v1.Branch | None = None
    for each in branches.list_(main.realm, v1.ListBranchesRequest(catalog=main.catalog)).branches:
        if not each.description.startswith(made_for):
            continue
        if each.display_name == name:
            found = each
        elif each.owner == main.realm.caller and not _is_running(main.realm, each.description.removeprefix(made_for)):
            branches.delete(main.realm, v1.DeleteBranchRequest(name=f"{main.catalog}{BRANCH_MARK}{each.display_name}"))
    if found is not None:
        return found
    request = v1.CreateBranchRequest(name=full, description=f"{made_for}{run_id}")
    return branches.create(main.realm, request).branch


def _is_running(realm: Realm, job_id: str) -> bool:
    job = realm.as_server().all(JOB).at(keys.job(realm.account_id, job_id))
    return job is not None and job.value.state in RUNNING


def _rules_of(run: PipelineRun) -> Iterator[str]:
    """The rules about the tables of the run that the owner sees, but warnings and expectations, which the run has judged."""
    realm = run.tables.elsewhere or run.tables.realm
    for table in run.ordered():
        output = run.tables.output(table.name)
        for rule in () if output is None else rules.of_table(realm, output.id):
            if rule.value.severity != v1.RSV_WARNING and rule.value.check.WhichOneof("check") != "expectation":
                yield rule.value.display_name


def _ended(run: PipelineRun, outcome: Outcome, full: str) -> Outcome:
    """Show the verdicts on main, where the rows are now, and delete the branch."""
    for table in run.ordered():
        _record(run, table)
    branches.delete(run.tables.realm, v1.DeleteBranchRequest(name=full))
    outcome.note = "; ".join(filter(None, (outcome.note, f"merged branch {full}")))
    return outcome


def _record(run: PipelineRun, table: DerivedTable) -> None:
    output = run.tables.output(table.name) if table.rules else None
    current = None if output is None else output.handle.current()
    if output is not None and current is not None:
        found = read_verdicts(current.summary)
        called = f"{run.project.name}.{table.name.name}"
        record_verdicts(run.tables.realm, called, table.rules, output, found, snapshot_id=current.id)

"""`skiway pipelines`: the commands of all resources, and those for files and runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from skiway.cli.command import Call, command
from skiway.cli.lake.jobs import Watch, run_to_end
from skiway.cli.lake.resources import commands_for
from skiway.cli.lake.templates import rendered_folder
from skiway.cli.output import one_line
from skiway.cli.rendering import fields_of
from skiway.errors import NotFound, SkiwayError
from skiway.foundation.resources import PIPELINE

if TYPE_CHECKING:
    from skiway.client.metastore.connectors import Pipeline, PlannedTable


def _shown(_: Call, pipeline: Pipeline) -> dict[str, Any]:
    """A pipeline with the names of its files."""
    return {**fields_of(pipeline), "files": list(pipeline.files)}


app = commands_for(PIPELINE, shown=_shown, but=("get", "create", "update"))

PipelineName = Annotated[str, typer.Argument(metavar="PIPELINE", help="The name of a pipeline.")]
Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder with pipeline.yml, .sql and .py files.")]
Target = Annotated[
    str, typer.Option("--target", metavar="NAME", help="Use the catalog, namespace and variables of this target.")
]
Variables = Annotated[
    list[str] | None,
    typer.Option("--var", metavar="NAME=VALUE", help="Set a variable of the templates; can be repeated."),
]
Select = Annotated[
    list[str] | None,
    typer.Option(
        "--select",
        metavar="NAME",
        help="Only these tables: totals, +totals with what it reads, totals+ with what reads it, state:changed.",
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show what a run would do to each table, and why.")]


@command(app, "get")
def get(
    call: Call,
    name: PipelineName,
    file: Annotated[str | None, typer.Option("--file", metavar="PATH", help="Print only this file.")] = None,
) -> None:
    """Show a pipeline: its files, and from which columns the columns of its tables were computed."""
    pipeline = call.lake.pipelines.get(name)
    if file is not None:
        _print_file(call, pipeline, file)
        return
    tables: Sequence[PlannedTable] = ()
    problem = None
    try:
        tables = call.lake.pipelines.plan(name)
    except SkiwayError as error:
        problem = error.message
    lineage = {f"{each.table}.{column}": list(sources) for each in tables for column, sources in each.columns.items()}
    call.print_record({**_shown(call, pipeline), "problem": problem, "lineage": lineage})


@command(app, "create")
def create(call: Call, folder: Folder, target: Target = "", var: Variables = None, dry_run: DryRun = False) -> None:
    """Create a pipeline from the files in a folder. Its runs have your rights."""
    files = _files(folder, target, var)
    if dry_run:
        _print_plan(call, call.lake.pipelines.plan(files=files))
        return
    made = call.lake.pipelines.create(files)
    call.print_result(
        f"created pipeline {made.name}; run it with: skiway pipelines run {made.name}", _shown(call, made)
    )


@command(app, "apply")
def apply(call: Call, folder: Folder, target: Target = "", var: Variables = None, dry_run: DryRun = False) -> None:
    """Create a pipeline from the files in a folder, or replace its files. You become its owner."""
    from skiway.metastore.pipelines.projects import read_project

    files = _files(folder, target, var)
    name = read_project(files).name
    try:
        known = call.lake.pipelines.get(name)
    except NotFound:
        create(call, folder, target, var, dry_run)
        return
    if dry_run:
        _print_plan(call, call.lake.pipelines.plan(known.id, files=files))
        return
    changed = call.lake.pipelines.update(known.id, files, if_version=known.version)
    call.print_result(f"updated pipeline {name}", _shown(call, changed))


@command(app, "run")
def run(
    call: Call,
    name: PipelineName,
    full: Annotated[bool, typer.Option("--full", help="Refresh all tables in full, also unchanged ones.")] = False,
    select: Select = None,
    branch: Annotated[str, typer.Option(metavar="NAME", help="Read and write on this branch of the catalog.")] = "",
    on_branch: Annotated[
        bool, typer.Option("--on-branch", help="Run on a new branch, and merge it if all tables and rules succeed.")
    ] = False,
    dry_run: DryRun = False,
    watch: Watch = True,
) -> None:
    """Refresh the tables of a pipeline that have to be, in the order of what they read."""
    chosen = select or ()
    if dry_run:
        _print_plan(call, call.lake.pipelines.plan(name, full=full, select=chosen, branch=branch))
        return
    job = call.lake.pipelines.start(name, full=full, select=chosen, branch=branch, on_branch=on_branch)
    run_to_end(call, job, call.lake.jobs.wait, watch=watch)


@command(app, "render")
def render(
    call: Call,
    folder: Folder,
    target: Target = "",
    var: Variables = None,
    file: Annotated[str | None, typer.Option("--file", metavar="PATH", help="Print only this file.")] = None,
) -> None:
    """Print the files as the server gets them: for a target, and with variables and macros in their places."""
    files = _files(folder, target, var)
    if file is not None and file not in files:
        raise NotFound(f"the folder has no file {file}; it has {', '.join(files)}")
    chosen = files if file is None else {file: files[file]}
    if not call.is_for_people:
        call.print_record(chosen)
        return
    for path, text in chosen.items():
        typer.echo(f"-- {one_line(path)}")
        for line in text.splitlines():
            typer.echo(one_line(line.expandtabs(4)))


@command(app, "test")
def unit_test(call: Call, folder: Folder, target: Target = "", var: Variables = None) -> None:
    """Run the unit tests in the files of a folder, with Spark on this machine. A server is not needed."""
    from skiway.metastore.pipelines.projects import read_project
    from skiway.spark_jobs.model_tests import run_unit_tests
    from skiway.spark_jobs.pipeline_queries import SparkQueries
    from skiway.spark_jobs.session import SparkPlace

    project = read_project(_files(folder, target, var))
    results = list(run_unit_tests(project, SparkQueries(SparkPlace().session)))
    shown = [{"name": each.name, "model": each.model, "state": each.state, "problem": each.problem} for each in results]
    call.print_rows(shown, ["name", "model", "state", "problem"], empty="there are no unit tests")
    if any(each.problem for each in results):
        raise typer.Exit(1)


def _print_file(call: Call, pipeline: Pipeline, file: str) -> None:
    """Print a file. Its control characters, which could change the terminal, are escaped for people."""
    if file not in pipeline.files:
        raise NotFound(f"pipeline {pipeline.name} has no file {file}; it has {', '.join(pipeline.files)}")
    text = pipeline.files[file]
    if not call.is_for_people:
        call.print_record({"file": file, "text": text})
        return
    for line in text.splitlines():
        typer.echo(one_line(line.expandtabs(4)))


def _files(folder: Path, target: str, variables: Sequence[str] | None) -> dict[str, str]:
    return rendered_folder(folder, target=target, variables=variables or ())


def _print_plan(call: Call, plan: Sequence[PlannedTable]) -> None:
    call.print_rows(plan, ["table", "action", "reason", "reads"], empty="there are no tables")

"""`skiway pipelines`: the commands of all resources, and those for files and runs."""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn

import typer

from skiway.cli.command import Call, command
from skiway.cli.lake.jobs import Watch, run_to_end
from skiway.cli.lake.resources import commands_for
from skiway.cli.output import one_line
from skiway.cli.rendering import fields_of
from skiway.errors import InvalidArgument, NotFound, SkiwayError
from skiway.foundation.resources import PIPELINE

if TYPE_CHECKING:
    from jinja2 import Environment

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
    dry_run: DryRun = False,
    watch: Watch = True,
) -> None:
    """Refresh the tables of a pipeline that have to be, in the order of what they read."""
    if dry_run:
        _print_plan(call, call.lake.pipelines.plan(name, full=full, select=select or ()))
        return
    job = call.lake.pipelines.start(name, full=full, select=select or ())
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


# -- templates ---------------------------------------------------------------------------------------------------------
# They are rendered here and never on the server, which gets plain SQL and YAML.

MACROS: Final = "macros"
"""The folder with macros, which are no tables."""

_MARKS: Final = ("{{", "{%", "{#")
_OVERRIDES: Final = ("name", "catalog", "namespace", "schedule", "on_change", "vars")


def rendered_folder(folder: Path, *, target: str = "", variables: Sequence[str] = ()) -> dict[str, str]:
    """The files in a folder, rendered for a target. `variables` are `name=value`."""
    from skiway.metastore.pipelines.projects import read_folder

    return rendered(read_folder(folder.expanduser()), target=target, variables=dict(map(_variable, variables)))


def rendered(
    files: Mapping[str, str], *, target: str = "", variables: Mapping[str, Any] | None = None
) -> dict[str, str]:
    """The files for a target, without templates. Raise `InvalidArgument` with file and line if one cannot be rendered."""
    import yaml

    from skiway.metastore.pipelines.models.declarations import load_yaml
    from skiway.metastore.pipelines.projects import PROJECT_FILE

    head = load_yaml(PROJECT_FILE, files[PROJECT_FILE])
    if not isinstance(head, dict):
        return dict(files)
    targets, values = _taken(head, "targets"), _taken(head, "vars")
    chosen: dict[str, Any] = {}
    if target:
        chosen = _mapping(targets.get(target), f"targets.{target}", known=targets)
        unknown = [str(each) for each in chosen if each not in _OVERRIDES]
        if unknown:
            _refuse(PROJECT_FILE, f"target {target} sets {unknown[0]!r}; a target can set {', '.join(_OVERRIDES)}")
        values |= _taken(chosen, "vars")
        chosen.setdefault("name", f"{head.get('name')}_{target}")
    values |= variables or {}
    plain = {str(key): value for key, value in head.items() if str(key).isprintable()} | chosen
    is_plain = not target and "targets:" not in files[PROJECT_FILE] and "vars:" not in files[PROJECT_FILE]
    project = files[PROJECT_FILE] if is_plain else yaml.safe_dump(plain, sort_keys=False)
    place = {"name": target, **{key: plain.get(key) for key in ("catalog", "namespace")}}
    environment = _environment(files, values, place)
    found = {PROJECT_FILE: project}
    for path, text in files.items():
        if path != PROJECT_FILE and PurePosixPath(path).parts[0] != MACROS:
            is_template = path.endswith((".sql", ".yml", ".yaml")) and any(mark in text for mark in _MARKS)
            found[path] = _rendered(environment, path) if is_template else text
    return found


def _environment(files: Mapping[str, str], values: Mapping[str, Any], place: Mapping[str, Any]) -> Environment:
    from jinja2 import FunctionLoader, StrictUndefined
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def var(name: str, default: Any = None) -> Any:
        if name not in values and default is None:
            known = ", ".join(sorted(values)) or "none"
            raise InvalidArgument(f"there is no variable {name!r}; there is {known}: set it with --var {name}=…")
        return values.get(name, default)

    loader = FunctionLoader(lambda path: (files[path], path, lambda: True) if path in files else None)
    made = ImmutableSandboxedEnvironment(loader=loader, undefined=StrictUndefined, keep_trailing_newline=True)
    made.globals |= {"var": var, "target": dict(place)}
    for path in files:
        if PurePosixPath(path).parts[0] == MACROS:
            module = _explained(path, lambda path=path: made.get_template(path).module)
            made.globals |= {name: value for name, value in vars(module).items() if not name.startswith("_")}
    return made


def _rendered(environment: Environment, path: str) -> str:
    return str(_explained(path, lambda: environment.get_template(path).render()))


def _explained(path: str, render: Any) -> Any:
    """The result of rendering a file. What is wrong with it is reported with its line."""
    from jinja2 import TemplateError, TemplateSyntaxError

    try:
        return render()
    except TemplateSyntaxError as error:
        _refuse(f"{error.filename or path}, line {error.lineno}", f"the template is not valid: {error.message}")
    except (TemplateError, InvalidArgument, TypeError, ValueError, ArithmeticError, LookupError) as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
        line = f", line {lines[-1]}" if lines else ""
        message = error.message if isinstance(error, InvalidArgument | TemplateError) else str(error)
        _refuse(f"{path}{line}", f"the template cannot be rendered: {message}")


def _taken(of: dict[Any, Any], name: str) -> dict[str, Any]:
    return _mapping(of.pop(name, None) or {}, name)


def _mapping(value: Any, name: str, *, known: Mapping[str, Any] | None = None) -> dict[str, Any]:
    if value is None and known is not None:
        _refuse(
            "pipeline.yml", f"there is no {name.replace('targets.', 'target ')}; there is {', '.join(known) or 'none'}"
        )
    if not isinstance(value, dict):
        _refuse("pipeline.yml", f"{name} must be a mapping")
    return {str(key): each for key, each in value.items() if str(key).isprintable()}


def _variable(text: str) -> tuple[str, Any]:
    import yaml

    name, found, value = text.partition("=")
    if not found or not name.strip():
        raise InvalidArgument(f"--var {text!r} is not name=value", key="pipeline.variable")
    return name.strip(), yaml.safe_load(value)


def _refuse(place: str, why: str) -> NoReturn:
    raise InvalidArgument(f"{place}: {why}", key="pipeline.file", file=place.partition(",")[0])

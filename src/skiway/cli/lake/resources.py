"""The commands that all resources with a name have: list, get, create, update and delete, made from their descriptions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from skiway.cli.command import Call, command, confirm, group
from skiway.cli.options import Yes, key_values
from skiway.cli.rendering import fields_of
from skiway.foundation.resources import PLAIN, Field, Resource
from skiway.presentation.tables import picked


def commands_for(
    resource: Resource,
    *,
    shown: Callable[[Call, Any], object] = lambda _, record: record,
    but: Sequence[str] = (),
    fields: Sequence[Field] | None = None,
) -> typer.Typer:
    """Return a group with the commands for a kind of resource, `but` those that are written by hand.

    `shown` converts records of the client for the output. `fields` are those with options, if they are not those of the kind.
    """
    settable = resource.fields if fields is None else fields
    app, plural = group(resource.plural, resource.about), resource.plural
    about_name = f"Full name, such as {resource.example}." if resource.example else f"The name of a {resource.name}."
    name_argument = typer.Argument(metavar=resource.name.upper(), help=about_name)
    name = parameter("name", Annotated[str, name_argument])

    def collection(call: Call) -> Any:
        return getattr(call.lake, plural)

    def list_(call: Call) -> None:
        records = (shown(call, each) for each in collection(call)())
        call.print_rows(records, resource.columns, empty=f"there are no {plural}")

    def get(call: Call, name: str) -> None:
        call.print_record(shown(call, collection(call).get(name)))

    def create(call: Call, name: str, **given: Any) -> None:
        made = collection(call).create(name, **_values(settable, given, require=True))
        call.print_result(f"created {resource.name} {name}", shown(call, made))

    def update(call: Call, name: str, if_version: int | None, **given: Any) -> None:
        changes = _values(settable, given, require=False)
        if not changes:
            raise typer.BadParameter("give at least one new value")
        if resource.is_container and "new_name" in changes:
            changes["name"] = changes.pop("new_name")
        record = shown(call, collection(call).update(name, if_version=if_version, **changes))
        call.print_result(f"updated {resource.name} {fields_of(record)['name']}", record)

    def delete(call: Call, name: str, if_version: int | None, yes: bool, **cascade: bool) -> None:
        contents = " and its contents" if cascade.get("cascade") else ""
        confirm(f"{resource.delete} Delete {resource.name} {name}{contents}?".strip(), yes=yes)
        collection(call).delete(name, if_version=if_version, **cascade)
        call.print_result(f"deleted {resource.name} {name}", {"name": name})

    required = [option for field in settable for option in _options(field)]
    optional = options_for(*settable)
    new_name_option = typer.Option("--name", metavar="NAME", help="The new name.")
    new_name = parameter("new_name", Annotated[str | None, new_name_option], None)
    version_option = typer.Option(metavar="NUMBER", help="Fail if the stored version is another one.")
    if_version = parameter("if_version", Annotated[int | None, version_option], None)
    yes = parameter("yes", Yes, default=False)
    cascade_option = typer.Option("--cascade", help="Delete its contents too.")
    cascade = [parameter("cascade", Annotated[bool, cascade_option], default=False)] if resource.is_container else []
    has_lists = any(field.many for field in settable)
    commands: dict[str, tuple[Callable[..., None], str, list[inspect.Parameter]]] = {
        "list": (list_, f"List the {plural} of the account.", []),
        "get": (get, f"Show a {resource.name}, its stored version and its state.", [name]),
        "create": (create, f"Create a {resource.name}. {resource.create}", [name, *required]),
        "update": (
            update,
            f"Change a {resource.name}.{' Lists are replaced as a whole.' if has_lists else ''}",
            [name, new_name, *optional, if_version],
        ),
        "delete": (delete, f"Delete a {resource.name}. {resource.delete}", [name, *cascade, if_version, yes]),
    }
    for verb, (act, about, options) in commands.items():
        if verb not in but:
            add_command(app, verb, act, about, *options)
    return app


def options_for(*fields: Field) -> list[inspect.Parameter]:
    """Return the options of commands that create or change what has these fields. None of them is required."""
    return [option for field in fields for option in _options(field, optional=True)]


def state_of(resource: Any) -> dict[str, Any]:
    """Return the fields that records of all resources have: when it was created and changed, and whether it is damaged."""
    return {**picked(resource, "created_at", "updated_at"), "damage": resource.damage or None}


def add_command(app: typer.Typer, name: str, act: Callable[..., None], about: str, *options: inspect.Parameter) -> None:
    """Register a command. Its options are those of a signature, as of a command that is written by hand."""
    call = inspect.Parameter("call", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=Call)
    ordered = sorted(options, key=lambda each: each.default is not inspect.Parameter.empty)
    act.__signature__ = inspect.Signature([call, *ordered])  # type: ignore[attr-defined]
    act.__annotations__ = {each.name: each.annotation for each in (call, *options)}
    act.__doc__ = about
    command(app, name)(act)


def parameter(name: str, kind: Any, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=default)


def _options(field: Field, *, optional: bool = False) -> list[inspect.Parameter]:
    """The options of a field; a secret is read from a variable or a file."""
    if field.type is dict and not field.metavar:
        return []
    if field.is_secret:
        env = typer.Option(metavar="NAME", help=f"Environment variable with the {_lower(field)}")
        file = typer.Option(metavar="PATH", help=f"File with the {_lower(field)}")
        return [
            parameter(f"{field.name}_env", Annotated[str | None, env], None),
            parameter(f"{field.name}_file", Annotated[Path | None, file], None),
        ]
    metavar = field.metavar or (field.option.removeprefix("--") or field.name).upper()
    needed = field.required and not optional
    if field.argument and needed:
        return [parameter(field.name, Annotated[field.type, typer.Argument(metavar=metavar, help=field.help)])]
    more = " Can be repeated." if field.many else ""
    option = typer.Option(
        *([field.option] if field.option else []),
        metavar=None if field.type is bool or field.choices else metavar,
        help=f"{field.help}{more}",
    )
    value: Any = StrEnum(field.name, {each: each for each in field.choices}) if field.choices else field.type
    if field.type is dict:
        value = str
    kind: Any = list[value] if field.many else value
    if needed:
        return [parameter(field.name, Annotated[kind, option])]
    return [parameter(field.name, Annotated[kind | None, option], None)]


def _lower(field: Field) -> str:
    return field.help[0].lower() + field.help[1:]


def _values(fields: Sequence[Field], given: dict[str, Any], *, require: bool) -> dict[str, Any]:
    """The values that were given, with secrets read. An empty text clears a field."""
    from skiway.setup.secrets import read_secret

    for field in fields:
        if field.is_secret:
            env, file = given.pop(f"{field.name}_env"), given.pop(f"{field.name}_file")
            secret = None if env is None and file is None else read_secret(field.name, env or "", file or "")
            if secret is None and require and field.required:
                hint = f"--{field.name}-env or --{field.name}-file"
                raise typer.BadParameter(f"give the {_lower(field).removesuffix('.')}", param_hint=hint)
            given[field.name] = secret
        elif field.type is dict and given.get(field.name) is not None:
            given[field.name] = key_values(given[field.name], field.option)
    return {name: value for name, value in given.items() if value is not None}


app = typer.Typer()
for _resource in PLAIN:
    app.add_typer(commands_for(_resource), name=_resource.plural)

"""Forms that create and change things: their fields, what they do, and the command and the entry of a setup file that do the same.

The commands and entries are made from the same values as the calls, and tests run them.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import yaml

from skiway.errors import InvalidArgument
from skiway.web.visits import Visit

Values = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Field:
    """A field. A `many` has several values, separated by commas."""

    name: str
    label: str
    kind: str = "text"
    choices: tuple[str, ...] = ()
    hint: str = ""
    required: bool = True
    many: bool = False


@dataclass(frozen=True, slots=True)
class Form:
    """A form. `make` makes the change and returns the path of the page to go to; `act` has further buttons that change nothing."""

    title: str
    about: str
    fields: tuple[Field, ...]
    make: Callable[[Visit, Values], str]
    command: Callable[[Values], Sequence[str]]
    entry: Callable[[Values], Mapping[str, Any]] | None
    act: Mapping[str, tuple[str, Callable[[Visit, Values], dict[str, Any]]]]
    button: str = "Create"


def command_of(form: Form, values: Values) -> str:
    """The command that does the same."""
    try:
        return shlex.join(["skiway", *form.command(values)])
    except InvalidArgument:  # the values are not complete
        return ""


def entry_of(form: Form, values: Values) -> str:
    """The entry of a setup file that does the same; empty if setup files do not have it."""
    if form.entry is None:
        return ""
    try:
        return str(yaml.safe_dump({"version": 1, **form.entry(values)}, sort_keys=False, allow_unicode=True, width=120))
    except InvalidArgument:
        return ""


def given(form: Form, sent: Values) -> dict[str, str]:
    """The values of all fields, without spaces around them."""
    return {
        field.name: sent.get(field.name, "").strip() or (field.choices[0] if field.choices else "")
        for field in form.fields
    }


def check(form: Form, values: Values) -> None:
    """Raise unless all required fields have a value, and fields with choices one of these."""
    for field in form.fields:
        value = values[field.name]
        if field.required and not value:
            raise InvalidArgument(f"{field.label} is empty: fill it in", key="form.invalid", field=field.name)
        if field.choices and value not in field.choices:
            raise InvalidArgument(
                f"{field.label} is {value[:40]!r}: use {', '.join(field.choices)}", key="form.invalid", field=field.name
            )


def many(text: str) -> list[str]:
    """The values of a field with several."""
    return [each.strip() for each in text.split(",") if each.strip()]


def options(*pairs: tuple[str, str | Sequence[str]]) -> list[str]:
    """Options of a command, without those that have no value."""
    found = []
    for name, value in pairs:
        for each in [value] if isinstance(value, str) else value:
            if each:
                found += [name, each]
    return found


def without_empty(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value not in ("", [], None, {})}


def segments_of(name: str, least: int) -> list[str]:
    found = name.split(".")
    if len(found) < least or not all(found):
        raise InvalidArgument(f"{name[:100]!r} is not a full name: write catalog.namespace.name", key="form.invalid")
    return found


NAME: Final = Field("name", "Name")
DESCRIPTION: Final = Field("description", "Description", required=False)
TABLE: Final = Field("table", "Table", hint="catalog.namespace.table")
REPLACE: Final = Field("replace", "Replace an existing one", choices=("no", "yes"))


def replaces(values: Values) -> bool:
    """Whether a form changes what exists, instead of creating it."""
    return values["replace"] == "yes"

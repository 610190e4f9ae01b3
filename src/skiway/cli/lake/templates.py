"""The templates in files of pipelines.

They are rendered here and never on the server, which gets plain SQL and YAML.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final, NoReturn

from skiway.errors import InvalidArgument

if TYPE_CHECKING:
    from jinja2 import Environment

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

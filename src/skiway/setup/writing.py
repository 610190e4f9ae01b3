"""Writes a setup as YAML, and the JSON schema of setup files. Both are deterministic."""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec
import yaml

from skiway.setup.declarations import Declaration, Setup

__all__ = ["SCHEMA_URL", "plain", "schema_text", "write"]

SCHEMA_URL: Final = "https://json-schema.org/draft/2020-12/schema"
WIDTH: Final = 1_000_000
"""Long texts stay on one line, so that a change of a word is a change of one line."""


def write(setup: Setup) -> str:
    """Return the text of a file. `read` returns an equal setup."""
    text: str = yaml.dump(plain(setup), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=WIDTH)
    return text


def plain(value: Any) -> Any:
    """A declaration as dicts, lists and scalars, without the keys that have their defaults."""
    # `msgspec.to_builtins` leaves out only defaults that are the same object, which equal texts need not be.
    if isinstance(value, Declaration):
        config = value.__struct_config__
        found = {} if config.tag is None else {config.tag_field: config.tag}
        for each in msgspec.structs.fields(value):
            given = getattr(value, each.name)
            if each.required or given != _default(each):
                found[each.name] = plain(given)
        return found
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, tuple) else value


def _default(field: msgspec.structs.FieldInfo) -> Any:
    return field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()


def schema_text() -> str:
    """Return the JSON schema of setup files, for editors."""
    (reference,), components = msgspec.json.schema_components([Setup], ref_template="#/$defs/{name}")
    components = {name: _without_null(each) for name, each in components.items()}
    document = {"$schema": SCHEMA_URL, "title": "Skiway setup", **reference, "$defs": components}
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _without_null(schema: Any) -> Any:
    """A schema in which optional keys can be left out, but have a value: the reader rejects keys without one."""
    if isinstance(schema, list):
        return [_without_null(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: _without_null(each) for key, each in schema.items() if not (key == "default" and each is None)}
    if "enum" in found:
        found["enum"] = [each for each in found["enum"] if each is not None]
    options = [each for each in found.get("anyOf", ()) if each != {"type": "null"}]
    if "anyOf" in found and len(options) == 1:
        del found["anyOf"]
        return {**options[0], **found}
    return {**found, "anyOf": options} if options else found


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]
    """Writes lists indented, and text with several lines as a block."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002
        """Indent the items of a list below its key."""
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
        """Write equal values in full."""
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    # YAML folds these line breaks in all styles but double quotes, which escape them.
    style = '"' if any(each in text for each in "\x85\u2028\u2029") else "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)

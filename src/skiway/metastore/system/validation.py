"""Versions of engines, and validation of system object files.

A version is a core of numbers and possibly a pre-release: what follows a dash, or the first other character. `1.2` and
`1.2.0` are equal, `1.2.0-rc1` sorts before both, and a blank version is 0.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TypeAlias

from skiway.model import v1

__all__ = ["SystemObject", "VersionKey", "applicable", "applies", "check", "objects", "signature", "version_key"]

VersionKey: TypeAlias = tuple[tuple[int, ...], bool, tuple[tuple[bool, int, str], ...]]

CORE = re.compile(r"[0-9]+(?:\.[0-9]+)*")
TOKENS = re.compile(r"[0-9]+|[^0-9.\-_+\s]+")


def version_key(version: str) -> VersionKey:
    """The sort key of a version. A leading `v` is ignored.

    >>> sorted(["1.10", "1.9", "1.9-rc2", "1.9-rc10", "1.9-1", ""], key=version_key)
    ['', '1.9-1', '1.9-rc2', '1.9-rc10', '1.9', '1.10']
    """
    text = re.sub(r"^[vV](?=[0-9])", "", version.strip())
    core = CORE.match(text)
    numbers = [int(number) for number in core.group().split(".")] if core else []
    while numbers and numbers[-1] == 0:
        numbers.pop()
    tokens = tuple(map(_token, TOKENS.findall(text[core.end() if core else 0 :])))
    return tuple(numbers), not tokens, tokens


def applies(rule: v1.EngineSpecific, kind: str, version: VersionKey) -> bool:
    """Whether a rule, read from the file of this kind of engine, applies to this version."""
    if (rule.engine_kind or kind).strip().lower() != kind:
        return False
    if rule.HasField("min_version") and version < version_key(rule.min_version):
        return False
    return not (rule.HasField("max_version") and version > version_key(rule.max_version))


def applicable(rules: Iterable[v1.EngineSpecific], kind: str, version: VersionKey) -> list[v1.EngineSpecific]:
    """The rules that apply; of several with the same payload type, the last."""
    last = {rule.payload_type: rule for rule in rules if applies(rule, kind, version)}
    return list(last.values())


def _token(text: str) -> tuple[bool, int, str]:
    """The sort key of a token: numbers sort before words, and words are compared case-insensitively."""
    number = text.isascii() and text.isdecimal()
    return (False, int(text), "") if number else (True, 0, text.casefold())


# --- validation -------------------------------------------------------------------------------------------------------


SystemObject: TypeAlias = v1.SqlFunction | v1.SqlOperator | v1.SqlType | v1.SqlCast | v1.SqlCollation | v1.SqlAggregate


def objects(registry: v1.SystemObjectsRegistry) -> Iterable[SystemObject]:
    """All objects of all six classes."""
    return chain(
        registry.functions,
        registry.operators,
        registry.types,
        registry.casts,
        registry.collations,
        registry.aggregates,
    )


def signature(of: SystemObject) -> str:
    """The text that identifies an object, for example `function main.sum(INTEGER)`."""
    match of:
        case v1.SqlFunction():
            arguments = [*of.argument_types, *([f"{of.variadic_type}..."] if of.variadic_type else [])]
            sort = "table function" if of.is_table else "function"
            return f"{sort} {of.namespace}.{of.name}({', '.join(arguments)})"
        case v1.SqlOperator():
            return f"operator {' '.join(filter(None, (of.left_type, of.name, of.right_type)))}"
        case v1.SqlType():
            return f"type {of.namespace}.{of.name}"
        case v1.SqlCast():
            return f"cast {of.name or '?'} from {of.source_type} to {of.target_type}"
        case v1.SqlCollation():
            return f"collation {of.name}"
        case v1.SqlAggregate():
            return f"aggregate {of.name}({', '.join(of.argument_types)})"


def check(registry: v1.SystemObjectsRegistry) -> list[str]:
    """All faults, each as a sentence that names the object; empty for a valid registry."""
    return list(_faults(registry))


def _faults(registry: v1.SystemObjectsRegistry) -> Iterator[str]:
    types = {each.name for each in registry.types}
    namespaces = set(registry.namespaces)
    for name, number in Counter(map(signature, objects(registry))).items():
        if number > 1:
            yield f"{name} occurs {number} times"
    for each in objects(registry):
        for fault in chain(_common(each), _own(each, types, namespaces), _rules(each.engine_specific)):
            yield f"{signature(each)} {fault}"
    for fault in _rules(registry.engine_specific):
        yield f"the registry {fault}"


def _common(of: SystemObject) -> Iterator[str]:
    if not of.name.strip():
        yield "has no name"
    if of.origin == v1.OO_UNSPECIFIED:
        yield "has no origin"


def _own(of: SystemObject, types: set[str], namespaces: set[str]) -> Iterator[str]:
    """The faults that are specific to the class of the object."""
    if isinstance(of, v1.SqlFunction | v1.SqlType) and of.namespace not in namespaces:
        yield f"is in the namespace {of.namespace or '(none)'}, which is not in the list of namespaces"
    match of:
        case v1.SqlFunction() if not of.return_type and not of.is_table:
            yield "has no return_type"
        case v1.SqlOperator() | v1.SqlAggregate() if not of.return_type:
            yield "has no return_type"
        case v1.SqlOperator() if not (of.left_type or of.right_type):
            yield "has no operand"
        case v1.SqlType() if of.is_array != bool(of.element_type):
            yield "is an array without element_type" if of.is_array else "has an element_type but is no array"
        case v1.SqlCast() if not (of.source_type and of.target_type):
            yield "lacks its source_type or target_type"
        case v1.SqlCast() if of.method == v1.CM_UNSPECIFIED:
            yield "has no method"
    for used in sorted(set(filter(None, _types(of))) - types):
        yield f"uses the type {used}, which is not in the list of types"


def _types(of: SystemObject) -> tuple[str, ...]:
    match of:
        case v1.SqlFunction():
            return *of.argument_types, of.variadic_type, of.return_type
        case v1.SqlOperator():
            return of.left_type, of.right_type, of.return_type
        case v1.SqlType():
            return (of.element_type,)
        case v1.SqlCast():
            return of.source_type, of.target_type
        case v1.SqlAggregate():
            return *of.argument_types, of.return_type, of.state_type
        case v1.SqlCollation():
            return ()


def _rules(rules: Iterable[v1.EngineSpecific]) -> Iterator[str]:
    windows = Counter(map(_window, rules))
    if any(number > 1 for number in windows.values()):
        yield "has two rules with the same payload_type, engine_kind and versions"
    for rule in rules:
        bounded = rule.HasField("min_version") and rule.HasField("max_version")
        if bounded and version_key(rule.min_version) > version_key(rule.max_version):
            yield f"has a rule from version {rule.min_version} down to {rule.max_version}"


def _window(rule: v1.EngineSpecific) -> tuple[object, ...]:
    bounds = (
        version_key(getattr(rule, field)) if rule.HasField(field) else None for field in ("min_version", "max_version")
    )
    return rule.payload_type, rule.engine_kind, *bounds

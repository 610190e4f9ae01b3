"""What a pipeline declares about its tables in YAML files: descriptions, expectations, the freshness of sources, and unit tests.

models:
  - name: orders
    description: Orders that are worth a look
    columns:
      - name: id
        description: The number of the order
    expect:
      - unique: id
      - accepted_values: {column: state, values: [open, closed]}
        on_failure: drop
      - name: positive
        condition: price > 0
        on_failure: warn
sources:
  - name: raw_orders
    freshness: {warn_after: 12h, error_after: 1d}
unit_tests:
  - name: small orders are left out
    model: orders
    given: {raw_orders: [{id: 1, price: 5}, {id: 2, price: 0}]}
    expect: [{id: 1, price: 5}]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, Literal, NoReturn, get_args

import yaml
from sqlglot import exp

from skiway.errors import InvalidArgument
from skiway.foundation.clock import parse_duration
from skiway.metastore.pipelines.spark_sql import parse_query, sql_text

OnFailure = Literal["warn", "drop", "fail"]
_KINDS: Final = ("unique", "not_null", "accepted_values", "relationships", "condition")
_FIELDS: Final = {
    "": ("models", "sources", "unit_tests"),
    "models": ("name", "description", "columns", "expect"),
    "columns": ("name", "description"),
    "expect": ("name", "on_failure", *_KINDS),
    "accepted_values": ("column", "values"),
    "relationships": ("column", "to", "field"),
    "sources": ("name", "freshness"),
    "freshness": ("warn_after", "error_after"),
    "unit_tests": ("name", "model", "given", "expect"),
}
_LINE: Final = "\0line"
"""The key under which the loader keeps the line of a mapping."""

MAX_EXPECTATIONS: Final = 50


@dataclass(frozen=True)
class Expectation:
    """A rule that the rows of a table meet, and what happens if some do not.

    `expected` says the rule in words. `values` are those of accepted values, `to` and `field` name the column of a relationship, and
    `condition` is a predicate in the SQL of Spark.
    """

    name: str
    kind: str
    columns: tuple[str, ...]
    on_failure: OnFailure
    place: str
    values: tuple[Any, ...] = ()
    to: str = ""
    field: str = ""
    condition: str = ""

    @property
    def expected(self) -> str:
        """The rule in words."""
        names = ", ".join(self.columns)
        match self.kind:
            case "unique":
                return f"({names}) is unique and not NULL"
            case "not_null":
                return f"{names} is not NULL"
            case "accepted_values":
                return f"{names} is one of {', '.join(map(str, self.values))}"[:1000]
            case "relationships":
                return f"{names} is in {self.to}.{self.field}"
        return self.condition

    @property
    def definition(self) -> tuple[object, ...]:
        """What decides which rows of a table are kept."""
        return self.name, self.on_failure, self.expected, repr(self.values)


@dataclass(frozen=True)
class Freshness:
    """How old the data of a source may be before a run warns, or does not refresh the tables that read it."""

    warn_after: timedelta | None
    error_after: timedelta | None


@dataclass(frozen=True)
class UnitTest:
    """Rows that a query is expected to make from given rows, by the names of the tables that it reads."""

    name: str
    model: str
    given: Mapping[str, Sequence[Mapping[str, Any]]]
    expect: Sequence[Mapping[str, Any]]
    place: str


@dataclass(frozen=True)
class ModelNotes:
    """What YAML says about a table."""

    place: str
    description: str = ""
    columns: Mapping[str, str] = field(default_factory=dict)
    expect: tuple[Expectation, ...] = ()


@dataclass
class Declarations:
    """What the YAML files of a pipeline say, by the names of tables as they are written."""

    models: dict[str, ModelNotes] = field(default_factory=dict)
    sources: dict[str, Freshness] = field(default_factory=dict)
    unit_tests: list[UnitTest] = field(default_factory=list)

    def add(self, file: str, text: str) -> None:
        """Add what a file says. Raise `InvalidArgument` with the file and the line if something in it is wrong."""
        reader = _Reader(file)
        whole = reader.mapping(load_yaml(file, text) or {}, "")
        for model in reader.listed(whole, "models"):
            name = reader.text(model, "name", required=True)
            if name in self.models:
                reader.refuse(model, f"table {name} is described twice: remove one of the descriptions")
            columns = {reader.text(each, "name", required=True): each for each in reader.listed(model, "columns")}
            described = {each: reader.text(column, "description") for each, column in columns.items()}
            rules = reader.expectations(model)
            place = reader.place(model)
            self.models[name] = ModelNotes(place, reader.text(model, "description"), described, rules)
        for source in reader.listed(whole, "sources"):
            ages = reader.mapping(source.get("freshness") or {}, "freshness")
            limits = [reader.duration(ages, each) for each in _FIELDS["freshness"]]
            self.sources[reader.text(source, "name", required=True)] = Freshness(*limits)
        for test in reader.listed(whole, "unit_tests"):
            given = reader.mapping(test.get("given") or {}, None)
            rows = {str(name): reader.rows(test, each) for name, each in given.items() if name != _LINE}
            title, tested = (reader.text(test, each, required=True) for each in ("name", "model"))
            expected = reader.rows(test, test.get("expect"))
            self.unit_tests.append(UnitTest(title, tested, rows, expected, reader.place(test)))


def listed_expectations(place: str, text: str) -> tuple[Expectation, ...]:
    """The expectations in a list in YAML. They are about the rows of one table, as those of copies are."""
    reader = _Reader(place)
    rules = reader.expectations({"expect": load_yaml(place, text)})
    other = next((rule for rule in rules if rule.kind == "relationships"), None)
    if other is not None:
        invalid(other.place, f"{other.name} reads another table, which only models can: derive a model from the copy")
    return rules


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """Loads mappings with the lines that they begin in, and refuses a key that is given twice."""


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    loader.flatten_mapping(node)
    found: dict[Any, Any] = {_LINE: node.start_mark.line + 1}
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, str | int | float | bool) or key in found:
            raise yaml.MarkedYAMLError(problem=f"the key {key!r} is given twice", problem_mark=key_node.start_mark)
        found[key] = loader.construct_object(value_node, deep=True)
    return found


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def load_yaml(file: str, text: str) -> Any:
    """The content of a YAML file. Raise `InvalidArgument` with the line if it is not one."""
    try:
        return yaml.load(text, _Loader)  # noqa: S506 - a safe loader
    except yaml.MarkedYAMLError as error:
        line = "" if error.problem_mark is None else f", line {error.problem_mark.line + 1}"
        invalid(f"{file}{line}", f"it is not valid YAML: {error.problem}")
    except yaml.YAMLError as error:
        invalid(file, f"it is not valid YAML: {str(error).splitlines()[0]}")


def invalid(place: str, why: str) -> NoReturn:
    """Raise the error that a file of a pipeline is wrong. `place` is the file, and the line if it is known."""
    raise InvalidArgument(f"{place}: {why}", key="pipeline.file", file=place.partition(",")[0])


@dataclass(frozen=True)
class _Reader:
    file: str

    def place(self, of: Mapping[Any, Any]) -> str:
        return f"{self.file}, line {of[_LINE]}" if _LINE in of else self.file

    def refuse(self, of: Mapping[Any, Any], why: str) -> NoReturn:
        invalid(self.place(of), why)

    def mapping(self, value: Any, section: str | None) -> dict[Any, Any]:
        if not isinstance(value, dict):
            invalid(self.file, f"{section or 'the file'} must be a mapping, not {value!r:.60}")
        unknown = [str(key) for key in value if section is not None and key not in (*_FIELDS[section], _LINE)]
        if unknown:
            fields = ", ".join(_FIELDS[section or ""])
            self.refuse(value, f"there is no field {unknown[0]!r}; the fields are {fields}")
        return value

    def listed(self, of: Mapping[Any, Any], section: str) -> list[dict[Any, Any]]:
        value = of.get(section) or []
        if not isinstance(value, list):
            self.refuse(of, f"{section} must be a list")
        return [self.mapping(each, section) for each in value]

    def text(self, of: Mapping[Any, Any], name: str, *, required: bool = False) -> str:
        value = of.get(name, "")
        if not isinstance(value, str) or (required and not value.strip()):
            self.refuse(of, f"{name} is {value!r:.60}; give it as a text")
        return value.strip()

    def duration(self, of: Mapping[Any, Any], name: str) -> timedelta | None:
        value = of.get(name)
        if value is None:
            return None
        try:
            return parse_duration(value)
        except ValueError:
            self.refuse(of, f"{name} is {value!r}; give a duration, such as 30m, 12h or 1d")

    def rows(self, of: Mapping[Any, Any], value: Any) -> list[dict[str, Any]]:
        if not isinstance(value, list) or not all(isinstance(row, dict) for row in value):
            self.refuse(of, "rows are a list of mappings from columns to values")
        return [{str(name): each for name, each in row.items() if name != _LINE} for row in value]

    def expectations(self, of: Mapping[Any, Any]) -> tuple[Expectation, ...]:
        rules = tuple(self.expectation(each) for each in self.listed(of, "expect"))
        names = [rule.name for rule in rules]
        repeated = next((each for each in names if names.count(each) > 1), "")
        if repeated:
            self.refuse(of, f"two expectations are named {repeated!r}: give one of them another name")
        if len(rules) > MAX_EXPECTATIONS:
            self.refuse(of, f"there are {len(rules)} expectations; at most {MAX_EXPECTATIONS} are allowed")
        return rules

    def expectation(self, of: dict[Any, Any]) -> Expectation:
        kinds = [each for each in _KINDS if each in of]
        if len(kinds) != 1:
            self.refuse(of, f"an expectation has exactly one of {', '.join(_KINDS)}; this one has {kinds or 'none'}")
        (kind,) = kinds
        action = of.get("on_failure", "fail")
        if action not in get_args(OnFailure):
            self.refuse(of, f"on_failure is {action!r}; it must be {', '.join(get_args(OnFailure))}")
        given, more = of[kind], {}
        if kind == "condition":
            columns = self._condition(of, given)
            more["condition"] = given
        elif kind in ("accepted_values", "relationships"):
            inner = self.mapping(given, kind)
            columns = (self.text({**inner, _LINE: of[_LINE]}, "column", required=True),)
            if kind == "accepted_values":
                more["values"] = self._values(of, inner.get("values"))
            else:
                more["to"], more["field"] = (self.text(inner, each, required=True) for each in ("to", "field"))
        else:
            columns = tuple(given) if isinstance(given, list) else (given,)
            if not columns or not all(isinstance(each, str) and each for each in columns):
                self.refuse(of, f"{kind} needs the name of a column{', or a list of them' if kind == 'unique' else ''}")
            if kind == "not_null" and len(columns) > 1:
                self.refuse(of, "not_null is about one column: write one expectation for each")
        name = self.text(of, "name") or ("" if kind == "condition" else "_".join((kind, *columns)))
        if not name:
            self.refuse(of, "a condition needs a name, which results show")
        return Expectation(name, kind, columns, action, self.place(of), **more)

    def _values(self, of: Mapping[Any, Any], values: Any) -> tuple[Any, ...]:
        if (
            not isinstance(values, list)
            or not values
            or not all(isinstance(x, str | int | float | bool) for x in values)
        ):
            self.refuse(of, "values must be a list of texts, numbers or booleans: put dates in quotes")
        return tuple(values)

    def _condition(self, of: Mapping[Any, Any], text: Any) -> tuple[str, ...]:
        """The columns of a condition, which may only depend on one row."""
        if not isinstance(text, str) or not text.strip():
            self.refuse(of, "condition must be a predicate in SQL, such as price > 0")
        query = parse_query(f"SELECT * FROM t WHERE ({text}\n)", file=self.place(of))
        if query.why_not_row_wise or query.changes_by_itself:
            why = query.why_not_row_wise or "it depends on the time or on chance"
            self.refuse(of, f"the condition {text!r:.80} must be about the values of one row: {why}")
        where = query.tree.args["where"].this
        return tuple(dict.fromkeys(column.parts[0].name for column in where.find_all(exp.Column)))


def predicate(condition: str, rows: str) -> str:
    """A condition that was checked, about the rows of a relation."""
    tree = parse_query(f"SELECT * FROM t WHERE ({condition}\n)").tree.args["where"].this.copy()
    for column in tree.find_all(exp.Column):
        column.set("db" if column.table else "table", exp.to_identifier(rows, quoted=True))
    return sql_text(tree)


def literal(value: Any) -> str:
    """A value of YAML in the SQL of Spark."""
    return sql_text(exp.convert(value))

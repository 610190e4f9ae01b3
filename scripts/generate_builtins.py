"""Query DuckDB and Spark for their built-in objects, and write them to `src/skiway/metastore/system/builtins`.

    generate_builtins.py [--check] [duckdb] [spark]

Without names, all engines are queried. `--check` writes nothing and fails if a file differs from what its engine reports.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import compress, product
from pathlib import Path
from typing import Any

from google.protobuf import text_format
from google.protobuf.message import Message

from skiway.metastore.system.objects import check, objects, signature, version_key
from skiway.model import v1

TARGET = Path(__file__).resolve().parent.parent / "src" / "skiway" / "metastore" / "system" / "builtins"
DUCKDB_SINCE = Path(__file__).with_name("duckdb_since.json")
MAX_TEXT = 1_000_000
CLASSES = ("types", "functions", "aggregates", "operators", "casts", "collations")

ANY = "ANY"
BUILTIN: dict[str, Any] = {"origin": v1.OO_BUILTIN}
COMMUTATIVE = {"+", "*", "&", "|", "^", "=", "==", "<>", "!=", "<=>", "&&"}
ASSOCIATIVE = {"+", "*", "&", "|", "||"}
INEXACT = {"FLOAT", "DOUBLE", "float", "double"}


def registry_of(version: str, namespaces: Iterable[str]) -> v1.SystemObjectsRegistry:
    """An empty registry that records the engine version it was generated from."""
    made_from = v1.EngineSpecific(properties={"generated_from": version})
    return v1.SystemObjectsRegistry(namespaces=sorted(namespaces), engine_specific=[made_from])


def operator(name: str, left: str, right: str, result: str) -> v1.SqlOperator:
    same = left == right and not left.endswith("]")
    return v1.SqlOperator(
        name=name,
        left_type=left,
        right_type=right,
        return_type=result,
        is_commutative=(same or name == "&&") and name in COMMUTATIVE,
        is_associative=left == right == result and name in ASSOCIATIVE and left not in INEXACT,
        **BUILTIN,
    )


def cast(source: str, target: str, method: v1.CastMethod.ValueType) -> v1.SqlCast:
    return v1.SqlCast(name=f"{source} to {target}", source_type=source, target_type=target, method=method, **BUILTIN)


def aggregate_of(function: v1.SqlFunction) -> v1.SqlAggregate:
    """The aggregate for `function`. Engines do not report the type of its state."""
    return v1.SqlAggregate(
        name=function.name,
        argument_types=function.argument_types,
        return_type=function.return_type,
        engine_specific=function.engine_specific,
        **BUILTIN,
    )


# --- DuckDB -----------------------------------------------------------------------------------------------------------

# Functions of the optimizer and of the Python package, which other clients do not have.
PRIVATE = re.compile(r"__internal_|pandas_|arrow_scan|python_")
ARRAY = re.compile(r"(.+)\[(?:\d+|ANY)?\]")
COMPARISONS = ("=", "<>", "!=", "<", "<=", ">", ">=")
# A literal of every type, for testing casts.
DUCKDB_SAMPLES = {
    "BIGINT": "1",
    "BIGNUM": "1",
    "BIT": "'1'",
    "BLOB": "'1'",
    "BOOLEAN": "true",
    "DATE": "'2025-01-01'",
    "DECIMAL": "1",
    "DOUBLE": "1",
    "FLOAT": "1",
    "GEOMETRY": "'POINT (1 1)'",
    "HUGEINT": "1",
    "INTEGER": "1",
    "INTERVAL": "'1 day'",
    "JSON": "'1'",
    "SMALLINT": "1",
    "TIME": "'01:00:00'",
    "TIME WITH TIME ZONE": "'01:00:00'",
    "TIMESTAMP": "'2025-01-01'",
    "TIMESTAMP WITH TIME ZONE": "'2025-01-01'",
    "TIMESTAMP_MS": "'2025-01-01'",
    "TIMESTAMP_NS": "'2025-01-01'",
    "TIMESTAMP_S": "'2025-01-01'",
    "TIME_NS": "'01:00:00'",
    "TINYINT": "1",
    "UBIGINT": "1",
    "UHUGEINT": "1",
    "UINTEGER": "1",
    "USMALLINT": "1",
    "UTINYINT": "1",
    "UUID": "'00000000-0000-0000-0000-000000000001'",
    "VARCHAR": "'1'",
    "VARIANT": "1",
}


def duckdb_objects() -> v1.SystemObjectsRegistry:
    import duckdb

    with duckdb.connect(config={"autoload_known_extensions": "false", "threads": "1"}) as connection:
        functions = list(duckdb_functions(connection))
        operators = list(duckdb_operators(connection))
        spaces = {function.namespace for function in functions} | {"main"}
        registry = registry_of(duckdb.__version__, spaces)
        registry.functions.extend(functions)
        registry.aggregates.extend(aggregate_of(each) for each in functions if each.is_aggregate)
        registry.operators.extend(operators)
        registry.collations.extend(duckdb_collations(connection))
        registry.casts.extend(duckdb_casts(connection))
        registry.types.extend(duckdb_types(connection, used_types(registry)))
    restrict_versions(registry, json.loads(DUCKDB_SINCE.read_text()))
    return registry


def restrict_versions(registry: v1.SystemObjectsRegistry, since: dict[str, dict[str, str]]) -> None:
    """Add the first version to each object that is newer than the oldest known release, or that uses such a type."""
    types = {name: since["types"].get(name, "") for name in {each.name for each in registry.types}}

    def of_type(name: str) -> str:
        words = [name, *re.findall(r"[A-Z_]+(?: WITH TIME ZONE)?", name)]
        return max((types.get(word, "") for word in words), key=version_key)

    named = {"functions": "functions", "aggregates": "functions", "operators": "functions", "collations": "collations"}
    for class_ in CLASSES:
        for each in getattr(registry, class_):
            own = of_type(each.name) if class_ == "types" else since.get(named.get(class_, ""), {}).get(each.name, "")
            first = max([own, *map(of_type, types_of(each))], key=version_key)
            if first:
                rules = each.engine_specific or [each.engine_specific.add()]
                for rule in rules:
                    rule.min_version = first


def types_of(each: Any) -> list[str]:
    """The types in the definition of an object."""
    fields = ("variadic_type", "return_type", "left_type", "right_type", "source_type", "target_type", "element_type")
    return [*getattr(each, "argument_types", ()), *(getattr(each, field, "") for field in fields)]


def duckdb_functions(connection: Any) -> Iterator[v1.SqlFunction]:
    rows = duckdb_rows(connection, "regexp_matches(function_name, '^[a-z_]')")
    windows = duckdb_windows(connection, {name for _, name, sort, *_ in rows if sort == "aggregate"})
    for space, name, sort, names, types, variadic, result in rows:
        if PRIVATE.match(name):
            continue
        table = sort in ("table", "table_macro")
        # Named parameters of table functions follow the positional ones, in no particular order.
        positional = [sort != "table" or bool(re.fullmatch(r"col\d+", parameter)) for parameter in names]
        yield v1.SqlFunction(
            namespace=space,
            name=name,
            argument_types=map(duckdb_type, compress(types, positional)),
            variadic_type=duckdb_type(variadic) if variadic else "",
            return_type="" if table else duckdb_type(result),
            is_aggregate=sort == "aggregate" and name not in windows,
            is_window=sort == "aggregate" and name in windows,
            is_table=table,
            **BUILTIN,
        )


def duckdb_rows(connection: Any, where: str) -> list[tuple[Any, ...]]:
    sql = f"""
        SELECT DISTINCT schema_name, function_name, function_type, parameters, parameter_types, varargs, return_type
        FROM duckdb_functions() WHERE internal AND function_type <> 'pragma' AND {where}
    """
    return list(connection.execute(sql).fetchall())


def duckdb_type(name: str | None) -> str:
    """The listed name of a type. Macros and some functions accept and return any type."""
    return ANY if name in (None, "INVALID") else str(name).replace('"NULL"', "NULL")


def duckdb_windows(connection: Any, names: Iterable[str]) -> set[str]:
    """The window functions among `names`: DuckDB lists them as aggregates, but rejects them without OVER."""
    import duckdb

    found = set()
    for name in names:
        try:
            connection.execute(f'EXPLAIN SELECT "{name}"()')
        except duckdb.CatalogException:
            found.add(name)
        except duckdb.BinderException:
            continue  # an aggregate that needs arguments
    return found


def duckdb_operators(connection: Any) -> Iterator[v1.SqlOperator]:
    for _, name, _, _, types, variadic, result in duckdb_rows(
        connection, "NOT regexp_matches(function_name, '^[a-z_]')"
    ):
        operands = [*map(duckdb_type, types)] or [duckdb_type(variadic)] * 2
        if name.endswith("__postfix"):
            yield operator(name.removesuffix("__postfix"), operands[0], "", duckdb_type(result))
        else:
            left, right = operands if len(operands) == 2 else ("", operands[0])
            yield operator(name, left, right, duckdb_type(result))
    for name in COMPARISONS:
        (result,) = connection.execute(f"SELECT typeof(1 {name} 2)").fetchone()
        yield operator(name, ANY, ANY, result)


def duckdb_collations(connection: Any) -> Iterator[v1.SqlCollation]:
    for (name,) in connection.execute("PRAGMA collations").fetchall():
        of_language = re.fullmatch(r"[a-z]{2,3}(_[a-z]{2})?", name) and name != "nfc"
        yield v1.SqlCollation(name=name, locale=name if of_language else "", **BUILTIN)


def duckdb_casts(connection: Any) -> Iterator[v1.SqlCast]:
    import duckdb

    for target in DUCKDB_SAMPLES:
        connection.create_function(f"takes {target}", lambda value: value, [duckdb.type(target)], "VARCHAR")
        connection.execute(f'CREATE TABLE "{target}" (value {target})')
    for source, sample in DUCKDB_SAMPLES.items():
        connection.execute(f'CREATE TABLE "from {source}" AS SELECT {sample}::{source} AS value')
        for target in DUCKDB_SAMPLES:
            method = duckdb_method(connection, source, target)
            if source != target and method is not None:
                yield cast(source, target, method)


def duckdb_method(connection: Any, source: str, target: str) -> v1.CastMethod.ValueType | None:
    """Whether a cast is implicit, applied on assignment or explicit; None if there is no such cast."""
    from_source = f'FROM "from {source}"'
    if works(connection, f'EXPLAIN SELECT "takes {target}"(value) {from_source}', "No function matches"):
        return v1.CM_IMPLICIT
    if works(connection, f'INSERT INTO "{target}" SELECT value {from_source}', "Unimplemented type for cast"):
        return v1.CM_ASSIGNMENT
    if works(connection, f"SELECT CAST(value AS {target}) {from_source}", "Unimplemented type for cast"):
        return v1.CM_EXPLICIT
    return None


def works(connection: Any, sql: str, refusal: str) -> bool:
    """Whether a statement does not fail with one of these messages. An error about the value itself does not count."""
    import duckdb

    try:
        connection.execute(sql).fetchall()
    except duckdb.NotImplementedException:
        return False
    except (duckdb.DataError, duckdb.InvalidInputException) as error:
        return refusal not in str(error)
    except duckdb.Error as error:
        if refusal not in str(error):
            raise
        return False
    return True


def duckdb_types(connection: Any, used: set[str]) -> Iterator[v1.SqlType]:
    """The engine's types with their aliases, and further types in signatures: arrays, type variables and ANY."""
    sql = """
        SELECT logical_type, any_value(type_category), list(DISTINCT lower(type_name) ORDER BY lower(type_name))
        FROM duckdb_types() WHERE type_name <> 'JSON' GROUP BY logical_type
    """
    known = set()
    for name, category, aliases in [*connection.execute(sql).fetchall(), ("JSON", "STRING", [])]:
        known.add(name)
        others = ", ".join(alias for alias in aliases if alias != name.lower())
        rules = [v1.EngineSpecific(properties={"aliases": others})] if others else []
        yield v1.SqlType(namespace="main", name=name, category=category or "", engine_specific=rules, **BUILTIN)
    for name in sorted(used - known):
        array = ARRAY.fullmatch(name)
        category = "COMPOSITE" if array or "(" in name else "PSEUDO"
        element = array.group(1) if array else ""
        yield v1.SqlType(
            namespace="main", name=name, category=category, is_array=bool(array), element_type=element, **BUILTIN
        )


def used_types(registry: v1.SystemObjectsRegistry) -> set[str]:
    """All types in the signatures of functions and operators, and the element types of arrays."""
    used = {ANY}
    for function in registry.functions:
        used |= {*function.argument_types, function.variadic_type, function.return_type}
    for each in registry.operators:
        used |= {each.left_type, each.right_type, each.return_type}
    arrays = list(used)
    while arrays:
        array = ARRAY.fullmatch(arrays.pop())
        if array and array.group(1) not in used:
            used.add(array.group(1))
            arrays.append(array.group(1))
    return used - {""}


# --- Spark ------------------------------------------------------------------------------------------------------------

# Older than any version in use: objects that exist since then need no version rule.
OLDEST_SPARK = "3.0.0"
SPARK_TYPES = {
    "tinyint": "NUMERIC",
    "smallint": "NUMERIC",
    "int": "NUMERIC",
    "bigint": "NUMERIC",
    "float": "NUMERIC",
    "double": "NUMERIC",
    "decimal": "NUMERIC",
    "boolean": "BOOLEAN",
    "string": "STRING",
    "binary": "BINARY",
    "date": "DATETIME",
    "timestamp": "DATETIME",
    "timestamp_ntz": "DATETIME",
    "interval day to second": "INTERVAL",
    "interval year to month": "INTERVAL",
    "void": "PSEUDO",
    "variant": "VARIANT",
}
# Spark does not report the version that introduced a type.
SPARK_TYPES_SINCE = {
    "interval day": "3.2.0",
    "interval day to second": "3.2.0",
    "interval year to month": "3.2.0",
    "timestamp_ntz": "3.4.0",
    "variant": "4.0.0",
}
SPARK_COMPOSITES = ("array", "map", "struct")
SPARK_SPACE = "builtin"
SPARK_PREFIXES = ("!", "-", "+", "~")


def spark_objects() -> v1.SystemObjectsRegistry:
    from skiway.spark_jobs.session import session

    with session("builtins", master="local[1]") as spark:
        return objects_of_spark(spark)


def objects_of_spark(spark: Any) -> v1.SystemObjectsRegistry:
    """The builtin objects of a running Spark, without those of its extensions."""
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)  # half of the attempts below fail
    registry = registry_of(spark.version, [SPARK_SPACE])
    analysis = spark._jvm.org.apache.spark.sql.catalyst.analysis
    known = dict(spark_infos(analysis.FunctionRegistry.builtin()))
    registry.functions.extend(spark_function(name, info) for name, info in known.items() if is_word(name))
    tables = spark_infos(analysis.TableFunctionRegistry.builtin())
    registry.functions.extend(spark_function(name, info, table=True) for name, info in tables)
    registry.aggregates.extend(aggregate_of(each) for each in registry.functions if each.is_aggregate)
    shown = [row[0] for row in spark.sql("SHOW FUNCTIONS").collect()]
    symbols = {name: known[name].getSince() if name in known else "" for name in shown if not is_word(name)}
    registry.operators.extend(spark_operators(spark, symbols))
    registry.casts.extend(spark_casts(spark))
    registry.collations.extend(spark_collations(spark))
    registry.types.extend(spark_types(used_types(registry)))
    return registry


def is_word(name: str) -> bool:
    return name[0].isalpha() or name[0] == "_"


def spark_infos(functions: Any) -> Iterator[tuple[str, Any]]:
    identifiers = functions.listFunction().iterator()
    while identifiers.hasNext():
        identifier = identifiers.next()
        yield identifier.funcName(), functions.lookupFunction(identifier).get()


def spark_function(name: str, info: Any, *, table: bool = False) -> v1.SqlFunction:
    """Spark declares no argument types, so a function accepts any number of arguments of any type."""
    return v1.SqlFunction(
        namespace=SPARK_SPACE,
        name=name,
        variadic_type=ANY,
        return_type="" if table else ANY,
        is_aggregate=info.getGroup() == "agg_funcs",
        is_window=info.getGroup() == "window_funcs",
        is_table=table,
        engine_specific=since(info.getSince()),
        **BUILTIN,
    )


def since(*versions: str) -> list[v1.EngineSpecific]:
    """The rule that an object exists since the latest of these versions; empty if that is not after `OLDEST_SPARK`."""
    last = max(versions, key=version_key, default="")
    return [v1.EngineSpecific(min_version=last)] if version_key(last) > version_key(OLDEST_SPARK) else []


def since_types(*types: str) -> list[str]:
    return [SPARK_TYPES_SINCE.get(type_, "") for type_ in types]


def spark_operators(spark: Any, names: dict[str, str]) -> Iterator[v1.SqlOperator]:
    """The signatures that Spark's analyzer accepts for each operator, with the versions in `names`."""
    for name, version in names.items():
        for type_ in SPARK_TYPES:
            value = f"CAST(NULL AS {type_})"
            tries = [(type_, f"{value} {name} {value}")]
            tries += [("", f"{name} {value}")] if name in SPARK_PREFIXES else []
            for left, expression in tries:
                result = spark_result(spark, expression)
                if result is not None:
                    found = operator(name, left, type_, result)
                    found.engine_specific.extend(since(version, *since_types(type_, result)))
                    yield found


def spark_result(spark: Any, expression: str) -> str | None:
    from pyspark.errors import AnalysisException

    try:
        found = spark.sql(f"SELECT {expression} AS value").schema[0].dataType.simpleString()
    except AnalysisException:
        return None
    return re.sub(r"\(\d+,\d+\)", "", str(found))


def spark_casts(spark: Any) -> Iterator[v1.SqlCast]:
    rules = spark._jvm.org.apache.spark.sql.catalyst.expressions.Cast
    types = {name: spark._jvm.org.apache.spark.sql.types.DataType.fromDDL(name) for name in SPARK_TYPES}
    for (source, from_type), (target, to_type) in product(types.items(), repeat=2):
        if source != target and rules.canAnsiCast(from_type, to_type):
            upwards, stored = rules.canUpCast(from_type, to_type), rules.canANSIStoreAssign(from_type, to_type)
            found = cast(source, target, v1.CM_IMPLICIT if upwards else v1.CM_ASSIGNMENT if stored else v1.CM_EXPLICIT)
            found.engine_specific.extend(since(*since_types(source, target)))
            yield found


def spark_collations(spark: Any) -> Iterator[v1.SqlCollation]:
    """Spark's collations. A name is a locale with its comparison rules: `de_CI_AI` is German, ignoring case and accents."""
    for (name,) in spark.sql("SELECT name FROM collations()").collect():
        locale = "" if name.startswith("U") else re.sub(r"(_(CI|AI|RTRIM))+$", "", name)
        yield v1.SqlCollation(name=name, locale=locale, engine_specific=since("4.0.0"), **BUILTIN)


def spark_types(used: set[str]) -> Iterator[v1.SqlType]:
    composites = dict.fromkeys(SPARK_COMPOSITES, "COMPOSITE")
    others = {name: "PSEUDO" if name == ANY else "INTERVAL" for name in used - SPARK_TYPES.keys()}
    for name, category in (SPARK_TYPES | composites | others).items():
        rules = since(*since_types(name))
        yield v1.SqlType(namespace=SPARK_SPACE, name=name, category=category, engine_specific=rules, **BUILTIN)


# --- files ------------------------------------------------------------------------------------------------------------

ENGINES: dict[str, Callable[[], v1.SystemObjectsRegistry]] = {"duckdb": duckdb_objects, "spark": spark_objects}


def sorted_registry(registry: v1.SystemObjectsRegistry) -> v1.SystemObjectsRegistry:
    """The registry with its objects sorted and without duplicates."""
    ordered = v1.SystemObjectsRegistry(namespaces=registry.namespaces, engine_specific=registry.engine_specific)
    once = {signature(each): each for each in objects(registry)}
    for field in CLASSES:
        wanted = {signature(each) for each in getattr(registry, field)}
        getattr(ordered, field).extend(once[name] for name in sorted(wanted))
    return ordered


def written(registry: v1.SystemObjectsRegistry) -> tuple[str, bytes]:
    """The suffix and content of a registry's file: one line per object, or binary if the text would be too long."""
    lines = [one_line(v1.SystemObjectsRegistry(namespaces=[name])) for name in registry.namespaces]
    for field in ("engine_specific", *CLASSES):
        lines += (f"{field} {{ {one_line(each)} }}" for each in getattr(registry, field))
    text = "\n".join(lines) + "\n"
    if len(text) < MAX_TEXT:
        return ".pbtxt", text.encode()
    return ".pb", registry.SerializeToString(deterministic=True)


def one_line(message: Message) -> str:
    return text_format.MessageToString(message, as_one_line=True)


def main(arguments: list[str]) -> None:
    wanted = [name for name in arguments if name != "--check"] or list(ENGINES)
    if unknown := sorted(set(wanted) - ENGINES.keys()):
        sys.exit(f"unknown engine {', '.join(unknown)}; choose from {', '.join(ENGINES)}")
    for name in wanted:
        write_or_check(name, ENGINES[name](), only_check="--check" in arguments)


def write_or_check(name: str, found: v1.SystemObjectsRegistry, *, only_check: bool) -> None:
    """Write the file of the engine, or exit with a message if it differs from what was found."""
    registry = sorted_registry(found)
    if faults := check(registry):
        sys.exit(f"the objects that {name} reports are invalid: {'; '.join(faults[:10])}")
    suffix, content = written(registry)
    file = TARGET / f"{name}{suffix}"
    if not only_check:
        file.write_bytes(content)
        print(f"{file.name}: {len(list(objects(registry)))} objects, {len(content)} bytes")
    elif not file.is_file() or file.read_bytes() != content:
        sys.exit(f"{file.name} differs from what the engine reports; run `scripts/generate_builtins.py {name}`")


if __name__ == "__main__":
    main(sys.argv[1:])

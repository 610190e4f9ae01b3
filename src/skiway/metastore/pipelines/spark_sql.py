"""The SQL of Spark that callers may use: one SELECT over tables of the lake, with functions that only compute values.

`Query` is one query of a caller: what it reads, and whether it works row by row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from itertools import pairwise
from typing import Final, NoReturn

import sqlglot
from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import SqlglotError
from sqlglot.parsers.spark import SparkParser
from sqlglot.tokenizer_core import TokenType

from skiway.errors import InvalidArgument
from skiway.formats import TableName

_MATH: Final = """
    abs acos acosh asin asinh atan atan2 atanh bin bround cbrt ceil ceiling conv cos cosh cot csc degrees div e exp expm1 factorial
    floor greatest hex hypot least ln log log10 log1p log2 mod negative pi pmod positive pow power radians rint round sec sign
    signum sin sinh sqrt tan tanh try_add try_divide try_mod try_multiply try_subtract unhex width_bucket
    bit_count bit_get getbit shiftleft shiftright shiftrightunsigned crc32 hash md5 sha sha1 sha2 xxhash64
"""

_DATES: Final = """
    add_months convert_timezone date_add date_diff date_format date_from_unix_date date_part date_sub date_trunc dateadd datediff
    datepart day dayname dayofmonth dayofweek dayofyear extract from_unixtime from_utc_timestamp hour last_day make_date
    make_dt_interval make_interval make_time make_timestamp make_timestamp_ltz make_timestamp_ntz make_ym_interval minute month
    monthname months_between next_day quarter second time_diff time_trunc timestamp_micros timestamp_millis
    timestamp_seconds timestampadd timestampdiff to_date to_time to_timestamp to_timestamp_ltz to_timestamp_ntz
    to_unix_timestamp to_utc_timestamp trunc try_make_interval try_make_timestamp try_make_timestamp_ltz try_make_timestamp_ntz
    try_to_date try_to_time try_to_timestamp unix_date unix_micros unix_millis unix_seconds weekday weekofyear year
"""

_TEXTS: Final = """
    aes_decrypt aes_encrypt ascii base64 bit_length btrim char char_length character_length chr collate collation concat concat_ws
    contains decode elt encode endswith find_in_set format_number format_string ilike initcap instr is_valid_utf8 lcase left len
    length levenshtein like locate lower lpad ltrim luhn_check make_valid_utf8 mask octet_length overlay parse_url position printf
    quote regexp regexp_count regexp_extract regexp_extract_all regexp_instr regexp_like regexp_replace regexp_substr repeat
    replace reverse right rlike rpad rtrim sentences soundex space split split_part startswith substr substring substring_index
    to_binary to_char to_number to_varchar translate trim try_aes_decrypt try_parse_url try_to_binary try_to_number
    try_url_decode try_validate_utf8 ucase unbase64 upper url_decode url_encode validate_utf8
"""

_CONDITIONS_AND_CASTS: Final = """
    between bigint binary boolean cast coalesce date decimal double equal_null float if ifnull int isnan isnotnull isnull nanvl
    nullif nullifzero nvl nvl2 smallint string time timestamp tinyint try_cast typeof when zeroifnull
"""

_NESTED_VALUES: Final = """
    aggregate array array_append array_compact array_contains array_distinct array_except array_insert array_intersect array_join
    array_max array_min array_position array_prepend array_remove array_repeat array_size array_sort array_union arrays_overlap
    arrays_zip cardinality element_at exists filter flatten forall get map map_concat
    map_contains_key map_entries map_filter map_from_arrays map_from_entries map_keys map_values map_zip_with named_struct
    reduce sequence size slice sort_array str_to_map struct transform transform_keys
    transform_values try_element_at zip_with
    from_csv from_json get_json_object is_variant_null json_array_length json_object_keys parse_json schema_of_csv
    schema_of_json schema_of_variant to_csv to_json to_variant_object try_parse_json try_variant_get variant_get
"""

_GENERATORS: Final = "explode explode_outer inline inline_outer json_tuple posexplode posexplode_outer stack"

_AGGREGATES_AND_WINDOWS: Final = """
    any any_value approx_count_distinct approx_percentile approx_top_k approx_top_k_accumulate approx_top_k_combine
    approx_top_k_estimate array_agg avg bit_and bit_or bit_xor bitmap_and_agg bitmap_bit_position bitmap_bucket_number
    bitmap_construct_agg bitmap_count bitmap_or_agg bool_and bool_or collect_list collect_set corr count count_if count_min_sketch
    covar_pop covar_samp cume_dist dense_rank every first first_value grouping grouping_id histogram_numeric hll_sketch_agg
    hll_sketch_estimate hll_union hll_union_agg kll_merge_agg_bigint kll_merge_agg_double kll_merge_agg_float
    kll_sketch_agg_bigint kll_sketch_agg_double kll_sketch_agg_float kll_sketch_get_n_bigint kll_sketch_get_n_double
    kll_sketch_get_n_float kll_sketch_get_quantile_bigint kll_sketch_get_quantile_double kll_sketch_get_quantile_float
    kll_sketch_get_rank_bigint kll_sketch_get_rank_double kll_sketch_get_rank_float kll_sketch_merge_bigint
    kll_sketch_merge_double kll_sketch_merge_float kll_sketch_to_string_bigint kll_sketch_to_string_double
    kll_sketch_to_string_float kurtosis lag last last_value lead listagg max max_by mean median min min_by
    mode nth_value ntile percent_rank percentile percentile_approx percentile_cont percentile_disc rank regr_avgx regr_avgy
    regr_count regr_intercept regr_r2 regr_slope regr_sxx regr_sxy regr_syy row_number schema_of_variant_agg session_window skewness
    some std stddev stddev_pop stddev_samp string_agg sum theta_difference theta_intersection theta_intersection_agg theta_sketch_agg
    theta_sketch_estimate theta_union theta_union_agg try_avg try_sum var_pop var_samp variance window window_time
"""

_CHANGING: Final = """
    curdate current_date current_time current_timestamp current_timezone localtimestamp monotonically_increasing_id now rand randn
    random randstr shuffle spark_partition_id uniform unix_timestamp uuid
"""

CHANGING_FUNCTIONS: Final = frozenset(_CHANGING.split())
"""Functions whose result can differ for the same arguments: it depends on the time or on chance."""

ROW_WISE_FUNCTIONS: Final = frozenset(" ".join((_MATH, _DATES, _TEXTS, _CONDITIONS_AND_CASTS, _NESTED_VALUES)).split())
"""Functions whose result depends on one row only."""

AGGREGATES: Final = frozenset(_AGGREGATES_AND_WINDOWS.split())
"""Functions whose result depends on several rows."""

SAFE_FUNCTIONS: Final = ROW_WISE_FUNCTIONS.union(CHANGING_FUNCTIONS, _GENERATORS.split(), AGGREGATES)
"""The functions that may be called, in lower case."""

FUNCTIONS_WITHOUT_PARENTHESES: Final = frozenset(
    (
        *("current_catalog", "current_database", "current_date", "current_time", "current_timestamp", "current_user"),
        *("grouping__id", "session_user", "user"),
    )
)
"""Names that Spark reads as functions where no column has the name, also if they are quoted."""


_ALLOWED: Final = (
    *(exp.Select, exp.SetOperation, exp.Subquery, exp.With, exp.CTE, exp.Values, exp.Table, exp.TableAlias, exp.From),
    *(exp.Join, exp.Lateral, exp.Pivot, exp.PivotAlias, exp.TableSample, exp.Where, exp.Group, exp.Having, exp.Qualify),
    *(exp.Cube, exp.Rollup, exp.GroupingSets, exp.Order, exp.Sort, exp.Cluster, exp.Distribute, exp.Ordered, exp.Limit),
    *(exp.Offset, exp.Distinct, exp.Window, exp.WindowSpec, exp.Filter, exp.WithinGroup, exp.IgnoreNulls),
    *(exp.RespectNulls, exp.Identifier, exp.Column, exp.Star, exp.Alias, exp.Aliases, exp.Literal, exp.HexString),
    *(exp.RawString, exp.Null, exp.Boolean, exp.Interval, exp.IntervalSpan, exp.Var, exp.DataType, exp.DataTypeParam),
    *(exp.ColumnDef, exp.Tuple, exp.Bracket, exp.Lambda, exp.Case, exp.AtTimeZone, exp.Func, exp.Binary, exp.Unary),
    exp.Predicate,
)
"""What a query may consist of. The functions are checked by name."""

_TABLE_PARTS: Final = frozenset(("this", "db", "catalog", "alias", "joins", "laterals", "pivots", "sample"))
_WORDS: Final = """
    all and as by case cluster cube distinct else end except exists filter for from group having in intersect interval is join
    lateral limit not offset on or order over partition pivot qualify rollup rows select sets sort tablesample then union unpivot
    using values varchar when where with
"""
_KEYWORDS: Final = frozenset(_WORDS.split())
"""Words that can be followed by a parenthesis, and are not functions then."""


class _PipelineSpark(Spark):
    """The dialect of Spark, in which functions keep their names and arguments.

    The usual parser understands functions, and writes some of them in another way, which is not always equivalent.
    """

    class Tokenizer(Spark.Tokenizer):
        STRING_ESCAPES = ["\\", "'", '"']  # noqa: RUF012 - since version 4, two quotes in a text are one

    class Parser(SparkParser):
        FUNCTIONS = {"ARRAY": SparkParser.FUNCTIONS["ARRAY"]}  # noqa: RUF012 - without it, `array(1, 2)[0]` is misread
        FUNCTION_PARSERS = {  # noqa: RUF012 - the functions with keywords among their arguments
            name: SparkParser.FUNCTION_PARSERS[name]
            for name in ("CAST", "EXTRACT", "OVERLAY", "POSITION", "SUBSTR", "SUBSTRING", "TRIM", "TRY_CAST")
        }


def checked_select(sql: str, *, file: str = "") -> exp.Query:
    """The SELECT in a text, which may be that of a file. Raise `InvalidArgument` if it is not one, or may leave the lake."""
    try:
        statements = [each for each in sqlglot.parse(sql, dialect=_PipelineSpark) if each is not None]
    except (SqlglotError, ValueError) as error:
        first = str(error).splitlines()[0] if str(error) else "syntax error"
        _refuse(file, f"it cannot be parsed as SQL of Spark: {first}")
    except RecursionError:
        _refuse(file, "it is nested too deeply")
    if len(statements) != 1:
        _refuse(file, f"it has {len(statements)} statements: write one SELECT")
    tree = statements[0]
    if not isinstance(tree, exp.Select | exp.SetOperation):
        _refuse(file, "it is not a SELECT")
    for node in tree.walk():
        _check(node, file)
    if "${" in sql_text(tree):
        _refuse(file, "it contains '${', which Spark replaces by settings of the server: write it in another way")
    for function in sorted(called_functions(tree) - SAFE_FUNCTIONS):
        similar = get_close_matches(function, SAFE_FUNCTIONS, 1, cutoff=0.8)
        _refuse(
            file,
            f"the function {function} is not allowed: queries may call functions of Spark that only compute values"
            + (f"; did you mean {similar[0]}?" if similar else ", so write the query without it"),
        )
    return tree


def sql_text(node: exp.Expr) -> str:
    """The text that Spark gets, without comments. Equal trees have equal texts."""
    return node.sql(_PipelineSpark, comments=False, normalize_functions=False)


def _check(node: exp.Expr, file: str) -> None:
    """Refuse what is not known to be harmless."""

    def refuse(why: str) -> None:
        _refuse(file, why.format(repr(sql_text(node)[:60])))

    if isinstance(node, exp.Hint):
        refuse("it has the hint {}: remove it, Spark chooses by itself")
    if not isinstance(node, _ALLOWED):
        refuse("{} is not allowed")
    if isinstance(node, exp.Dot) and isinstance(node.expression, exp.Func):
        refuse("{} calls a function of a catalog: call functions of Spark, by their names alone")
    if isinstance(node, exp.Column) and not node.table and node.name.lower() in FUNCTIONS_WITHOUT_PARENTHESES:
        refuse("Spark may read {} as a function: write the table before the name of the column")
    if isinstance(node, exp.With) and node.recursive:
        refuse("it has WITH RECURSIVE: write it without recursion")
    if isinstance(node, exp.Table):
        if not isinstance(node.this, exp.Identifier | exp.Dot):
            refuse("{} is not a table: name a table of the lake")
        if node.args.get("version") is not None or node.args.get("when") is not None:
            refuse("{} reads a fixed version: only current tables can be read")
        if any(value for key, value in node.args.items() if key not in _TABLE_PARTS):
            refuse("{} is not just the name of a table: name a table of the lake")


def called_functions(tree: exp.Query) -> frozenset[str]:
    """The names of the functions that Spark finds in a query, in lower case.

    They are taken from the text that Spark gets, because the names in the tree are not always those in the text.
    """
    shown = tree.copy()
    for alias in shown.find_all(exp.TableAlias):
        alias.set("columns", None)  # in `t(a, b)`, t is not a function
    found = set()
    for token, following in pairwise(sqlglot.tokenize(sql_text(shown), _PipelineSpark)):
        name = token.text.lower()
        if following.token_type is not TokenType.L_PAREN or token.token_type is TokenType.STRING:
            continue
        if token.token_type is TokenType.IDENTIFIER or (name.isidentifier() and name not in _KEYWORDS):
            found.add(name)
    plain = [each for each in tree.find_all(exp.Func) if next(each.iter_expressions(), None) is None]
    return frozenset(found.union(sql_text(each).lower().removesuffix("()") for each in plain))


def _refuse(file: str, why: str) -> NoReturn:
    if not file:
        raise InvalidArgument(f"the query cannot be used: {why}", key="spark.query")
    raise InvalidArgument(f"the query in {file} cannot be used: {why}", key="pipeline.query", file=file)


_ROW_WISE: Final = (
    *(exp.Select, exp.From, exp.Where, exp.Table, exp.TableAlias, exp.Identifier, exp.Star, exp.Column, exp.Alias),
    *(exp.Literal, exp.HexString, exp.RawString, exp.Null, exp.Boolean, exp.DataType, exp.DataTypeParam, exp.ColumnDef),
    *(exp.Var, exp.Paren, exp.Interval, exp.IntervalSpan, exp.And, exp.Or, exp.Not, exp.EQ, exp.NEQ, exp.GT, exp.GTE),
    *(exp.LT, exp.LTE, exp.NullSafeEQ, exp.NullSafeNEQ, exp.Is, exp.Between, exp.In, exp.Tuple, exp.Like, exp.ILike),
    *(exp.RegexpLike, exp.Escape, exp.Add, exp.Sub, exp.Mul, exp.Div, exp.IntDiv, exp.Mod, exp.Neg, exp.DPipe),
    *(exp.Concat, exp.BitwiseAnd, exp.BitwiseOr, exp.BitwiseXor, exp.BitwiseNot, exp.Case, exp.If, exp.Cast),
    *(exp.TryCast, exp.Extract, exp.Trim, exp.Substring, exp.Overlay, exp.StrPosition, exp.Array, exp.Dot),
    *(exp.Bracket, exp.Transform, exp.Lambda, exp.Kwarg, exp.PropertyEQ),
)
"""What may occur in a query whose rows each depend on one row of its table. Everything else is refreshed in full."""


@dataclass(frozen=True)
class Query:
    """A query that has been checked. `reads` are the names of its tables, as they are written in it."""

    tree: exp.Query
    reads: tuple[TableName, ...]

    @cached_property
    def text(self) -> str:
        """The query in one spelling: equal for queries that differ only in comments, white space or case of keywords."""
        return sql_text(self.tree)

    def reading(self, views: Mapping[TableName, str]) -> str:
        """The text of the query that reads these views instead of the tables."""
        return sql_text(self.renamed(views))

    def renamed(self, views: Mapping[TableName, str]) -> exp.Query:
        """The query that reads these views instead of the tables. Each view has the name of its table as an alias.

        Common table expressions get other names, too. So Spark sees no name that could be one of its own tables.
        """

        def view(node: exp.Table, name: TableName) -> exp.Expr:
            return other_table(node, exp.to_identifier(views[name], quoted=True))

        made = self.with_tables(view)
        for node in [each for each in made.find_all(exp.Table) if _is_local(each)]:
            node.replace(other_table(node, exp.to_identifier(f"cte {node.name.casefold()}", quoted=True)))
        for expression in made.find_all(exp.CTE):
            expression.args["alias"].set("this", exp.to_identifier(f"cte {_cte_name(expression)}", quoted=True))
        return made

    def with_tables(self, made: Callable[[exp.Table, TableName], exp.Expr]) -> exp.Query:
        """The query with other nodes in the places of the tables. Columns are not qualified by namespaces any more."""
        tree = self.tree.copy()
        for node in [each for each in tree.find_all(exp.Table) if not _is_local(each)]:
            node.replace(made(node, table_name(node)))
        qualified = {(read.namespace[-1].casefold(), read.name.casefold()) for read in self.reads if read.namespace}
        for column in tree.find_all(exp.Column):
            if (column.db.casefold(), column.table.casefold()) in qualified:
                column.set("db", None)
                column.set("catalog", None)
        return tree

    @property
    def why_not_row_wise(self) -> str:
        """Why new rows of the input cannot just be added to the result; empty if they can."""
        if not isinstance(self.tree, exp.Select) or len(list(self.tree.find_all(exp.Select))) > 1:
            return "the query has more than one SELECT"
        if len(list(self.tree.find_all(exp.Table))) != 1:
            return "the query does not read exactly one table"
        for node in self.tree.walk():
            is_known = (
                node.name.lower() in ROW_WISE_FUNCTIONS if isinstance(node, exp.Anonymous) else type(node) in _ROW_WISE
            )
            if not is_known:
                return f"the query has {sql_text(node)[:60]!r}, which may depend on several rows"
        return ""

    @property
    def changes_by_itself(self) -> bool:
        """Whether the result can differ although all tables are the same: it depends on the time or on chance."""
        if self.tree.find(exp.TableSample) is not None:
            return True
        return bool(called_functions(self.tree) & CHANGING_FUNCTIONS)


def parse_query(sql: str, *, file: str = "") -> Query:
    """Parse and check a SELECT, which may be in a file. Raise `InvalidArgument` if it is not one, or may leave the lake."""
    tree = checked_select(sql, file=file)
    reads = {table_name(node): None for node in tree.find_all(exp.Table) if not _is_local(node)}
    return Query(tree, tuple(reads))


def other_table(node: exp.Table, this: exp.Expr, db: exp.Expr | None = None) -> exp.Table:
    """A table for the place of another one, whose name it has as an alias."""
    alias = node.args.get("alias") or exp.TableAlias(this=exp.to_identifier(node.name, quoted=True))
    others = {key: value for key, value in node.args.items() if key not in ("this", "db", "catalog", "alias")}
    return exp.Table(this=this, db=db, alias=alias, **others)


def _is_local(node: exp.Table) -> bool:
    """Whether the name is that of a common table expression of the query, before which Spark has read it."""
    if node.args.get("db") is not None:
        return False
    name = node.name.casefold()
    below: exp.Expr = node
    above = node.parent
    while above is not None:
        clause = above.args.get("with_")
        visible = clause.expressions if clause is not None and clause is not below else []
        if isinstance(above, exp.With):
            visible = above.expressions[: above.expressions.index(below)]
        if name in map(_cte_name, visible):
            return True
        below, above = above, above.parent
    return False


def _cte_name(node: exp.CTE) -> str:
    return node.alias.casefold()


def table_name(node: exp.Table) -> TableName:
    """The name of a table, as it is written in a query."""
    parts = [part.name for part in node.parts]
    return TableName(tuple(parts[:-1]), parts[-1])

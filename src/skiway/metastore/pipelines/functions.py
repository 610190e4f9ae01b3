"""The functions that queries of pipelines may call: built-in functions of Spark whose result depends on their arguments only.

A function that is not here is refused. So functions that a cluster adds, or a later version of Spark, cannot be called until
someone has looked at them. Not here, although Spark has them:

- functions that call code: `reflect`, `java_method`, `try_reflect`;
- functions with options that name files: those of XML, Avro and Protobuf;
- functions that tell about the server or the session: `current_user`, `version`, `input_file_name`, `python_worker_logs`, ...;
- `raise_error` and `assert_true`: their messages would show values in the errors of jobs, to people who may not read the table.
"""

from __future__ import annotations

from typing import Final

__all__ = ["CHANGING_FUNCTIONS", "FUNCTIONS_WITHOUT_PARENTHESES", "ROW_WISE_FUNCTIONS", "SAFE_FUNCTIONS"]

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

SAFE_FUNCTIONS: Final = ROW_WISE_FUNCTIONS.union(
    CHANGING_FUNCTIONS, _GENERATORS.split(), _AGGREGATES_AND_WINDOWS.split()
)
"""The functions that may be called, in lower case."""

FUNCTIONS_WITHOUT_PARENTHESES: Final = frozenset(
    (
        *("current_catalog", "current_database", "current_date", "current_time", "current_timestamp", "current_user"),
        *("grouping__id", "session_user", "user"),
    )
)
"""Names that Spark reads as functions where no column has the name, also if they are quoted."""

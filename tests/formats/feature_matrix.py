"""What can be read and written of each format, through Airport and over REST: one cell per feature and door.

A cell names the test that shows it, or says why the answer is no. `python -m formats.feature_matrix docs/formats.md` writes
the page (with `PYTHONPATH=tests`), and `test_feature_matrix.py` fails if the page is out of date or a test does not exist.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Final

from skiway.formats.delta.table import SUPPORTED_FEATURES

BEGIN: Final = "<!-- matrix: generated, do not edit -->"
END: Final = "<!-- end of matrix -->"
DOORS: Final = ("Airport read", "Airport write", "REST read", "REST write")


@dataclass(frozen=True)
class Cell:
    """An answer. `test` shows it: the file below `tests/` and the name of the function."""

    answer: str
    test: str = ""
    reason: str = ""


@dataclass(frozen=True)
class Row:
    """A feature of a format, and whether each door supports it."""

    format: str
    feature: str
    cells: tuple[Cell, Cell, Cell, Cell]


def yes(test: str) -> Cell:
    return Cell("yes", test)


def no(reason: str, test: str = "") -> Cell:
    return Cell("no", test, reason)


def untested(reason: str) -> Cell:
    """Nothing prevents it, but no test shows it."""
    return Cell("untested", "", reason)


MIRROR: Final = "tables of other catalogs are read-only"
MIRRORED: Final = no(MIRROR, "lake/test_refusals.py::test_write_to_a_mirrored_table_names_its_source")
REST_EXPORTED: Final = no(MIRROR, "lake/test_export_lifecycle.py::test_changes_are_refused")
REFUSED: Final = no(
    "Iceberg clients would read other rows: the table is refused with the reason, and is a generic table",
    "lake/test_refused_exports.py::test_table_is_refused_with_the_reason",
)
REST_MIRROR: Final = no(MIRROR, "rest/test_mirrored.py::test_changes_are_rejected_with_the_name_of_the_connector")
CLIENT: Final = "the REST client reads the files itself"
CLIENT_WRITES: Final = "the REST client writes the files itself"
NEVER_WRITTEN: Final = "Airport writes rows as Parquet files, and deletes by position or by rewriting files"

ROWS: Final = (
    Row(
        "Iceberg, managed",
        "INSERT, UPDATE, DELETE",
        (
            yes("lake/test_writing.py::test_inserts_updates_and_deletes_match_duckdb"),
            yes("lake/test_writing.py::test_inserts_updates_and_deletes_match_duckdb"),
            yes("rest/test_pyiceberg.py::test_appended_rows_are_read_back"),
            yes("rest/test_pyiceberg.py::test_rows_can_be_overwritten_and_deleted"),
        ),
    ),
    Row(
        "Iceberg, managed",
        "columns added, renamed, dropped, widened",
        (
            yes("lake/test_binding.py::test_renamed_column_keeps_its_old_name"),
            yes("lake/test_writing.py::test_schema_changes_match_duckdb"),
            yes("rest/test_pyiceberg.py::test_columns_can_be_added_renamed_and_dropped"),
            yes("rest/test_pyiceberg.py::test_columns_can_be_added_renamed_and_dropped"),
        ),
    ),
    Row(
        "Iceberg, managed",
        "partitions and sort orders",
        (
            yes("lake/test_layout_functions.py::test_new_rows_are_partitioned_and_old_ones_stay"),
            yes("lake/test_layout_functions.py::test_new_rows_are_sorted"),
            yes("rest/test_pyiceberg.py::test_partitions_sort_order_and_properties_are_preserved"),
            yes("rest/test_pyiceberg.py::test_partitions_sort_order_and_properties_are_preserved"),
        ),
    ),
    Row(
        "Iceberg, managed",
        "branches and tags",
        (
            yes("lake/test_snapshot_functions.py::test_named_snapshots_are_read"),
            no("statements write to the main branch; `skiway.tag` and `branch` create names"),
            yes("rest/test_pyiceberg.py::test_only_snapshots_with_refs_are_loaded_on_request"),
            untested(CLIENT_WRITES),
        ),
    ),
    Row(
        "Iceberg, managed",
        "position deletes (v2)",
        (
            yes("lake/test_merge_on_read.py::test_all_readers_see_the_rows_after_every_statement"),
            yes("lake/test_merge_on_read.py::test_position_delete_files_add_up_and_name_their_data_file"),
            untested(CLIENT),
            untested(CLIENT_WRITES),
        ),
    ),
    Row(
        "Iceberg, managed",
        "deletion vectors (v3)",
        (
            yes("lake/test_merge_on_read.py::test_all_readers_see_the_rows_after_every_statement"),
            yes("lake/test_merge_on_read.py::test_a_data_file_has_at_most_one_deletion_vector"),
            untested(CLIENT),
            untested(CLIENT_WRITES),
        ),
    ),
    Row(
        "Iceberg, managed",
        "tables with equality deletes",
        (
            yes("lake/test_tables_with_deletes.py::test_statements_work_on_tables_with_deletes"),
            yes("lake/test_tables_with_deletes.py::test_statements_work_on_tables_with_deletes"),
            untested(CLIENT),
            untested(CLIENT_WRITES),
        ),
    ),
    Row(
        "Iceberg, managed",
        "data files in Avro and ORC",
        (
            yes("lake/test_tables_with_deletes.py::test_statements_work_on_files_of_other_formats"),
            no(NEVER_WRITTEN),
            untested(CLIENT),
            untested(CLIENT_WRITES),
        ),
    ),
    Row(
        "Iceberg, managed",
        "nanosecond timestamps, geometry (v3)",
        (
            yes("lake/test_created_types.py::test_nanoseconds_and_geometries_make_a_table_of_version_3"),
            yes("lake/test_created_types.py::test_nanoseconds_and_geometries_make_a_table_of_version_3"),
            untested(CLIENT),
            untested(CLIENT_WRITES),
        ),
    ),
    Row(
        "Iceberg, managed",
        "row lineage (v3)",
        (
            no(
                "clients do not see it: it is kept in the files",
                "lake/test_row_lineage.py::test_other_readers_see_the_table_without_its_lineage",
            ),
            yes("lake/test_row_lineage.py::test_updated_rows_keep_their_ids_and_get_the_number_of_the_commit"),
            untested(CLIENT),
            untested(CLIENT_WRITES),
        ),
    ),
    Row(
        "Iceberg, managed",
        "initial and write defaults (v3)",
        (
            yes("lake/test_write_defaults.py::test_rows_without_the_columns_have_their_write_defaults"),
            yes("lake/test_write_defaults.py::test_rows_without_the_columns_have_their_write_defaults"),
            untested(CLIENT),
            untested(CLIENT_WRITES),
        ),
    ),
    Row(
        "Iceberg, mirrored",
        "all snapshots, v1 to v3",
        (
            yes("lake/test_contents.py::test_iceberg_snapshots_have_the_rows_that_pyiceberg_reads"),
            MIRRORED,
            yes("rest/test_mirrored.py::test_rows_equal_those_of_the_source"),
            REST_MIRROR,
        ),
    ),
    Row(
        "Iceberg, mirrored",
        "equality deletes",
        (
            yes(
                "formats/iceberg/test_equality_deletes.py::test_tables_with_equality_deletes_have_the_rows_that_duckdb_reads"
            ),
            MIRRORED,
            untested(CLIENT),
            REST_MIRROR,
        ),
    ),
    Row(
        "Iceberg, mirrored",
        "data files in Avro and ORC",
        (
            yes("formats/iceberg/test_data_formats.py::test_values_of_all_types_are_read"),
            MIRRORED,
            untested(CLIENT),
            REST_MIRROR,
        ),
    ),
    Row(
        "Iceberg, mirrored",
        "variant (v3), as JSON",
        (
            yes("formats/iceberg/test_version_3.py::test_variants_are_read_as_json"),
            MIRRORED,
            no(
                "the metadata of the table cannot be served: the table is refused with the reason",
                "lake/test_odd_tables.py::test_rest_clients_do_not_see_unreadable_tables_and_learn_the_reason",
            ),
            REST_MIRROR,
        ),
    ),
    Row(
        "Iceberg, mirrored",
        "geometry and geography (v3)",
        (
            yes("formats/iceberg/test_version_3.py::test_geometries_and_geographies_are_well_known_bytes"),
            MIRRORED,
            untested(CLIENT),
            REST_MIRROR,
        ),
    ),
    Row(
        "Iceberg, mirrored",
        "unknown columns (v3)",
        (
            yes("formats/iceberg/test_version_3.py::test_unknown_columns_are_null"),
            MIRRORED,
            untested(CLIENT),
            REST_MIRROR,
        ),
    ),
    Row(
        "Delta",
        "all versions in the log",
        (
            yes("lake/test_contents.py::test_delta_versions_have_the_rows_that_duckdb_reads"),
            MIRRORED,
            yes("lake/test_exported_tables.py::test_pyiceberg_reads_every_version_of_a_delta_table"),
            REST_EXPORTED,
        ),
    ),
    Row(
        "Delta",
        "deletion vectors, column mapping",
        (
            yes("spark_jobs/test_foreign_tables.py::test_delta_versions_have_the_rows_that_spark_reads"),
            MIRRORED,
            REFUSED,
            REST_EXPORTED,
        ),
    ),
    Row(
        "Delta",
        "type widening",
        (
            yes("spark_jobs/test_foreign_tables.py::test_delta_versions_have_the_rows_that_spark_reads"),
            MIRRORED,
            yes("spark_jobs/test_exported_spark.py::test_versions_of_delta_tables"),
            REST_EXPORTED,
        ),
    ),
    Row(
        "Delta",
        "timestamps of type INT96",
        (
            yes("formats/parquet/test_int96.py::test_rows_have_the_types_of_the_schema"),
            MIRRORED,
            REFUSED,
            REST_EXPORTED,
        ),
    ),
    Row(
        "Delta",
        "shallow clones",
        (
            yes("formats/test_delta_clones.py::test_a_clone_reads_the_files_of_its_source"),
            MIRRORED,
            untested(CLIENT),
            REST_EXPORTED,
        ),
    ),
    Row(
        "Delta",
        "other reader features",
        (
            no(
                "the table is rejected with their names",
                "formats/test_refusals.py::test_unknown_delta_feature_is_rejected",
            ),
            MIRRORED,
            no(
                "the table is rejected with their names",
                "formats/test_refusals.py::test_unknown_delta_feature_is_rejected",
            ),
            REST_EXPORTED,
        ),
    ),
    Row(
        "Parquet",
        "folders, with partitions in their paths",
        (
            yes("lake/test_contents.py::test_parquet_tables_have_the_rows_that_duckdb_reads"),
            MIRRORED,
            yes("lake/test_exported_tables.py::test_duckdb_reads_parquet_tables"),
            REST_EXPORTED,
        ),
    ),
    Row(
        "Parquet",
        "integers, floats or decimals of different sizes",
        (
            yes("formats/parquet/test_widening.py::test_widened_column_has_the_rows_that_duckdb_reads"),
            MIRRORED,
            yes("lake/test_exported_tables.py::test_pyiceberg_reads_parquet_tables"),
            REST_EXPORTED,
        ),
    ),
    Row(
        "Parquet",
        "files with other types that have a common wider one",
        (
            yes("formats/parquet/test_widening.py::test_widened_column_has_the_rows_that_duckdb_reads"),
            MIRRORED,
            REFUSED,
            REST_EXPORTED,
        ),
    ),
    Row(
        "Parquet",
        "files with incompatible types",
        (
            no(
                "the table is rejected",
                "formats/parquet/test_widening.py::test_types_without_a_common_one_are_rejected",
            ),
            MIRRORED,
            no(
                "the table is rejected",
                "formats/parquet/test_widening.py::test_types_without_a_common_one_are_rejected",
            ),
            REST_EXPORTED,
        ),
    ),
)


DELTA_UNSUPPORTED: Final = (
    "variantType",
    "variantType-preview",
    "variantShredding-preview",
    "catalogManaged",
    "catalogOwned-preview",
)
"""Reader features of Delta that are known and not supported."""


def reasons() -> list[str]:
    """All reasons, numbered from 1 in the order of the rows."""
    return list(dict.fromkeys(cell.reason for row in ROWS for cell in row.cells if cell.reason))


def matrix() -> str:
    """The tables, and the reasons below them."""
    numbered = (f"{number}. {text}" for number, text in enumerate(reasons(), 1))
    return "\n".join([*_tables(), *numbered, "", *_delta_features()])


def _delta_features() -> Iterator[str]:
    yield "### Reader features of Delta\n"
    yield f"- supported: {', '.join(f'`{name}`' for name in sorted(SUPPORTED_FEATURES))}"
    unsupported = ", ".join(f"`{name}`" for name in sorted(DELTA_UNSUPPORTED))
    yield f"- unsupported: {unsupported}, and all that are not listed here. Those of variants may be set if no column is one\n"


def _tables() -> Iterator[str]:
    for name, rows in groupby(ROWS, key=lambda row: row.format):
        yield f"### {name}\n\n| | {' | '.join(DOORS)} |\n|---|---|---|---|---|"
        for row in rows:
            yield f"| {row.feature} | {' | '.join(map(_shown, row.cells))} |"
        yield ""
    yield "### Reasons\n"


def _shown(cell: Cell) -> str:
    return f"{cell.answer} ({reasons().index(cell.reason) + 1})" if cell.reason else cell.answer


def page_with_matrix(page: str) -> str:
    """The page with the current matrix between its two markers."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{matrix()}\n{END}{after}"


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(page_with_matrix(path.read_text()))

"""Statistics of snapshots: of tables, columns and files.

The calls of `StatisticsService` are exported here. `api` stores and lists statistics, `bounds` compares and validates values,
`file_table` stores files as Arrow tables, and `summaries` has histories, partitions and sizes.
"""

from skiway.metastore.statistics.api import (
    CURRENT_VERSION,
    OTHER_FORMATS,
    PROFILE_VERSION,
    SAMPLED_FILES,
    column_statistics,
    column_statistics_address,
    counted_nulls,
    distinct_count,
    file_statistics,
    get_table,
    has_column_statistics,
    is_older,
    is_row_bound,
    lacks_profiles,
    list_columns,
    list_files,
    present_column_statistics,
    profile_version,
    put_columns,
    put_files,
    put_table,
    table_statistics,
    without_outdated,
)
from skiway.metastore.statistics.summaries import (
    add_to_history,
    list_history,
    list_partitions,
    list_tables,
    partition_statistics,
    present_columns,
    size_of,
    statistics_history,
)

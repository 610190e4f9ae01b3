"""Optimization of tables on Spark, with Iceberg's procedures and through the lake's own REST door.

Spark needs Iceberg's runtime on its class path. A session of its own has a catalog with a random name, an address and the token of the
job, for the duration of the job only. Spark hides values with such names in its logs and plans; what it says about a failure
is in the log of the worker, without the token.
"""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from skiway.errors import PreconditionFailed, SkiwayError, Unavailable, Unsupported
from skiway.formats import Content
from skiway.formats.iceberg.changes.maintenance import CompactionRules
from skiway.formats.row_order import SortedBy
from skiway.metastore.managed.states import ManagedTable
from skiway.metastore.reconcile.outcomes import Control
from skiway.metastore.table_maintenance.optimizing import ATTEMPTS, OptimizeReport
from skiway.security import LeasedJob
from skiway.spark_jobs.interruption import check_interrupted
from skiway.spark_jobs.java import ICEBERG, fetch_jar
from skiway.spark_jobs.session import separate_session
from skiway.telemetry.logs import conceal

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_KEEPS_LINEAGE: Final = (1, 10)
"""The first version of Iceberg whose rewrites keep the row lineage of tables of version 3."""
_NO_ICEBERG: Final = re.compile(r"Cannot find catalog plugin class|ClassNotFoundException: org\.apache\.iceberg")
_NO_DOOR: Final = re.compile(r"Connection refused|UnknownHostException|ConnectTimeout|NoRouteToHost|HttpHostConnect")
_LOST_RACE: Final = re.compile(
    r"CommitFailedException|Cannot commit|conflicting|Missing required files|Deleted manifest .* could not be found"
)

log = logging.getLogger("skiway.maintenance")


@dataclass(frozen=True, slots=True)
class SparkOptimizer:
    """Optimizes tables on Spark. `rest_uri` is asked for the REST door, and `token` for the token of a job: it gets the
    job and the id of the table. Without `from_bytes`, Spark is used on request only. With `fetch_jars`, Iceberg is fetched if a
    session lacks it.
    """

    spark: Callable[[], SparkSession]
    rest_uri: Callable[[], str]
    token: Callable[[LeasedJob, str], str] = field(repr=False)
    from_bytes: int | None = None
    fetch_jars: bool = True

    def optimize(
        self, table: ManagedTable, name: Sequence[str], rules: CompactionRules, *, job: LeasedJob, control: Control
    ) -> OptimizeReport:
        """Rewrite data files, position deletes and manifests. Writers win: files that others change are tried a few times."""
        at = self.rest_uri()
        token = self.token(job, table.id)
        conceal(token)
        report = OptimizeReport()
        spark = self.spark()
        with _catalog(spark, at, name[0], token) as call, _explained(at, token, partial(self._without_iceberg, spark)):
            if table.metadata.format_version >= 3:
                _require_lineage(call.version())
            every_delete = not rules.max_deleted or _has_equality_deletes(table)
            for attempt in range(1, ATTEMPTS + 1):
                control.check()
                # The last attempt commits all or nothing, because only then does Iceberg say why it failed.
                in_parts = attempt < ATTEMPTS
                if call.rewrite(name[1:], _arguments(rules, every_delete=every_delete, in_parts=in_parts), report):
                    break
            control.check()
            if table.metadata.format_version == 2:
                call.attempt("rewrite_position_delete_files", name[1:])
            if manifests := call.attempt("rewrite_manifests", name[1:]):
                report.manifests_before = manifests["rewritten_manifests_count"]
                report.manifests_after = manifests["added_manifests_count"]
        return report

    def _without_iceberg(self, spark: SparkSession) -> SkiwayError:
        """The error of a session without Iceberg. It is fetched for the next session, since it cannot be added to a running one."""
        if self.fetch_jars and fetch_jar(spark, ICEBERG):
            advice = "it was fetched now: restart the worker once, and run the job again"
        else:
            advice = (
                f"fetch {ICEBERG} on a machine with a network, add the jar as spark.jars and "
                "spark.sql.extensions=org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions to reconciler.spark.conf, and "
                "restart the worker"
            )
        return PreconditionFailed(
            f"this Spark was started without Iceberg; {advice}, or optimize with --engine process",
            key="maintenance.spark.jars",
        )


@dataclass(frozen=True, slots=True)
class _Calls:
    """Calls of Iceberg's procedures in a catalog of a session."""

    session: SparkSession
    catalog: str

    def version(self) -> str:
        """The version of Iceberg."""
        ((found,),) = self.session.sql(f"SELECT {self.catalog}.system.iceberg_version()").collect()
        return str(found)

    def rewrite(self, name: Sequence[str], arguments: Mapping[str, str], report: OptimizeReport) -> bool:
        """Rewrite data files and add the figures to the report; whether nothing was lost to other writers."""
        report.given_up.clear()
        done = self.attempt("rewrite_data_files", name, **arguments)
        if done is None:
            report.given_up.append("others changed the files")
            return False
        report.commits += bool(done["added_data_files_count"])
        report.files_before += done["rewritten_data_files_count"]
        report.files_after += done["added_data_files_count"]
        report.bytes_before += done["rewritten_bytes_count"]
        report.deletes_removed += done["removed_delete_files_count"]
        if failed := done["failed_data_files_count"]:
            report.given_up.append(f"{failed} files: others changed them")
        return not failed

    def attempt(self, procedure: str, name: Sequence[str], **arguments: str) -> dict[str, Any] | None:
        """The row that a procedure returns; None if other writers were faster. Arguments are SQL."""
        from skiway.spark_jobs.profile.values import quoted  # its package needs the extra `spark`

        table = _literal(".".join(map(quoted, name)))
        given = ", ".join(f"{key} => {value}" for key, value in {"table": table, **arguments}.items())
        try:
            (row,) = self.session.sql(f"CALL {self.catalog}.system.{procedure}({given})").collect()
        except Exception as error:
            check_interrupted(error)
            if not _LOST_RACE.search(str(error)):
                raise
            log.info("%s lost against other writers: %s", procedure, str(error).partition("\n")[2][:200])
            return None
        check_interrupted()
        found: dict[str, Any] = row.asDict()
        return found


@contextmanager
def _catalog(spark: SparkSession, uri: str, warehouse: str, token: str) -> Iterator[_Calls]:
    """A catalog of the lake in a session of its own, for the duration of the block."""
    name = f"lake_{uuid.uuid4().hex}"
    prefix = f"spark.sql.catalog.{name}"
    settings = {
        prefix: "org.apache.iceberg.spark.SparkCatalog",
        f"{prefix}.type": "rest",
        f"{prefix}.uri": uri,
        f"{prefix}.warehouse": warehouse,
        f"{prefix}.token": token,
        f"{prefix}.token-refresh-enabled": "false",
        f"{prefix}.cache-enabled": "false",
        f"{prefix}.header.X-Iceberg-Access-Delegation": "vended-credentials",
    }
    with separate_session(spark, settings) as session:
        try:
            yield _Calls(session, name)
        finally:
            with suppress(Exception):  # a session that is gone has no settings
                for key in settings:
                    session.conf.unset(key)


def _has_equality_deletes(table: ManagedTable) -> bool:
    current = table.handle.current()
    return current is not None and Content.EQUALITY_DELETES in table.handle.files(current)["content"].to_pylist()


def _arguments(rules: CompactionRules, *, every_delete: bool, in_parts: bool) -> Mapping[str, str]:
    """The arguments of `rewrite_data_files` for our rules. `in_parts`, what is ready is committed before the rest."""
    options = {
        "target-file-size-bytes": str(rules.target_bytes),
        "min-input-files": str(rules.min_files),
        "max-file-group-size-bytes": str(rules.group_bytes),
        "remove-dangling-deletes": "true",
        "partial-progress.enabled": str(in_parts).lower(),
    }
    if every_delete:
        options["delete-file-threshold"] = "1"
    else:
        options["delete-ratio-threshold"] = str(rules.max_deleted)
    order = rules.order
    if order is not None:
        options["rewrite-all"] = "true"
    pairs = ", ".join(f"{_literal(key)}, {_literal(value)}" for key, value in options.items())
    given = {"options": f"map({pairs})"}
    if order is None:
        return {"strategy": "'binpack'", **given}
    from skiway.spark_jobs.profile.values import quoted

    if isinstance(order.order, SortedBy):
        by = ", ".join(
            f"{quoted(name)} {'DESC' if way == 'descending' else 'ASC'} NULLS {'FIRST' if nulls == 'at_start' else 'LAST'}"
            for name, way, nulls in order.order.by
        )
    else:
        by = f"zorder({', '.join(map(quoted, order.order.columns))})"
    return {"strategy": "'sort'", "sort_order": _literal(by), **given}


@contextmanager
def _explained(uri: str, token: str, without_iceberg: Callable[[], SkiwayError]) -> Iterator[None]:
    """A block in which Spark works. What it says is only in the log, since it can contain anything."""
    try:
        yield
    except SkiwayError:
        raise
    except Exception as error:  # noqa: BLE001 - Spark and Iceberg raise anything
        check_interrupted(error)
        text = str(error).replace(token, "***")
        log.warning("Spark could not optimize a table: %s", text[:600])
        raise (without_iceberg() if _NO_ICEBERG.search(text) else _translated(text, uri)) from None


def _translated(text: str, uri: str) -> SkiwayError:
    if _NO_DOOR.search(text):
        return Unavailable(
            f"Spark cannot reach the REST door at {uri}: set maintenance.spark.rest_uri to an address that Spark can reach",
            key="maintenance.spark.door",
        )
    return Unavailable(
        "Spark could not optimize the table; the log of the worker says why. What was committed before stays",
        key="maintenance.spark.failed",
    )


def _require_lineage(version: str) -> None:
    found = tuple(int(each) for each in re.findall(r"\d+", version)[:2])
    if found < _KEEPS_LINEAGE:
        raise Unsupported(
            f"Spark has Iceberg {version}, which loses the row lineage of tables of version 3: use Iceberg "
            f"{'.'.join(map(str, _KEEPS_LINEAGE))} or newer, or optimize with --engine process",
            key="maintenance.spark.lineage",
        )


def _literal(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"

"""dbt's own commands with the project of `examples/dbt`, on a lake that the real client attaches."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from examples.pages import PROJECT
from live.clients import Client, Outcome, Session, plain_session, server_environment
from live.dbt_projects import Dbt, dbt_packages, project_of
from live.servers import LiveServer, lake, lake_with_tokens, serving

FIRST = (
    "CREATE SCHEMA {db}.raw",
    """CREATE TABLE {db}.raw.customers AS SELECT id, 'Customer ' || id AS name, ['DE', 'FR', 'GB'][1 + id % 3] AS country,
        TIMESTAMP '2026-01-01' AS loaded_at FROM range(20) AS new(id)""",
    """CREATE TABLE {db}.raw.orders AS SELECT id, id % 20 AS customer_id, (id % 7 + 0.25)::DECIMAL(9, 2) AS amount,
        ['placed', 'shipped', 'cancelled'][1 + id % 3] AS status, TIMESTAMP '2026-01-01' + to_hours(id) AS ordered_at,
        TIMESTAMP '2026-01-01' AS loaded_at FROM range(200) AS new(id)""",
    """CREATE TABLE {db}.raw.visits AS SELECT id, id % 20 AS customer_id, '/' || id AS page, TIMESTAMP '2026-01-01' AS loaded_at
        FROM range(300) AS new(id)""",
)
LATER = (
    """INSERT INTO {db}.raw.orders SELECT id, id % 20, 3, 'placed', TIMESTAMP '2026-01-05' + to_hours(id), '2026-01-02'
        FROM range(200, 220) AS new(id)""",
    "UPDATE {db}.raw.orders SET status = 'cancelled', loaded_at = TIMESTAMP '2026-01-02' WHERE id IN (0, 1, 3)",
    "INSERT INTO {db}.raw.visits SELECT id, id % 20, '/' || id, '2026-01-02' FROM range(300, 350) AS new(id)",
    "UPDATE {db}.raw.customers SET country = 'GB' WHERE id = 3",
    "DELETE FROM {db}.raw.customers WHERE id = 19",
    "INSERT INTO {db}.raw.customers VALUES (20, 'New', 'FR', '2026-01-02'), (19, 'Other', 'DE', '2026-01-02')",
)
COUNTRIES = "(VALUES ('DE', 'Germany'), ('FR', 'France'), ('GB', 'United Kingdom')) AS names(code, title)"
EXPECTED = {
    "orders": "SELECT id, customer_id, amount, status, ordered_at::DATE, loaded_at FROM plain.raw.orders",
    "visits": "SELECT id, customer_id, page, loaded_at FROM plain.raw.visits",
    "daily_revenue": """SELECT ordered_at::DATE, coalesce(sum(amount) FILTER (status <> 'cancelled'), 0)::DECIMAL(38, 2),
        max(loaded_at) FROM plain.raw.orders GROUP BY 1""",
    "customers": f"""SELECT id, name, (SELECT title FROM {COUNTRIES} WHERE code = country),
        (SELECT count(*) FROM plain.raw.orders WHERE customer_id = customers.id),
        coalesce((SELECT sum(amount) FROM plain.raw.orders WHERE customer_id = customers.id), 0)::DECIMAL(38, 2)
        FROM plain.raw.customers""",
    "countries": f"SELECT * FROM {COUNTRIES}",
    "stg_visits": "SELECT id, customer_id, page, loaded_at FROM plain.raw.visits",
}
"""The tables of the project, as plain DuckDB computes them from the same sources, all at once."""


@dataclass(frozen=True, slots=True)
class Shop:
    """A lake with sources, and the project."""

    client: Client
    server: LiveServer
    dbt: Dbt

    def attached(self) -> Session:
        return self.client.session(self.server.attach("lake"))

    def change(self, statements: Sequence[str]) -> None:
        with self.attached() as session:
            for statement in statements:
                session.need(statement.format(db="lake"))

    def rows(self, query: str) -> list[list[str | None]]:
        with self.attached() as session:
            return session.rows(query)

    def tables(self) -> dict[str, str]:
        """The ids of the tables that dbt has written, by name."""
        found = self.rows("SELECT table_name, table_id::VARCHAR FROM lake.skiway.tables WHERE schema_name = 'shop'")
        return {str(name): str(id_) for name, id_ in found}


@pytest.fixture(scope="module")
def packages(client: Client) -> Path:
    return dbt_packages(client)


@pytest.fixture
def shop(client: Client, packages: Path, folder: Path) -> Iterator[Shop]:
    place = Path(tempfile.mkdtemp(dir=folder))
    with serving(lake, place / "lake") as server:
        project = project_of(client, server, place / "shop")
        shop = Shop(client, server, Dbt(packages, project))
        shop.change(FIRST)
        yield shop


def outcome(session: Session, query: str) -> Outcome:
    """Sorted rows, with the names of types."""
    return session.need(f"SELECT * FROM ({query}) ORDER BY ALL")


def assert_tables_are_those_of_plain_duckdb(shop: Shop, statements: Sequence[str]) -> None:
    with shop.attached() as session, plain_session() as plain:
        plain.need("ATTACH ':memory:' AS plain")
        for statement in statements:
            plain.need(statement.format(db="plain"))
        for table, query in EXPECTED.items():
            found, expected = outcome(session, f"FROM lake.shop.{table}"), outcome(plain, query)
            assert (found.rows, found.types) == (expected.rows, expected.types), table


def test_builds_follow_the_sources(shop: Shop) -> None:
    assert "PASS=23 WARN=0 ERROR=0" in shop.dbt("build")
    assert_tables_are_those_of_plain_duckdb(shop, FIRST)
    assert shop.rows("SELECT count(*), count(dbt_valid_to) FROM lake.shop.customer_history") == [["20", "0"]]
    before = shop.tables()

    shop.change(LATER)
    assert "PASS=23 WARN=0 ERROR=0" in shop.dbt("build", "--threads", "8")
    assert_tables_are_those_of_plain_duckdb(shop, FIRST + LATER)
    assert shop.tables() == before, "a table that is built again stays the same table, with its policies"
    history = "SELECT count(*) FROM lake.skiway.snapshots WHERE schema_name = 'shop' AND table_name = 'customers'"
    assert shop.rows(history) == [["2"]]
    changed = """SELECT customer_id, name, country, dbt_valid_to IS NULL FROM lake.shop.customer_history
        WHERE customer_id IN (3, 19, 20) ORDER BY customer_id, dbt_valid_from"""
    assert shop.rows(changed) == [
        ["3", "Customer 3", "DE", "false"],
        ["3", "Customer 3", "GB", "true"],
        ["19", "Customer 19", "FR", "false"],
        ["19", "Other", "DE", "true"],
        ["20", "New", "FR", "true"],
    ]
    assert shop.rows("SELECT count(*) FROM lake.shop.customer_history") == [["23"]]

    assert "PASS=23 WARN=0 ERROR=0" in shop.dbt("build", "--full-refresh")
    assert_tables_are_those_of_plain_duckdb(shop, FIRST + LATER)


def test_incremental_models_write_only_new_rows(shop: Shop) -> None:
    shop.dbt("seed")
    shop.dbt("run")
    forgotten = "UPDATE {db}.raw.visits SET page = 'changed' WHERE id = 5"  # without a new loaded_at
    shop.change([*LATER, forgotten])
    shop.dbt("run")
    assert shop.rows("SELECT page FROM lake.shop.visits WHERE visit_id = 5") == [["/5"]]
    added = """SELECT table_name, operation, summary['added-records'] FROM lake.skiway.snapshots
        WHERE schema_name = 'shop' AND table_name IN ('orders', 'visits') AND is_current ORDER BY ALL"""
    assert shop.rows(added) == [["orders", "overwrite", "220"], ["visits", "append", "50"]]
    snapshots = "SELECT count(*) FROM lake.skiway.snapshots WHERE schema_name = 'shop' AND table_name = 'orders'"
    assert shop.rows(snapshots) == [["2"]], "a MERGE is one commit"


def test_every_command(shop: Shop) -> None:
    dbt = shop.dbt
    assert "All checks passed!" in dbt("debug")
    for words in (["seed"], ["run"], ["snapshot"], ["test"], ["run", "--full-refresh"], ["seed", "--full-refresh"]):
        assert "ERROR=0" in dbt(*words)
    assert "Nothing to do" in dbt("retry")
    assert "WARN freshness of raw.orders" in dbt("source", "freshness")
    shop.change(["UPDATE {db}.raw.orders SET loaded_at = now()::TIMESTAMP WHERE id = 0"])
    assert "PASS freshness of raw.orders" in dbt("source", "freshness", "--select", "source:raw.orders")
    assert "order_id" in dbt("show", "--select", "orders", "--limit", "2")
    assert "shop.marts.orders" in dbt("ls")
    assert "raw.visits" in dbt("compile", "--select", "stg_visits").replace('"', "")
    dbt("docs", "generate")
    catalog = json.loads((dbt.folder / "target" / "catalog.json").read_text())
    assert list(catalog["nodes"]["model.shop.stg_orders"]["columns"]) == [
        "order_id",
        "customer_id",
        "amount",
        "status",
        "day",
        "loaded_at",
    ]
    assert set(catalog["sources"]) == {"source.shop.raw.customers", "source.shop.raw.orders", "source.shop.raw.visits"}


def test_failing_test_fails_the_command(shop: Shop) -> None:
    shop.dbt("build")
    shop.change(["INSERT INTO {db}.raw.orders VALUES (999, 1, 1, 'lost', '2026-01-01', '2026-01-03')"])
    shop.dbt("run")
    printed = shop.dbt("test", fails=True)
    assert "Failure in test accepted_values_orders_status__placed__shipped__cancelled" in printed
    assert "Got 1 result, configured to fail if != 0" in printed
    assert "PASS=13 WARN=0 ERROR=1" in printed
    shop.change(["UPDATE {db}.shop.orders SET status = 'placed' WHERE order_id = 999"])
    assert "PASS=1 WARN=0 ERROR=0" in shop.dbt("retry")


@pytest.mark.parametrize("kind", ["incremental", "table"])
def test_failing_model_changes_nothing_and_can_be_retried(shop: Shop, kind: str) -> None:
    """The rows before the bad one are sent to the lake, where nobody sees them."""
    model = f"{{{{ config(materialized='{kind}') }}}} SELECT id, CASE id WHEN 399999 THEN error('bad row') ELSE 1 END AS one "
    good = "{{ config(materialized='" + kind + "') }} SELECT range AS id, 1 AS one FROM range(400000)"
    shop.dbt.write("models/counted.sql", model + "FROM range(400000) AS new(id)")
    printed = shop.dbt("build", "--select", "counted", fails=True)
    assert "Failure in model counted" in printed
    assert "bad row" in printed
    assert "counted" not in shop.tables()
    shop.dbt.write("models/counted.sql", good)
    shop.dbt("retry")
    assert shop.rows("SELECT count(*) FROM lake.shop.counted") == [["400000"]]
    shop.dbt.write("models/counted.sql", model + "FROM range(400000) AS new(id)")
    shop.dbt("build", "--select", "counted", fails=True)
    assert shop.rows("SELECT count(*) FROM lake.shop.counted") == [["400000"]]
    shop.dbt.write("models/counted.sql", good)
    shop.dbt("build", "--select", "counted")
    assert set(shop.tables()) == {"counted"}


def test_commands_on_the_page_run(client: Client, packages: Path, folder: Path) -> None:
    """With a server that needs a token, as the page describes it."""
    page = (PROJECT / "docs" / "dbt.md").read_text()
    (commands,) = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)
    assert commands.split("\n")[:2] == ["cd examples/dbt", "pip install -r requirements.txt"]
    place = Path(tempfile.mkdtemp(dir=folder))
    with serving(lake_with_tokens, place / "lake") as server:
        token = server.placeholders["…"]
        dbt = Dbt(packages, project_of(client, server, place / "shop"))
        profile = yaml.safe_load((dbt.folder / "profiles.yml").read_text())
        (secrets,) = re.findall(r"`(secrets: .*?)`", page)
        profile["shop"]["outputs"]["lake"] |= yaml.safe_load(
            secrets.replace("…", token).replace("grpc://host:50051", server.location)
        )
        (secret,) = re.findall(r"`(secret: .*?)`", page)
        profile["shop"]["outputs"]["lake"]["attach"][0] |= yaml.safe_load(secret)
        dbt.write("profiles.yml", yaml.safe_dump(profile))
        variables = server_environment() | {"SKIWAY_SERVER": f"127.0.0.1:{server.port}", "SKIWAY_TOKEN": token}
        for command in commands.strip().split("\n")[2:]:
            program, *words = shlex.split(command, comments=True)
            if program == "dbt":
                assert page.split("$ dbt build\n")[1].split("\n")[0] in dbt(*words)
            else:
                skiway = Path(sys.executable).with_name(program)
                subprocess.run([str(skiway), *words], cwd=dbt.folder, env=variables, check=True, capture_output=True)


LIMITS = {
    "described": (
        "{{ config(materialized='table', persist_docs={'relation': true}) }} SELECT 1 AS id",
        "altering tables",
    ),
    "keyed": (
        "{{ config(materialized='table', contract={'enforced': true}) }} SELECT 1 AS id",
        "cannot have PRIMARY KEY",
    ),
    "using": (
        "{{ config(materialized='incremental', incremental_strategy='merge', merge_on_using_columns=['id']) }} SELECT 1 AS id",
        "a lake has no MERGE … USING (columns): set unique_key",
    ),
}
"""Models that fail, and what their errors say."""


def test_limits_on_the_page(shop: Shop) -> None:
    for name, (model, _) in LIMITS.items():
        shop.dbt.write(f"models/{name}.sql", model)
    shop.dbt.write(
        "models/limits.yml",
        """models:
  - {name: described, description: one row}
  - {name: keyed, columns: [{name: id, data_type: integer, constraints: [{type: primary_key}]}]}
""",
    )
    shop.dbt("run", "--select", "using")
    printed = shop.dbt("run", "--select", *LIMITS, fails=True)
    assert "ERROR=3" in printed
    for _, message in LIMITS.values():
        assert message in printed


FEATURES = {
    "models/numbers.sql": """{{ config(materialized=var('kind')) }}
        SELECT range AS id, 'n' || range AS name {% if var('wide') %}, 'w' AS wide {% endif %} FROM range(10)""",
    "models/even.sql": "{{ config(materialized='ephemeral') }} SELECT * FROM {{ ref('numbers') }} WHERE id % 2 = 0",
    "models/contracted.sql": "{{ config(contract={'enforced': true}, materialized='table') }} SELECT id, name FROM {{ ref('even') }}",
    "models/squares.py": """def model(dbt, session):
    dbt.config(materialized='table')
    return session.sql("SELECT range AS id, range * range AS square FROM range(5)")
""",
    "models/synced.sql": """{{ config(materialized='incremental', incremental_strategy='merge', unique_key=['id', 'name'],
            merge_exclude_columns=['first'], on_schema_change='sync_all_columns', incremental_predicates=['DBT_INTERNAL_DEST.id > 0']) }}
        SELECT *, {{ var('round') }} AS first, {{ var('round') }} AS last FROM {{ ref('numbers') }} WHERE id BETWEEN 1 AND 3""",
    "models/merged.sql": "{{ config(materialized='incremental', incremental_strategy='merge') }} SELECT id FROM {{ ref('even') }}",
    "models/daily.sql": """{{ config(materialized='incremental', incremental_strategy='microbatch', event_time='day', batch_size='day',
            begin=var('begin'), concurrent_batches=false) }}
        SELECT id, current_date AS day FROM {{ ref('numbers') }}""",
    "snapshots/current.yml": """snapshots:
  - name: current
    relation: ref('synced')
    config: {unique_key: [id, name], strategy: check, check_cols: [last], hard_deletes: new_record,
             dbt_valid_to_current: "TIMESTAMP '9999-12-31'"}
""",
    "models/features.yml": """models:
  - name: contracted
    columns:
      - {name: id, data_type: bigint, constraints: [{type: not_null}]}
      - {name: name, data_type: varchar}
    data_tests: []
  - name: numbers
    columns:
      - name: id
        data_tests:
          - accepted_values: {arguments: {values: [0, 1]}, config: {store_failures: true, severity: warn}}
""",
}


def test_other_features_of_dbt(shop: Shop) -> None:
    """Views that become tables and back, contracts, models in Python, new columns, composite keys, microbatches, stored failures."""
    for file, text in FEATURES.items():
        shop.dbt.write(file, text)
    begin = shop.rows("SELECT (current_date - 1)::VARCHAR")[0][0]
    counts = {}
    for round_, (kind, wide) in enumerate([("view", False), ("table", False), ("view", True), ("table", True)], 1):
        given = {"kind": kind, "wide": wide, "round": round_, "begin": begin}
        chosen = ["--select", "numbers+", "squares", "--vars", json.dumps(given)]
        assert "ERROR=0" in shop.dbt("build", *chosen)
        counts[kind, wide] = shop.rows("SELECT count(*), count(DISTINCT id) FROM lake.shop.merged")
        ((columns,),) = shop.rows("SELECT string_agg(column_name, ' ') FROM (DESCRIBE lake.shop.synced)")
        assert str(columns).split() == ["id", "name", "first", "last", *(["wide"] if wide else [])]
        assert ("numbers" in shop.tables()) == (kind == "table")
    assert counts["table", True] == [["20", "5"]], "without a key, a merge only adds rows"
    assert shop.rows("SELECT id, first, last FROM lake.shop.synced ORDER BY id") == [
        ["1", "1", "4"],
        ["2", "1", "4"],
        ["3", "1", "4"],
    ]
    assert shop.rows("SELECT sum(square) FROM lake.shop.squares") == [["30"]]
    assert shop.rows("SELECT count(*) FROM lake.shop.contracted") == [["5"]]
    assert shop.rows("SELECT count(*), count(DISTINCT id) FROM lake.shop.daily") == [["10", "10"]]
    history = "SELECT count(*), count(*) FILTER (dbt_valid_to = TIMESTAMP '9999-12-31') FROM lake.shop.current"
    assert shop.rows(history) == [["12", "3"]]
    failures = 'FROM lake.shop_dbt_test__audit."accepted_values_numbers_id__0__1" ORDER BY ALL'
    assert len(shop.rows(f"SELECT value_field {failures}")) == 8

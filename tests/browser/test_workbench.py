"""People write SQL with completion, draw and share it, find out why a query was slow, and create things with forms."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, Route, StorageState, expect

from browser.conftest import screenshot, watched
from browser.lake import Lake

MANY_TABLES = 10_000
SECONDS = 30_000


def write(page: Page, sql: str) -> None:
    """Paste into the editor. Keys could accept completions, which arrive at any time: Enter and = do so in a list of them."""
    page.locator("#code .ace_text-input").focus()
    page.keyboard.press("Control+A")
    page.keyboard.insert_text(sql)
    page.keyboard.press("Escape")


def run(page: Page, sql: str) -> None:
    write(page, sql)
    page.keyboard.press("Control+Enter")
    expect(page.get_by_role("link", name="Why this long?")).to_be_visible(timeout=SECONDS)


@pytest.fixture
def bench(tab: Page, server_address: str) -> Page:
    tab.goto(f"{server_address}/sql")
    return tab


def test_sql_is_written_with_completion_drawn_and_shared_by_keyboard(bench: Page, browser: Browser, lake: Lake) -> None:
    bench.locator("#code .ace_text-input").focus()
    bench.keyboard.type("select name, count(*) as n from sales.peop", delay=20)
    expect(bench.locator(".ace_autocomplete .ace_line").first).to_contain_text("sales.people", timeout=SECONDS)
    bench.keyboard.press("Enter")
    bench.keyboard.type(" group by all order by all ", delay=5)
    bench.keyboard.press("Escape")
    bench.keyboard.press("Control+Enter")
    grid = bench.get_by_role("table", name="Result")
    expect(grid).to_contain_text("600", timeout=SECONDS)
    expect(grid.get_by_role("row")).to_have_count(4)
    bench.get_by_role("tab", name="Chart").press("Enter")
    chart = bench.get_by_role("img", name="bar chart of n by name, 3 points")
    expect(chart).to_be_visible(timeout=SECONDS)
    bench.get_by_label("Chart", exact=True).select_option("line")
    expect(bench.get_by_role("img", name="line chart of n by name, 3 points")).to_be_visible()
    link = bench.url
    with browser.new_context() as other:  # somebody else, who has to log in
        page = other.new_page()
        page.goto(link)
        page.get_by_label("Token").fill(lake.tokens["ada"])
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_role("img", name="line chart of n by name, 3 points")).to_be_visible(timeout=SECONDS)


def plotted(page: Page) -> list[tuple[str, list[Any]]]:
    """What the library was told to draw."""
    read = """() => {
        const chart = echarts.getInstanceByDom(document.querySelector('.drawn')).getOption();
        return chart.series.map(each => [each.name, each.data, chart.xAxis[0].data]);
    }"""
    page.wait_for_function("() => window.echarts && echarts.getInstanceByDom(document.querySelector('.drawn'))")
    found = page.evaluate(read)
    return [
        (name, [list(pair) for pair in zip(labels, data, strict=True)] if labels else data)
        for name, data, labels in found
    ]


def draw(page: Page, **spec: str) -> None:
    page.get_by_role("tab", name="Chart").click()
    for label, value in spec.items():
        page.get_by_label(
            {"kind": "Chart", "color": "Color", "aggregate": "Aggregate"}.get(label, label), exact=True
        ).select_option(value)


SALES = "from (values ('a', 'x', 1), ('a', 'y', 2), ('b', 'x', 4), ('b', 'x', 8), ('c', 'y', null)) t(shop, kind, sold)"


def test_drawn_values_are_those_of_the_result_also_when_x_repeats(bench: Page) -> None:
    run(bench, f"select shop, kind, sold {SALES}")
    draw(bench, kind="bar", x="shop", y="sold")
    expect(bench.get_by_text("2 values of shop occur more than once: choose how to aggregate sold")).to_be_visible()
    expect(bench.locator(".drawn")).to_be_hidden()
    for aggregate, values in {
        "sum": [["a", 3], ["b", 12]],
        "average": [["a", 1.5], ["b", 6]],
        "minimum": [["a", 1], ["b", 4]],
        "maximum": [["a", 2], ["b", 8]],
        "median": [["a", 1.5], ["b", 6]],
    }.items():
        draw(bench, aggregate=aggregate)
        assert plotted(bench) == [("sold", values)], aggregate
        expect(bench.get_by_text("1 rows without a value of x or y are left out")).to_be_visible()
    draw(bench, aggregate="count")
    assert plotted(bench) == [("rows", [["a", 2], ["b", 2], ["c", 1]])]
    draw(bench, color="kind", aggregate="sum")
    assert dict(plotted(bench)) == {"x": [["a", 1], ["b", 12]], "y": [["a", 2], ["b", None]]}
    draw(bench, aggregate="none")
    expect(bench.get_by_text("1 values of shop occur more than once for the same kind")).to_be_visible()


def test_lines_follow_time_and_have_gaps(bench: Page) -> None:
    run(
        bench,
        "select * from (values (date '2026-01-09', 4), (date '2026-01-01', 1), (date '2026-01-05', null)) t(day, n)",
    )
    draw(bench, kind="line", x="day", y="n")
    day = 86_400_000
    first = 1767225600000
    assert plotted(bench) == [("n", [[first, 1], [first + 4 * day, None], [first + 8 * day, 4]])]


def test_histogram_counts_every_number(bench: Page) -> None:
    run(bench, "select i % 100 as n from range(1000) t(i) union all select null")
    draw(bench, kind="histogram", x="n")
    ((_, bars),) = plotted(bench)
    assert len(bars) == 30
    assert sum(count for _, count in bars) == 1000
    expect(bench.get_by_text("1 rows without a number are left out")).to_be_visible()


@pytest.mark.parametrize(
    ("sql", "spec", "reason"),
    [
        (
            "select i as x, i as n from range(100001) t(i)",
            {"kind": "line", "x": "x", "y": "n"},
            "only the first are here",
        ),
        (
            "select 'r' || i as x, i as n from range(400) t(i)",
            {"kind": "bar", "x": "x", "y": "n"},
            "400 bars are too many",
        ),
        ("select 'a' as x, 1 as n", {"kind": "scatter", "x": "x", "y": "n"}, "needs numbers or times"),
        ("select 1 as x, 'a' as n", {"kind": "bar", "x": "x", "y": "n"}, "Choose a column of numbers for y"),
    ],
)
def test_no_chart_is_drawn_that_would_be_false(bench: Page, sql: str, spec: dict[str, str], reason: str) -> None:
    run(bench, sql)
    draw(bench, **spec)
    expect(bench.get_by_text(reason)).to_be_visible()
    expect(bench.locator(".drawn")).to_be_hidden()


def test_chart_is_saved_as_a_picture_and_rows_as_files(bench: Page, tmp_path: Path) -> None:
    run(bench, "select name, count(*) as n from sales.people group by all order by all")
    with bench.expect_download() as download:
        bench.get_by_role("link", name="CSV").click()
    download.value.save_as(tmp_path / "result.csv")
    assert (tmp_path / "result.csv").read_text().splitlines()[1] == '"ann",600'
    draw(bench, kind="bar")
    plotted(bench)
    with bench.expect_download() as download:
        bench.get_by_role("button", name="Save as picture").click()
    download.value.save_as(tmp_path / "chart.png")
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")


def test_grid_has_100_000_rows_and_is_sorted(bench: Page) -> None:
    run(bench, "select i as id, 'r' || i as name from range(100000) t(i)")
    grid = bench.get_by_role("table", name="Result")
    expect(grid).to_have_attribute("aria-rowcount", "100001")
    assert grid.get_by_role("row").count() < 100, "only those that can be seen"
    grid.evaluate("each => { each.scrollTop = each.scrollHeight; }")
    expect(grid).to_contain_text("r99999")
    grid.evaluate("each => { each.scrollTop = 0; }")
    grid.get_by_role("button", name="id").click()
    grid.get_by_role("button", name="id").click()
    expect(grid.get_by_role("row").nth(1)).to_contain_text("r99999")


def test_error_is_marked_at_its_place_and_only_the_selection_runs(bench: Page) -> None:
    write(bench, "select name\nfrom sales.people\nwhere nothing = 1")
    bench.keyboard.press("Control+Enter")
    expect(bench.get_by_role("alert")).to_contain_text("nothing", timeout=SECONDS)
    assert bench.evaluate("ace.edit('code').session.getAnnotations().map(a => [a.row, a.column])") == [[2, 6]]
    bench.evaluate("ace.edit('code').selection.setRange({start: {row: 0, column: 0}, end: {row: 1, column: 17}})")
    bench.keyboard.press("Control+Enter")
    expect(bench.get_by_role("status").filter(has_text="1,001 rows")).to_be_visible(timeout=SECONDS)


def test_running_query_is_cancelled(bench: Page) -> None:
    write(bench, "select count(*) from range(100000000000) t(a) where hash(a) = 7")
    bench.keyboard.press("Control+Enter")
    expect(bench.get_by_text("Running for")).to_be_visible()
    bench.wait_for_timeout(1000)
    bench.get_by_role("button", name="Cancel").click()
    expect(bench.get_by_role("alert")).to_contain_text("cancel", timeout=SECONDS)


def test_tabs_are_kept_until_another_session_begins(bench: Page, browser: Browser, lake: Lake) -> None:
    write(bench, "select 1 as first")
    bench.get_by_role("button", name="New query").click()
    bench.keyboard.type("select 2 as second")
    bench.keyboard.press("Escape")
    bench.wait_for_timeout(600)
    bench.reload()
    expect(bench.get_by_role("tab", name="select 1 as first")).to_be_visible()
    bench.get_by_role("tab", name="select 1 as first").click()
    bench.keyboard.press("Control+Enter")
    expect(bench.get_by_role("table", name="Result")).to_contain_text("first", timeout=SECONDS)
    with browser.new_context() as context:
        page = context.new_page()
        for token in ("ada", "ada"):
            page.goto(f"{lake.address}/login")
            page.get_by_label("Token").fill(lake.tokens[token])
            page.get_by_role("button", name="Log in").click()
            page.goto(f"{lake.address}/sql")
            expect(page.get_by_role("tab", name="select 3")).to_have_count(0)
            write(page, "select 3")
            page.wait_for_timeout(600)
            page.get_by_role("button", name="Log out").click()


def test_planted_values_do_not_run(bench: Page) -> None:
    planted = "<img src=x onerror=alert(1)>"
    run(bench, f"select '{planted}' as \"{planted}\", 1 as n")
    expect(bench.get_by_role("table", name="Result")).to_contain_text(planted)
    draw(bench, kind="bar", x=planted, y="n")
    assert plotted(bench) == [("n", [[planted, 1]])]
    bench.locator(".drawn").hover()
    write(bench, f'select * from "{planted}".x')
    bench.keyboard.press("Control+Enter")
    expect(bench.get_by_role("alert")).to_be_visible(timeout=SECONDS)


def test_editor_and_chart_are_accessible(bench: Page) -> None:
    run(bench, "select name, count(*) as n from sales.people group by all")
    for view in ("Rows", "Chart"):
        bench.get_by_role("tab", name=view).click()
        for scheme in ("light", "dark"):
            bench.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
            bench.wait_for_timeout(300)
            screenshot(bench, f"workbench-{view.lower()}-{scheme}")
            found = Axe().run(bench).response["violations"]
            serious = [
                (each["id"], each["nodes"][0]["html"]) for each in found if each["impact"] in ("serious", "critical")
            ]
            assert serious == []


def test_keys_stay_fast_with_10_000_tables(browser: Browser, session: StorageState, lake: Lake) -> None:
    """The server knows 10,000 tables, and the largest answer that it gives is shown while a person types."""
    items = [{"value": f"sales.table_{number}", "kind": "table", "note": "table"} for number in range(MANY_TABLES)]

    def answer(route: Route) -> None:
        route.fulfill(json={"items": items, "columns": []})

    with browser.new_context(storage_state=session) as context, watched(context, lake.address) as opened:
        page = opened.page
        page.route("**/complete?*", answer)
        page.goto(f"{lake.address}/sql")
        page.locator("#code .ace_text-input").focus()
        page.keyboard.type("select * from sales.ta", delay=100)
        expect(page.locator(".ace_autocomplete")).to_be_visible(timeout=SECONDS)
        page.evaluate(
            """() => {
                window.times = [];
                const note = () => { const at = performance.now(); setTimeout(() => window.times.push(performance.now() - at)); };
                document.querySelector('#code .ace_text-input').addEventListener('keydown', note, true);
            }"""
        )
        page.keyboard.type("ble_123", delay=150)
        times = page.evaluate("window.times")
        assert len(times) == 7
        assert statistics.median(times) < 50, times


def test_why_a_query_was_slow_is_found_in_one_click(bench: Page, server_address: str) -> None:
    run(bench, "select name, count(*) from sales.people group by name")
    bench.get_by_role("link", name="Why this long?").click()
    expect(bench.get_by_role("heading", name="Why it took")).to_be_visible()
    expect(bench.get_by_role("region", name="Plan")).to_contain_text("read parquet")
    bench.goto(f"{server_address}/history?q=group+by+name")
    expect(bench.get_by_role("main")).to_contain_text("explorer")


def test_masked_policy_is_previewed_created_and_deleted(tab: Page, server_address: str) -> None:
    tab.goto(f"{server_address}/policies")
    tab.get_by_role("link", name="Policy", exact=True).click()
    for label, value in (("name", "mask people"), ("to", "role:x"), ("on", "lake.sales.people"), ("columns", "name")):
        tab.locator(f"#f-{label}").fill(value)
    for label, value in (("Preview on table", "lake.sales.people"), ("As user", "eve"), ("With roles", "x")):
        tab.get_by_label(label).fill(value)
    tab.get_by_label("Rule").select_option("mask: null")
    expect(tab.locator("#command")).to_contain_text("--mask null --column name")
    tab.get_by_role("button", name="Preview").click()
    preview = tab.get_by_role("region", name="Preview")
    expect(preview).to_contain_text("NULL")
    expect(preview).not_to_contain_text("ann")
    screenshot(tab, "policy-preview")
    tab.get_by_role("button", name="Create").click()
    tab.get_by_role("link", name="Delete policy mask people").click()
    expect(tab.get_by_text("Callers see what it hid")).to_be_visible()
    tab.get_by_role("button", name="Delete").click()
    expect(tab.get_by_role("main")).not_to_contain_text("mask people")


def test_connector_is_tested_created_synchronized_and_watched(tab: Page, server_address: str) -> None:
    uri = tab.request.get(f"{server_address}/connectors/bikes.json").json()["connector"]["uri"]
    tab.goto(f"{server_address}/new/connector")
    for label, value in (("name", "bikes two"), ("uri", uri), ("catalog", "lake"), ("namespace", "two")):
        tab.locator(f"#f-{label}").fill(value)
    tab.get_by_role("button", name="Test connection").click()
    expect(tab.get_by_role("status").filter(has_text="The source responds")).to_be_visible(timeout=SECONDS)
    tab.get_by_role("button", name="Create").click()
    tab.get_by_role("button", name="Sync now").click()
    expect(tab.locator(".state")).to_have_text("succeeded", timeout=100_000)


def test_who_changed_a_table_is_seen(tab: Page, server_address: str) -> None:
    tab.goto(f"{server_address}/events?q=people&kind=table&days=1")
    row = tab.get_by_role("row").filter(has_text="table created").filter(has_text="sales.people")
    expect(row).to_contain_text("ada")
    expect(row).to_contain_text("airport")

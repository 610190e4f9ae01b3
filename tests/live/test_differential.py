"""The same statements on plain DuckDB and over Airport: rows, types, and success or failure are the same."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from live.all_cases import CASES
from live.cases import Case
from live.clients import Client, Outcome, Session, plain_session
from live.comparing import differences, run_cases
from live.known import Known, read_known
from live.report import REPORT
from live.servers import TARGETS, serving

PAIRS = [pytest.param(case, target, id=f"{case.name}-{target}") for case in CASES for target in case.targets]

CASES_PER_SERVER = 100
"""Every case leaves its tables behind, and a catalog with many of them is slower."""

Results = dict[str, dict[str, list[Outcome]]]
"""The outcomes of each target, and of plain DuckDB, by the name of the case."""


@pytest.fixture(scope="module")
def known() -> list[Known]:
    return read_known()


@pytest.fixture(scope="module")
def results(request: pytest.FixtureRequest, client: Client, folder: Path) -> Results:
    """The outcomes of all selected cases. The targets work at the same time, as do their clients."""
    selected: dict[str, list[Case]] = {target: [] for target in TARGETS}
    for item in request.session.items:
        if isinstance(item, pytest.Function) and item.originalname == test_same_as_in_plain_duckdb.__name__:
            selected[item.callspec.params["target"]].append(item.callspec.params["case"])
    every = {case.name: case for cases in selected.values() for case in cases}.values()

    def run_target(target: str) -> dict[str, list[Outcome]]:
        found: dict[str, list[Outcome]] = {}
        for begin in range(0, len(selected[target]), CASES_PER_SERVER):
            with serving(TARGETS[target].start, folder / f"{target}-{begin}") as server:
                cases = selected[target][begin : begin + CASES_PER_SERVER]
                attach = server.attach()
                found |= run_cases(cases, partial(_attached, client, attach), attach=attach)
        return found

    with ThreadPoolExecutor() as pool:
        plain = pool.submit(run_cases, every, _plain)
        found = dict(zip(TARGETS, pool.map(run_target, TARGETS), strict=True))
    REPORT.client = client.version()
    return {"plain": plain.result(), **found}


def _attached(client: Client, attach: str, settings: Sequence[str]) -> Session:
    return client.session(attach, *settings)


def _plain(settings: Sequence[str]) -> Session:
    session = plain_session()
    for statement in ("ATTACH ':memory:' AS db", *settings):
        session.need(statement)
    return session


@pytest.mark.parametrize(("case", "target"), PAIRS)
def test_same_as_in_plain_duckdb(case: Case, target: str, results: Results, known: list[Known]) -> None:
    found = results[target][case.name]
    REPORT.compared[target] += len(found)
    unexplained, bugs = [], []
    for difference in differences(case, target, results["plain"][case.name], found):
        explanation = next((each for each in known if each.explains(difference)), None)
        REPORT.differences.append((difference, explanation))
        if explanation is None:
            unexplained.append(str(difference))
        elif explanation.kind == "bug":
            bugs.append(explanation.reason)
    if unexplained:
        pytest.fail("\n".join(unexplained), pytrace=False)
    if bugs:
        pytest.xfail("; ".join(bugs))


def test_every_known_difference_was_seen(request: pytest.FixtureRequest, known: list[Known]) -> None:
    ran = sum(
        getattr(item, "originalname", "") == test_same_as_in_plain_duckdb.__name__ for item in request.session.items
    )
    if ran < len(PAIRS):
        return  # the run has selected some of the cases
    unseen = [f"{each.kind}: {entry} ({each.reason})" for each in known for entry in each.unseen()]
    assert not unseen, "these entries of known.toml explain nothing any more; delete them:\n" + "\n".join(unseen)

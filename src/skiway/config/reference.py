"""The reference of all settings as Markdown, which `docs/configuration.md` holds between two markers."""

from __future__ import annotations

from itertools import groupby

from skiway.config.fields import Setting
from skiway.config.settings import describe

__all__ = ["page_with_reference", "reference"]

BEGIN, END = "<!-- settings: made, do not edit -->", "<!-- end of settings -->"


def reference() -> str:
    """All settings as Markdown, a table per section."""
    sections = groupby(describe(), key=lambda setting: setting.key.partition(".")[0])
    return "\n".join(_table(name, list(settings)) for name, settings in sections)


def _table(section: str, settings: list[Setting]) -> str:
    rows = [f"| `{each.key}` | {each.takes} | {_default(each)} | {each.description} |" for each in settings]
    return "\n".join([f"### {section}", "", "| key | takes | default | what it is |", "|---|---|---|---|", *rows, ""])


def _default(setting: Setting) -> str:
    return f"`{setting.default}`" if setting.default else ""


def page_with_reference(page: str) -> str:
    """The page with the reference as it is now between its markers."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{reference()}\n{END}{after}"

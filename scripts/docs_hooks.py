"""Hooks of the documentation site (mkdocs.yml): links into the repository, and no resources from other hosts."""

from __future__ import annotations

import logging
import re
from importlib import import_module
from pathlib import Path
from typing import Any, Final

PROJECT: Final = Path(__file__).resolve().parents[1]
DOCS: Final = PROJECT / "docs"
UPWARDS: Final = re.compile(r"\]\((\.\./[^)#]*)(#[^)]*)?\)")
RESOURCE: Final = re.compile(r"<(?:script|img|iframe)[^>]+src=\"?(?:https?:)?//|<link[^>]+stylesheet[^>]+//[^>]*>")

log = logging.getLogger("mkdocs.hooks.skiway")


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:  # noqa: ARG001
    """Point links that leave docs/, such as ../examples/basic.py, to the repository. Warn when the file is missing."""

    def in_repository(link: re.Match[str]) -> str:
        target = (DOCS / page.file.src_uri).parent.joinpath(link[1]).resolve()
        if target.is_relative_to(DOCS):
            return link[0]
        path = target.relative_to(PROJECT)
        if not target.exists():
            log.warning("%s links to %s, which does not exist", page.file.src_uri, path)
        kind = "tree" if target.is_dir() else "blob"
        return f"]({config.extra['repository']}/{kind}/main/{path}{link[2] or ''})"

    return UPWARDS.sub(in_repository, markdown)


def on_post_page(output: str, page: Any, config: Any) -> str:  # noqa: ARG001
    """Warn when a page loads a script, style sheet or image from another host."""
    if found := RESOURCE.search(output):
        log.warning("%s loads a resource from another host: %s", page.file.src_uri, found[0])
    return output


def on_page_content(html: str, page: Any, config: Any, files: Any) -> None:  # noqa: ARG001
    """Warn when the API reference of a module lacks one of its public names."""
    for module in re.findall(r"^::: ([\w.]+)$", page.file.content_string, re.MULTILINE):
        for name in import_module(module).__all__:
            if f'id="{module}.{name}"' not in html:
                log.warning("%s lacks %s.%s", page.file.src_uri, module, name)

"""Settings from everywhere, checked, or one error that names every mistake and where it was made."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from difflib import get_close_matches
from itertools import chain
from pathlib import Path

from skiway.config.checks import Problem, problems
from skiway.config.fields import Setting, build
from skiway.config.settings import SHORT_FORMS, Settings, known
from skiway.config.sources import Given, from_environment, from_file, from_flags, moved_password, shown_url
from skiway.config.values import as_text
from skiway.errors import InvalidArgument

__all__ = ["FILE_NAME", "load"]

FILE_NAME = "skiway.toml"
SHOWN_CHARACTERS = 80


def load(
    home: Path | None = None,
    file: Path | None = None,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, str] | None = None,
) -> Settings:
    """The settings of a process. Flags win over the environment, that over the file, that over the defaults.

    Without `file`, `skiway.toml` in `home` is read if it is there; `environ` is usually `os.environ`, and `flags` are by
    key. Raises `InvalidArgument` with a sentence per mistake.
    """
    chosen = _chosen(home, file, environ or {}, flags or {})
    values, mistakes = _read(chosen)
    if not mistakes:
        settings = build(Settings, values)
        mistakes = [_impossible(problem, chosen) for problem in problems(settings, chosen.keys())]
        if not mistakes:
            return settings
    raise InvalidArgument("\n".join(mistakes), key="config.invalid")


def _chosen(
    home: Path | None, file: Path | None, environ: Mapping[str, str], flags: Mapping[str, str]
) -> dict[str, Given]:
    """What is set, by key, each from the source that wins."""
    if file is None and home is not None and (home / FILE_NAME).is_file():
        file = home / FILE_NAME
    sources = (_defaults(home), from_file(file) if file else (), from_environment(environ), from_flags(flags))
    chosen = {given.key: given for given in map(_long_form, chain.from_iterable(sources))}
    return {given.key: given for given in moved_password(chosen)}


def _defaults(home: Path | None) -> Iterable[Given]:
    """The places in the home directory."""
    if home is None:
        return ()
    marked = (setting for setting in known().values() if setting.under_home)
    return (Given(each.key, str(home.absolute() / each.under_home), "the default") for each in marked)


def _long_form(given: Given) -> Given:
    return replace(given, key=SHORT_FORMS.get(given.key, given.key))


def _read(chosen: Mapping[str, Given]) -> tuple[dict[str, object], list[str]]:
    """The values by key, and a sentence for each that there cannot be."""
    values: dict[str, object] = {}
    mistakes: list[str] = []
    for key, given in chosen.items():
        setting = known().get(key)
        if setting is None:
            mistakes.append(_unknown(given))
            continue
        try:
            values[key] = _value(setting, given)
        except (ValueError, RuntimeError):  # the latter for the home of a user that is not there
            mistakes.append(f"{_found(setting, given)} is not possible: it takes {setting.takes}")
    return values, mistakes


def _value(setting: Setting, given: Given) -> object:
    """The value as its kind reads it; a path in a file is meant from where the file is."""
    value = setting.kind.read(given.value)
    return given.base / value.expanduser() if isinstance(value, Path) else value


def _unknown(given: Given) -> str:
    inside = [key for key in known() if key.startswith(f"{given.key}.")]
    if inside:
        return f"{given.key} ({given.origin}) is a section, not a setting: set one of its settings, such as {inside[0]}"
    near = get_close_matches(given.key, known(), n=1, cutoff=0.6)
    advice = f"did you mean {near[0]}?" if near else "`skiway config` shows all there are"
    return f"there is no setting {given.key} ({given.origin}): {advice}"


def _impossible(problem: Problem, chosen: Mapping[str, Given]) -> str:
    setting = known()[problem.key]
    given = chosen.get(problem.key, Given(problem.key, None if setting.under_home else setting.default, "the default"))
    if not given.value:
        return f"{problem.key} is not set, but {problem.reason}"
    return f"{_found(setting, given)} is not possible: {problem.reason}"


def _found(setting: Setting, given: Given) -> str:
    return f"{setting.key} = {_shown(setting, given.value)} ({given.origin})"


def _shown(setting: Setting, value: object) -> str:
    if setting.kind.secret:
        return "****"
    text = re.sub(r"\s+", " ", shown_url(as_text(value)))
    shortened = text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."
    return repr(shortened) if isinstance(value, str) else shortened

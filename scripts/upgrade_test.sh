#!/bin/sh
# Runs the tests of upgrades with servers of the last release: those of the last tag, in an environment of their own.
set -eu
tag=$(git describe --tags --abbrev=0 --match 'v[0-9]*' 2>/dev/null) || { echo "there is no release yet: nothing to upgrade from"; exit 0; }
old=.cache/upgrade/$tag
if [ ! -e "$old/.ready" ]; then
    rm -rf "$old" && mkdir -p "$old"
    git archive "$tag" | tar -x -C "$old"
    python3 -m venv "$old/.venv"
    .venv/bin/uv pip install --quiet --python "$old/.venv/bin/python" --constraints "$old/requirements.lock" "$old[lake,postgres]"
    touch "$old/.ready"
fi
SKIWAY_TEST_OLD_PYTHON=$PWD/$old/.venv/bin/python exec .venv/bin/pytest -q tests/runtime/test_rolling_upgrade.py

#!/usr/bin/env bash
# Provides an interpreter for the comparison: PYTHON, or a new environment with the dependencies of pyproject.toml. Installs
# INSTALL, arguments of `pip install`, into it. The step's output `python` is its path.
set -euo pipefail

read -ra needed <<<"${INSTALL//$'\n'/ }"
if [ -z "$PYTHON" ]; then
    # -P: imports no module from the user's folder, where this runs
    python -P -m venv "$RUNNER_TEMP/attention-bench/venv"
    PYTHON=$RUNNER_TEMP/attention-bench/venv/bin/python
    "$PYTHON" -m pip install --quiet "pip>=25.1" # the first that knows --group
    needed=(--group "$GITHUB_ACTION_PATH/pyproject.toml:bench" "${needed[@]}")
fi
if [ ${#needed[@]} -gt 0 ]; then
    "$PYTHON" -m pip install --quiet "${needed[@]}"
fi
echo "python=$PYTHON" >>"$GITHUB_OUTPUT"

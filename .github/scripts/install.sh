#!/usr/bin/env bash
# An interpreter that can compare: the one named in PYTHON as it is, or a new environment with what pyproject.toml asks for.
# INSTALL, arguments of `pip install`, goes into either. The step's output `python` is its path.
set -euo pipefail

read -ra needed <<<"${INSTALL//$'\n'/ }"
if [ -z "$PYTHON" ]; then
    # -P: this runs in the user's folder, and no module is taken from there
    python -P -m venv "$RUNNER_TEMP/attention-bench/venv"
    PYTHON=$RUNNER_TEMP/attention-bench/venv/bin/python
    "$PYTHON" -m pip install --quiet "pip>=25.1" # the first that knows --group
    needed=(--group "$GITHUB_ACTION_PATH/pyproject.toml:bench" "${needed[@]}")
fi
if [ ${#needed[@]} -gt 0 ]; then
    "$PYTHON" -m pip install --quiet "${needed[@]}"
fi
echo "python=$PYTHON" >>"$GITHUB_OUTPUT"

#!/usr/bin/env bash
# Runs the tests that need torch, with the pinned version (TORCH=pinned) or the oldest that pyproject.toml allows (oldest).
set -euo pipefail

if [ "$TORCH" = oldest ]; then
    version=$(grep -oP '^    "torch>=\K[0-9.]+' pyproject.toml)
    tox run -e py --notest
    .tox/py/bin/python -m pip install --quiet "torch==$version.*" # tox compares requirements, not installed versions
fi
tox run -e py -- -q -m "slow or not slow"

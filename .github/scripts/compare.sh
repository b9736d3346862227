#!/usr/bin/env bash
# Runs `python SUITE/bench ab` and writes the step's outputs: exit-code, counts, regressed, markdown. Succeeds whatever the
# verdict, so that the report can be kept; verdict.sh turns it into the result of the check.
# Inputs come from environment variables and are never run as code. With -P, Python doesn't import modules from the user's
# folder, whose files affect only the compared code.
set -euo pipefail

json=$RUNNER_TEMP/attention-bench.json
markdown=$(realpath -m "${MARKDOWN:?}")
rm -f "$json" "$markdown"

suite=$GITHUB_ACTION_PATH
if [ -d bench/ab ] && grep -qs '^name = "attention-bench"' pyproject.toml; then
    suite=$PWD
else
    export ATTENTION_BENCH_COMMAND=ab # the report shows commands of an installation: its readers lack this path
fi
read -ra more <<<"${ARGUMENTS//$'\n'/ }"
code=0
(
    cd "${MODULES:-.}" || exit 3 # `set -e` has no effect before `||`
    "$PYTHON" "$suite/bench" ab ${BASE_REF:+--base="$BASE_REF"} ${IMPL:+--impl="$IMPL"} \
        ${BASE_IMPL:+--base-impl="$BASE_IMPL"} ${HEAD_IMPL:+--head-impl="$HEAD_IMPL"} "${more[@]}" \
        --margin="$MARGIN" --budget="$BUDGET" --json "$json" --markdown "$markdown"
) || code=$?

counts='{}'
if [ -s "$json" ]; then
    counts=$("$PYTHON" -P - "$json" <<'PYTHON'
import json, sys

print(json.dumps(json.load(open(sys.argv[1], encoding="utf-8"))["counts"]))
PYTHON
    )
fi
{
    echo "exit-code=$code"
    echo "counts=$counts"
    echo "regressed=$(grep -oP '"REGRESSED": \K\d+' <<<"$counts" || echo 0)"
    echo "markdown=$markdown"
} >>"$GITHUB_OUTPUT"
if [ -s "$markdown" ]; then cat "$markdown" >>"$GITHUB_STEP_SUMMARY"; fi

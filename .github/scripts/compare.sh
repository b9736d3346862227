#!/usr/bin/env bash
# Runs `python -m bench ab` and writes down what came out, among the step's outputs: exit-code, counts, regressed, markdown.
# Succeeds whatever the verdict, so that the report can be kept; verdict.sh makes a result of it.
# What to compare stands in the environment: no input is ever read as code.
set -euo pipefail

work=$RUNNER_TEMP/attention-bench
json=$work/attention-bench.json
markdown=$(realpath -m "${MARKDOWN:?}")
mkdir -p "$work"
rm -f "$json" "$markdown"

# The interpreter of one side: it finds modules in that side's checkout.
interpreter() { # NAME CHECKOUT
    printf '#!/usr/bin/env bash\nPYTHONPATH=%q exec %q "$@"\n' "$2" "$PYTHON" >"$work/$1"
    chmod +x "$work/$1"
}

sides=()
folder=$PWD
suite=$GITHUB_ACTION_PATH
if [ -n "$BASE_IMPL$HEAD_IMPL" ]; then
    sides=(--base-impl="$BASE_IMPL" --head-impl="$HEAD_IMPL")
elif [ -n "$BASE_REF" ] && [ -f bench/ab.py ]; then
    suite=$PWD
    sides=(--base="$BASE_REF" ${IMPL:+--impl="$IMPL"})
elif [ -n "$BASE_REF" ]; then
    git worktree remove --force "$work/base.checkout" 2>/dev/null || true
    base=$(git rev-parse --verify --end-of-options "$BASE_REF^{commit}") || base=
    if [ -n "$base" ] && git worktree add --quiet --detach "$work/base.checkout" "$base"; then
        interpreter base "$work/base.checkout"
        interpreter head "$PWD"
        folder=$work # where neither side's modules lie
        sides=(--base-python ./base --head-python ./head --impl="$IMPL")
    fi
fi

read -ra more <<<"${ARGUMENTS//$'\n'/ }"
code=0
(
    cd "$folder"
    PYTHONPATH=$suite "$PYTHON" -m bench ab "${sides[@]}" "${more[@]}" \
        --margin="$MARGIN" --budget="$BUDGET" --json "$json" --markdown "$markdown"
) || code=$?
if [ -d "$work/base.checkout" ]; then git worktree remove --force "$work/base.checkout"; fi

counts='{}'
if [ -s "$json" ]; then
    counts=$("$PYTHON" - "$json" <<'PYTHON'
import collections, json, sys

cells = json.load(open(sys.argv[1], encoding="utf-8"))["cells"]
print(json.dumps(collections.Counter(cell["word"] for cell in cells)))
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

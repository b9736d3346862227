#!/usr/bin/env bash
# Runs `python SUITE/bench ab` and writes down what came out, among the step's outputs: exit-code, counts, regressed, markdown.
# Succeeds whatever the verdict, so that the report can be kept; verdict.sh makes a result of it.
# What to compare stands in the environment: no input is ever read as code. No Python looks for its own modules in the user's
# folder (-P), so what lies there changes nothing but what is compared.
set -euo pipefail

work=$RUNNER_TEMP/attention-bench
json=$work/attention-bench.json
markdown=$(realpath -m "${MARKDOWN:?}")
mkdir -p "$work"
rm -f "$json" "$markdown"

# The interpreter of one side: the suite finds the user's modules in that side's checkout. Fails where it would find one
# elsewhere, say among the installed packages: both sides would be the same code, and nothing would ever regress.
interpreter() { # NAME CHECKOUT
    local modules
    modules=$(realpath -m "$2/${MODULES:-.}")
    printf '#!/usr/bin/env bash\nATTENTION_BENCH_PATH=%q exec %q "$@"\n' "$modules" "$PYTHON" >"$work/$1"
    chmod +x "$work/$1"
    "$work/$1" -P - "$IMPL" "$modules" <<'PYTHON'
import importlib.util, pathlib, sys

impl, modules = sys.argv[1:]
sys.path.append(modules)  # where the suite looks, too
for name in (it.partition("=")[2].partition(":")[0] for it in impl.split(",") if "=" in it):
    spec = importlib.util.find_spec(name.partition(".")[0])
    places = [spec.origin or "", *(spec.submodule_search_locations or ())] if spec else []
    if spec and not any(pathlib.Path(it).resolve().is_relative_to(modules) for it in places if it):
        sys.exit(f"{name} is taken from {spec.origin or places}, not from {modules}: give its folder as `path`")
PYTHON
}

sides=()
folder=$PWD
suite=$GITHUB_ACTION_PATH
if [ -n "$BASE_IMPL$HEAD_IMPL" ]; then
    sides=(--base-impl="$BASE_IMPL" --head-impl="$HEAD_IMPL")
elif [ -n "$BASE_REF" ] && [ -d bench/ab ] && grep -qs '^name = "attention-bench"' pyproject.toml; then
    suite=$PWD
    sides=(--base="$BASE_REF" ${IMPL:+--impl="$IMPL"})
elif [ -n "$BASE_REF" ]; then
    git worktree remove --force "$work/base.checkout" 2>/dev/null || true
    base=$(git rev-parse --verify --end-of-options "$BASE_REF^{commit}") || base=
    if [ -n "$base" ] && git worktree add --quiet --detach "$work/base.checkout" "$base"; then
        if interpreter base "$work/base.checkout" && interpreter head "$PWD"; then
            folder=$work # where neither side's modules lie
            sides=(--base-python ./base --head-python ./head --impl="$IMPL")
        fi
    fi
fi

read -ra more <<<"${ARGUMENTS//$'\n'/ }"
code=0
(
    cd "$folder"
    "$PYTHON" "$suite/bench" ab "${sides[@]}" "${more[@]}" \
        --margin="$MARGIN" --budget="$BUDGET" --json "$json" --markdown "$markdown"
) || code=$?
if [ -d "$work/base.checkout" ]; then git worktree remove --force "$work/base.checkout"; fi

counts='{}'
if [ -s "$json" ]; then
    counts=$("$PYTHON" -P - "$json" <<'PYTHON'
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

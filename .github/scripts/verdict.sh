#!/usr/bin/env bash
# Makes a check's result of EXIT_CODE, that of `python -m bench ab`. A machine that moved says nothing against a change.
set -euo pipefail

case "$EXIT_CODE" in
0) echo "Nothing regressed." ;;
1)
    echo "::error title=attention-bench::something regressed (${REGRESSED:-0} cells in time), is broken, needs more memory, or now fails the correctness check: see the report"
    exit 1
    ;;
2) echo "::notice title=attention-bench::it could not be judged: see the report, and run it again" ;;
3)
    echo "::error title=attention-bench::a mistake in the inputs: the step 'Compare' says which"
    exit 1
    ;;
*)
    echo "::error title=attention-bench::the comparison ended with exit code ${EXIT_CODE:-unknown}"
    exit 1
    ;;
esac

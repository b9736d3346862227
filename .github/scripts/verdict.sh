#!/usr/bin/env bash
# Derives the result of the check from EXIT_CODE of `python -m bench ab`. If nothing could be judged, something may be
# slower, so the check fails unless ON_INCONCLUSIVE is `pass`.
set -euo pipefail

case "${ON_INCONCLUSIVE:-fail}" in
pass) inconclusive=notice ;;
fail) inconclusive=error ;;
*)
    echo "::error title=attention-bench::on-inconclusive is \`pass\` or \`fail\`, not \`$ON_INCONCLUSIVE\`"
    exit 1
    ;;
esac

case "$EXIT_CODE" in
0) echo "Nothing regressed." ;;
1)
    echo "::error title=attention-bench::something regressed in time (cells: ${REGRESSED:-0}) or in memory, is broken, or now fails the correctness check: see the report"
    exit 1
    ;;
2)
    echo "::$inconclusive title=attention-bench::it could not be judged: see the report, and run it again"
    if [ "$inconclusive" = error ]; then exit 1; fi
    ;;
3)
    echo "::error title=attention-bench::an error in the inputs, which the step 'Compare' prints"
    exit 1
    ;;
*)
    echo "::error title=attention-bench::the comparison ended with exit code ${EXIT_CODE:-unknown}"
    exit 1
    ;;
esac

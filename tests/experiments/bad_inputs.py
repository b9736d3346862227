"""`python -m tests.experiments.bad_inputs [WORDS]`: what users get wrong, and what fails around them.

Every input runs in a shell, in its own folder with kernels that misbehave and two saved runs. A usage error must print one
line and nothing else; where a run continues, exactly one line must report what happened. No traceback, the right exit
code. Full and read-only disks need Linux and root (`unshare -m`). With WORDS, only the inputs that hold them. What pytest
tests in its own process is not repeated here.
"""

from __future__ import annotations

import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
BROKEN = re.compile(r"Traceback|INTERNALERROR|Exception ignored|^\s+File \"", re.MULTILINE)
PROSE = re.compile(r"benchmark: |time spent: |machine drift: |saved: |rootdir: |the run was disturbed: ")
"""Lines of a run that a terminal may wrap."""

LONGEST = 120.0

SHELL = f"""
set -o pipefail
shopt -s expand_aliases
alias bench='{Path(sys.executable).with_name("pytest")} {CHECKOUT}/bench'
alias pb='{sys.executable} {CHECKOUT}/bench'
alias pr='{sys.executable} {CHECKOUT}/reports'
alias ab='{sys.executable} -m commands.console'
CELL='--T 16 --H 2 --dtype float32'
SMALL="$CELL --cell-time 0.01"
sizes() {{ bench --T 16,32 --H 2 --dtype float32 --cell-time 0.01 --impl sdpa --benchmark-save=sizes >&/dev/null; }}
mount() {{ [ -n "$OWN_NAMESPACE" ] || exit 99; command mount "$@"; }}
fill_when_begun() {{
    until ls results/*/*.journal; do sleep 0.1; done >&/dev/null
    head -c 2M /dev/zero > results/hog 2>/dev/null
}}
full() {{ mkdir -p results; mount -t tmpfs -o size=$1 x results; }}
"""

MINE = """\
import os, sys
import torch
from torch.nn.functional import scaled_dot_product_attention as ok
def exits(q, k, v, **_): os._exit(0)
class Sizes(torch.nn.Module):
    def __init__(self, d_model, n_heads=8): ...
def own(q, k, v, **options): return ok(q, k, v, **options)
def raises(q, k, v, **_): raise ValueError("[/red] no\\nsuch thing")
def speaks(q, k, v, **_): raise ValueError("na\\u00efve \\u2192")
def prints(*qkv, **options): print('{"seconds": 0}', flush=True); os.write(1, b"x"); return ok(*qkv, **options)
def forks(*qkv, **options):
    if not (pid := os.fork()): os._exit(0)
    os.waitpid(pid, 0)
    return ok(*qkv, **options)
def doubles(*qkv, **options):
    if not os.path.exists("doubled"): open("doubled", "w").close(); os.fork()
    return ok(*qkv, **options)
def walks_away(*qkv, **options): os.chdir("/"); return ok(*qkv, **options)
def closes(*qkv, **options): sys.stdout.close(); os.closerange(0, 2); return ok(*qkv, **options)
def looks_at_its_input(q, k, v, **_): return v[:]
def writes_on_its_input(q, k, v, **options): q *= 2; return ok(q, k, v, **options)
def wide(*qkv, **options): return ok(*qkv, **options).double()
def elsewhere(*qkv, **options): return ok(*qkv, **options).to("meta")
def two(*qkv, **options): return ok(*qkv, **options), None
def nothing(*qkv, **options): ok(*qkv, **options)
def fills(*_, **__): return torch.empty(1 << 50)
def recurses(*qkv, **options): return recurses(*qkv, **options)
class Mute(Exception):
    def __str__(self): raise ValueError("unspeakable")
def unspeakable(*_, **__): raise Mute
number = 3
"""


@dataclass(frozen=True, kw_only=True)
class Input:
    """A command line, its exit code, and words of the resulting line."""

    typed: str
    code: int
    words: str
    alone: bool
    """Whether nothing but that line is printed."""
    setting: str = ""
    """`root`: in a mount namespace of its own; `80`: in a terminal of 80 columns; `ctrl-c:SECONDS`: interrupted after so long,
    with its group; `sigint:SECONDS`: alone."""


def refused(typed: str, code: int, words: str, setting: str = "") -> Input:
    return Input(typed=typed, code=code, words=words, alone=True, setting=setting)


def run(typed: str, code: int, words: str, setting: str = "") -> Input:
    return Input(typed=typed, code=code, words=words, alone=False, setting=setting)


NAMED = "--benchmark-save=x"
INTERRUPTED = r"^(bench|reports): (error: )?interrupted|^unfinished, and kept: .* --resume x` continues"
"""Of what is starting, or has nothing to go on with; of a run."""
LASTS = "pr history --results ../many --out ."
"""A history of more runs than are read before Ctrl-C."""
SDPA_OVER_FUSED = "--base-impl fused --head-impl sdpa"
INPUTS = [
    # Kernels that end, hang or shout.
    run(f"bench --impl mine=mine:exits,sdpa $SMALL {NAMED}", 1, r"mine: .*: ended its process \(exit code 0\)"),
    run(f"bench --impl mine=mine:raises,sdpa $SMALL {NAMED}", 1, r"^error: mine: .*ValueError: \[/red\] no"),
    run(f"PYTHONIOENCODING=ascii bench --impl mine=mine:speaks,sdpa $SMALL {NAMED}", 1, "^error: mine: .*ValueError: na"),
    # What selects.
    refused("bench --resume base2 --benchmark-save=base2", 4, "no run 'base2'.*did you mean base"),
    refused("cd $(mktemp -d) && bench --resume x", 4, "no run 'x'.*none is there yet"),
    refused("bench --impl , --dry-run", 4, "--impl names nothing"),
    refused("bench --T 16, --dry-run", 4, "--T 16,: '' is not a positive whole number"),
    refused("bench --T 99999999999999999999 --dry-run", 4, "--T 99999999999999999999: .* up to 2147483647"),
    refused("bench --T 1e3 --dry-run", 4, "'1e3' is not a positive whole number"),
    refused("bench --T ٣ --dry-run", 4, "'٣' is not a positive whole number"),
    refused("bench --dropout 1 --dry-run", 4, "'1' is not a probability"),
    refused("bench --save-traces --impl sdpa", 4, "--save-traces saves traces with a run"),
    # What goes with what.
    refused("bench --sinks true --dry-run", 4, "'true' is not one of on, off"),
    refused("bench --case B1-T64-H1-D_h64-float32-cpu, --dry-run", 4, "has the id ''"),
    run("bench --impl flash_attn,sdpa $SMALL", 0, "unsupported: flash_attn: .*"),
    run("bench --impl openvino $SMALL --dry-run || true", 0, "openvino.* needs"),
    # A run that is resumed with other code.
    # Names.
    refused("bench --impl mine --dry-run", 4, "expected NAME=module:function, as in mine=mine:FUNCTION"),
    refused("bench --impl yours --dry-run", 4, "unknown implementation 'yours'"),
    refused("bench --impl mine:ok --dry-run", 4, "as in mine=mine:ok"),
    refused("bench --impl mine=mine:number --dry-run", 4, "mine=mine:number"),
    refused("bench --impl mine=broken:ok --dry-run", 4, "SyntaxError"),
    refused("bench --impl '[/x]=mine:ok' --dry-run", 4, r"\[/x\]"),
    refused("bench --impl $'a\\nb=mine:ok' --dry-run", 4, r"a\\nb"),
    refused("bench --impl 'a b=mine:ok' --dry-run", 4, "a b"),
    refused("bench --impl '../x=mine:ok' --dry-run", 4, r"\.\./x"),
    refused("pb ab --base-impl $'a\\nb' --head-impl sdpa", 3, r"a\\nb"),
    refused("pb ab --base-impl '[/x]' --head-impl sdpa", 3, r"\[/x\]"),
    refused("bench --benchmark-save=a/b $SMALL --impl sdpa", 4, "benchmark-save: [Mm]ust not contain"),
    refused("bench --benchmark-save= $SMALL --impl sdpa", 4, "benchmark-save: "),
    refused(f"bench --benchmark-save={'x' * 300} $SMALL --impl sdpa", 4, "at most 200 bytes"),
    # Pipes, encodings, terminals.
    run(f"bench $CELL --impl sdpa --cell-time 0.2 {NAMED} | head -1; test -e results/*/0003_x.json", 0, ""),
    run("bench --list | head -1", 0, ""),
    run("pr history | head -1", 0, ""),
    run("PYTHONIOENCODING=ascii pr compare base other || [ $? -le 2 ]", 0, ""),
    run("PYTHONIOENCODING=ascii pr history", 0, ""),
    run("PYTHONIOENCODING=ascii pr advise --T 16 --H 2", 0, ""),
    run("PYTHONIOENCODING=ascii pr", 0, ""),
    run("PYTHONIOENCODING=ascii bench --list", 0, ""),
    run("LC_ALL=C PYTHONUTF8=0 pb doctor || true", 0, ""),
    run(f"PYTHONIOENCODING=ascii bench $SMALL --impl sdpa,fused {NAMED}", 0, "saved: "),
    run("TERM=dumb bench --list", 0, "", "80"),
    run("bench --list", 0, "", "80"),
    run(f"bench $SMALL --impl sdpa,fused {NAMED}", 0, "saved: ", "80"),
    refused("bench --list > /dev/full", 4, "No space left"),
    refused("pb doctor > /dev/full", 2, "No space left"),
    refused("pr history > /dev/full", 3, "No space left"),
    # Disks.
    refused(f"full 4k; head -c 4k /dev/zero > results/hog; bench $SMALL --impl sdpa {NAMED}", 4, "results", "root"),
    run(f"full 1m; bench $SMALL --impl sdpa {NAMED} & pid=$!; fill_when_begun; wait $pid", 1, "continues once", "root"),
    refused(f"full 1m; mount -o remount,ro results; bench $SMALL --impl sdpa {NAMED}", 4, "Read-only file system", "root"),
    refused("mount --bind results results; mount -o remount,ro,bind results; bench --resume base", 0, "", "root"),
    refused("mount --bind results results; mount -o remount,ro,bind results; pr baseline set base", 3, "Read-only", "root"),
    refused("mkdir -p reports; mount -t tmpfs -o ro x reports; pr", 3, "Read-only", "root"),
    refused("mkdir -p reports; mount -t tmpfs -o size=16k x reports; pr", 3, "No space left", "root"),
    refused("mkdir d; mount -t tmpfs -o size=4k x d; sizes; pr figure latency -o d/x.png", 3, "No space left", "root"),
    run(f"ulimit -f 1; bench $SMALL --impl sdpa {NAMED}", 1, "File too large"),
    refused(f"rm -r results; touch results; bench $SMALL --impl sdpa {NAMED}", 4, "results"),
    refused(f"bench $SMALL --impl sdpa {NAMED} --benchmark-storage=/dev/null", 4, "/dev/null"),
    refused(f"bench $SMALL --impl sdpa {NAMED} --benchmark-storage=/proc/x", 4, "/proc/x"),
    refused("cp -r results/*-* results/other-machine; pr history", 0, ""),
    # Interrupted while starting, and later.
    *(run(command, 2, INTERRUPTED, f"ctrl-c:{seconds}")
      for seconds in (0.8, 3)
      for command in ("pb sweep --save x", f"pb ab {SDPA_OVER_FUSED}", "pb doctor", LASTS)),
    run(f"bench $CELL --impl sdpa --cell-time 60 {NAMED}", 2, INTERRUPTED, "ctrl-c:5"),
    run("pb sweep --save x $CELL --impl sdpa,fused,einsum --cell-time 3", 2, INTERRUPTED, "sigint:20"),
    # Its own modules of Python's names.
    run(f"echo 'loads = 1' > json.py; bench $SMALL --impl sdpa {NAMED}", 0, "saved: "),
    run("echo 'loads = 1' > json.py; pb doctor || true", 0, ""),
    run("echo 'loads = 1' > json.py; pr", 0, "index.html"),
    run("mkdir bench reports impls; touch bench/__init__.py; pr advise --T 16 --H 2", 0, ""),
    # Kernels that do what they needn't.
    *(run(f"bench --impl mine=mine:{name},sdpa $SMALL {NAMED}", 0, "saved: ")
      for name in ("prints", "forks", "doubles", "walks_away", "closes")),
    *(run(f"bench --impl mine=mine:{name},sdpa $SMALL {NAMED}", 1, f"mine: .*{says}")
      for name, says in (("looks_at_its_input", ""), ("writes_on_its_input", ""), ("wide", "float64"),
                         ("elsewhere", "meta"), ("two", "tuple"), ("nothing", "None"), ("recurses", "RecursionError"),
                         ("unspeakable", "Mute"))),
    run(f"bench --impl mine=mine:fills,sdpa $SMALL {NAMED}", 0, "out_of_memory: mine"),
    run(f"bench --impl mine=mine:own,mine=mine:own,sdpa,sdpa $SMALL {NAMED}", 0, "saved: "),
    # Where it is started, and what is around.
    run(f"mkdir 'a b ü'; cp mine.py 'a b ü'; cd 'a b ü'; bench --impl mine=mine:own $SMALL {NAMED} --report", 0, "^/.*ü.*html"),
    refused("cp mine.py 'my kernel.py'; bench --impl 'mine=my kernel:nix' --dry-run", 4, "my kernel has no attribute 'nix'"),
    refused("mkdir d; cd d; rmdir ../d; pr", 3, "the current folder: No such file"),
    refused("mkdir d; cd d; rmdir ../d; pb sweep --save x", 2, "the current folder: No such file"),
    refused("pr > /dev/full", 3, "standard output: No space left"),
    run("pr history >&-", 0, ""),
    run("pb --help >&-", 0, ""),
    run(f"bench $SMALL --impl sdpa {NAMED} <&-", 0, "saved: "),
    run(f"TMPDIR=/nowhere HOME=/nowhere bench $SMALL --impl sdpa {NAMED}", 0, "saved: "),
    run("HOME=/nowhere MPLCONFIGDIR=/dev/null pr", 0, "index.html"),
    run(f"PYTHONOPTIMIZE=2 bench $SMALL --impl sdpa {NAMED}", 0, "saved: "),
    run(f"COLUMNS=x OMP_NUM_THREADS=x CXX= bench $SMALL --impl sdpa {NAMED}", 0, "saved: "),
    run("COLUMNS=0 pr advise", 0, "from run"),
    run(f"echo x > .git; bench $SMALL --impl sdpa {NAMED}", 0, "saved: "),
    # Results that are not what they should be.
    refused("rm -r results; ln -s results results; pr --results results", 3, "no folder results"),
    refused("ln -s loop.json results/loop.json; pr results/loop.json", 3, "loop.json"),
    run(f"rm results/*/.lock; mkdir $(echo results/*)/.lock; bench $SMALL --impl sdpa {NAMED}", 1, "not saved: .*a directory"),
    run(f"touch results/*/.lock; bench $SMALL --impl sdpa {NAMED}", 0, "saved: "),
    refused("echo '{\"header\": {' > $(echo results/*)/x.1-1.journal; bench --resume x", 4, "x"),
    refused("rm results/*/*_other.json; mkdir $(echo results/*)/0009_d.json; pr advise", 0, "left out: .*Is a directory"),
    refused("sed -i 's/\"peak_bytes\": [0-9]*/\"peak_bytes\": \"x\"/' results/*/*.json; pr", 3, ""),
    # Twice, against each other, and beyond measure.
    refused("pb sweep --save x --benchmark-save y --processes 1 --dry-run", 4, "--save is given 2 times"),
    refused("pr compare base other --json", 3, "--json"),
    run(f"bench $SMALL --impl sdpa --cell-timeout 1e300 {NAMED}", 0, "saved: "),
    run("bench $SMALL --processes 99999999999999 --dry-run", 0, "about"),
    refused("pr advise --T 99999999999999999999999", 3, "was not measured here"),
    refused("pr advise --H 9999999999999999999 --json >out", 3, "was not measured here"),
    refused(f"pb ab {SDPA_OVER_FUSED} --seed 1.5", 3, "--seed"),
    refused("pr figure latency -o ''", 3, ""),
    refused("pr export -o .", 3, ""),
    refused("pr export -o results/x.csv/y.csv", 3, "x.csv"),
    # What would be ignored.
    refused("bench --impl mine.py --dry-run", 4, "as in mine=mine:FUNCTION"),
    refused("bench --requests 2x16:16 --out_bias on --dry-run", 4, "leave out --out_bias"),
    # What would be ignored: the first of two, and what has no effect beside another.
    refused("bench --T 16,32 --case B1-T16-H8-D_h64-float32-cpu --case B1-T32-H8-D_h64-float32-cpu --dry-run", 4,
            "--case is given 2 times: give it once"),
    refused("pb ab --self-test 1 --json x.json", 3, "leave out --json"),
    refused("pb sweep --cluster ray --save x --report", 4, "--report does not go with --cluster"),
    refused("bench $SMALL --benchmark-json=x.json", 4, "--benchmark-json=x.json changes nothing here"),
    refused("pr export -o a.csv -o b.csv", 3, "-o is given 2 times"),
    refused("pr export -o a.csv --output=b.csv", 3, "-o is given 2 times"),
    refused("pr -v base other", 3, "-v is for the page of one run"),
    # Modules that do more than define a kernel.
    refused("bench --impl mine=leaving:ok --dry-run", 4, "can't import leaving: SystemExit: 3"),
    run(f"bench --impl mine=loud:ok $SMALL {NAMED}", 0, "saved: "),
    run(f"bench --impl mine=moving:ok $SMALL {NAMED} && ls results/*/0003_x.json", 0, "saved: "),
    run("bench --impl größe=größe:ok $SMALL --benchmark-save='a b ü'", 0, "saved: .*ü"),
    refused("pb check leaving:ok", 3, "can't import leaving: SystemExit: 3"),
    refused("pb check mine.py", 3, "as in mine=mine:FUNCTION"),
    refused("pb check mine:own loud:ok own=mine:ok", 3, "own is mine:own already: give this one another name"),
    # Files of cases.
    refused("bench --cases . --dry-run", 4, "--cases .*: Is a directory"),
    refused("echo '[{\"T\": NaN}]' > c.json; bench --cases c.json --dry-run", 4, "T: nan is not a positive whole number"),
    refused("echo '[{\"t\": 16}]' > c.json; bench --cases c.json --dry-run", 4, "no case has an axis 't'; did you mean T"),
    refused("printf 'T,H\\r\\n16,2\\r\\n' > c.csv; bench --cases c.csv --impl sdpa --dry-run >out", 0, ""),
    refused("printf '\\xef\\xbb\\xbf[{\"T\": 16}]' > c.json; bench --cases c.json --impl sdpa --dry-run >out", 0, ""),
    refused("printf '[{\"mask\": \"\\xff\"}]' > c.json; bench --cases c.json --dry-run", 4, "--cases .*c.json: .*utf-8"),
    # Files that are folders, and what is no file.
    refused("mkdir x.json; pr x.json", 3, "x.json"),
    refused("mkdir x.json; pr compare base other --json x.json >out", 3, "x.json: Is a directory"),
    run("touch f; pr history --out f", 3, "f/history: Not a directory"),
    refused("pr advise --model .", 3, "--model ."),
    refused("pr conformance mine.py", 3, "mine.py"),
    refused("mkdir k.py; ab new-kernel k.py", 3, "exists already"),
    refused("ab new-kernel mine", 3, "expected the name of a module, such as my_kernel.py"),
    refused(f"pb ab {SDPA_OVER_FUSED} --json .", 3, "can't be written: Is a directory"),
    refused(": > $(echo results/*)/x.1-1.journal; bench --resume x", 4, "no run 'x' to resume"),
    # What is mistyped, or called otherwise elsewhere.
    refused("bench --device gpu --dry-run", 4, "did you mean cuda"),
    refused("pr advise --dtype bf16", 3, "dtype = bfloat16 was not measured"),
    *(refused(f"echo 'own.limits = {limits}' >> mine.py; bench --impl x=mine:own --dry-run", 4, says)
      for limits, says in (('{"dtype": "fp32"}', "did you mean dtypes"), ('{"dtypes": ("half",)}', "'half' is not one of"),
                           ('{"max_T": "64"}', "not a positive whole number"), ('["max_T"]', "limits is not a dict"),
                           ('{"max_T": True}', "True, not a positive"), ('{"max_T": -1}', "-1, not a positive"),
                           ('{"grouped": 0}', "0, not True or False"), ('{"masks": []}', "is empty: no case"),
                           ('{"beyond": ("biass",)}', "did you mean bias"))),
    # Unexpected inputs.
    run("echo 'input(1)' > asks.py; bench --impl mine=asks:f --dry-run", 4, "can't import asks: OSError"),
    run("echo 'async def f(q, k, v, **_): return q' > later.py; bench --impl mine=later:f $SMALL", 1,
        "^wrong: mine: .*returns coroutine, not"),
    run(f"bench --impl sdpa $SMALL {NAMED}", 0, "^No recommendation: no case of this run has times of two"),
    refused("pb check fusde,sdpa", 3, "did you mean fused"),
    refused("git init -q; pb ab --base HEAD --impl mine=mine:own", 3, "unknown revision 'HEAD'"),
    refused("mkdir 'a b'; echo 'from near import f' > 'a b/k.py'; bench --impl 'mine=a b/k.py:f' --dry-run", 4,
            "can't import a b.k: ModuleNotFoundError: No module named 'near'"),
    refused("mkdir 'a b'; cp mine.py 'a b/near.py'; echo 'from near import own' > 'a b/k.py'; "
            "bench --impl 'mine=a b/k.py:own' --dry-run >out", 0, ""),
    refused("ab new-kernel ''", 3, "expected the name of a module"),
    # What would be ignored, and what was typed once too often, or in another order.
    refused("pr -q -v base", 3, "not allowed with argument"),
    refused("pr base other --baseline sdpa", 3, "--baseline is for the page of one run"),
    refused("mkdir ab; echo '{}' > ab/x.json; pr compare ab/x.json --force", 3, "ab/x.json: not a run file"),
    refused("pb sweep --save x --cluster ray --slurm-option time=1", 4, "--slurm-option goes with --cluster slurm"),
    refused("bench --autocast float32 --dry-run", 4, "not one of bfloat16, float16"),
    refused("bench --impl mine=mine:own --baseline own --dry-run", 4, "--baseline own: not selected; selected: mine"),
    refused("bench --impl mine=..mine:own --dry-run", 4, "can't import"),
    refused("bench --impl mine=mine:own.x --dry-run", 4, "no attribute 'own.x'"),
    refused("bench --impl =mine:own --dry-run", 4, "expected NAME=module:function"),
    refused("printf 'x = \"\\xff\"' > latin.py; bench --impl mine=latin:x --dry-run", 4, "can't import latin: SyntaxError"),
    refused("mkdir dir.py; bench --impl mine=dir.py:f --dry-run", 4, "dir"),
    run("echo 'import functools; own.limits = {\"max_T\": 8}; part = functools.partial(own)' >> mine.py; "
        "bench --impl mine=mine:part $SMALL", 0, "^unsupported: mine: supports T up to 8"),
    refused("pb check mine:own --device cuda", 3, "torch finds no such device"),
    refused(f"pb ab {SDPA_OVER_FUSED} --save a/b", 3, "--save 'a/b': a run's name has at most"),
    refused(f"pb ab {SDPA_OVER_FUSED} --json /nowhere/x.json", 3, "can't be written: No such file"),
    refused("git init -q; pb bisect A B --impl mine=mine:own", 3, "unknown revision 'A'"),
    refused("pr export base -o x.csv --as cases", 3, "its ending should be one of .json"),
    refused("ab new-kernel class.py", 3, "expected the name of a module"),
    # What kernel authors write otherwise, and names that are taken.
    *(run(f"echo 'own.limits = {limits}' >> mine.py; bench --impl x=mine:own $CELL --dry-run", 0, says)
      for limits, says in (('{"dtypes": (torch.half,)}', "1 unsupported"), ('{"autocasts": False}', "^1 cell to measure"))),
    *(refused(f"echo 'own.limits = {limits}' >> mine.py; bench --impl x=mine:own --dry-run", 4, says)
      for limits, says in (('{"package": ("flash_attn",)}', "not text"), ('{"returns_lse": True}', "True, not a positive"),
                           ('{"dtypes": (torch.int8,)}', "torch.int8 is not one of"))),
    *(refused(f"printf 'raise RuntimeError(\"Error building x\\\\nc++: no\")' > builds.py; {command}", code,
              "can't import builds: RuntimeError: Error building x$")
      for command, code in (("bench --impl mine=builds:f --dry-run", 4), ("pb check builds:f", 3))),
    run("cd results/*; mv 0001_base.json 0001_history.json; cd -; ab report history", 0, "index.html$"),
    # Empty values, as of unset shell variables, and what is named without its option.
    refused(f"bench $SMALL --impl sdpa {NAMED} --benchmark-storage=", 4, "--benchmark-storage is empty"),
    refused("pb ab --base-impl sdpa --head-impl x=mine:nix", 3, "error: x=mine:nix: module mine has no attribute 'nix'"),
    run("pb new-layer own.py && bench --impl own=own:Mine $SMALL", 0, "own.py is written"),
    # Unreadable, huge and odd.
    refused("ln -s loop.py loop.py; bench --impl m=loop:f --dry-run", 4, "can't import loop: "),
    refused("printf 'x = 1\\0' > nul.py; bench --impl m=nul:x --dry-run", 4, "can't import nul: "),
    refused("echo '[{\"T\": 1e308}]' > c.json; bench --cases c.json --dry-run", 4, "not a .*whole number"),
    run("bench $CELL --impl sdpa --cell-time 1e-300 --benchmark-save=🚀", 0, "saved: .*🚀"),
    run(f"bench $SMALL --shuffle -99999999999999999999999 --impl sdpa {NAMED}", 0, "saved: "),
    refused("pr compare base other --html /dev/full >out", 3, "No space left on device"),
    refused("pb check mine:own --json | head -c 1 >out", 0, ""),
    refused("pr history --results /dev/null", 3, "no run in /dev/null"),
    refused(f"mount --bind . .; mount -o remount,ro,bind .; pb ab {SDPA_OVER_FUSED}", 3, "Read-only file system", "root"),
    refused("mount --bind . .; mount -o remount,ro,bind .; cd $PWD; ab new-kernel k.py", 3, "be written: Read-only", "root"),
    # The other commands.
    refused("pb", 0, "usage"),
    refused("pb sweep --resume nix", 4, "no run nix"),
    refused("pb sweep --cluster ray --save x", 4, "pip install ray"),
    refused("pb sweep --cluster slurm --save x", 4, "pip install submitit"),
    refused("pb sweep --cluster ray --resume nix", 4, "no run nix was started"),
    refused("pb ab --base-impl fused --head-impl sdap", 3, "sdpa"),
    refused("pb ab --base-python /no/python", 3, "/no/python"),
    refused("pr ''", 3, "no run ''"),
    refused("pr /dev/null", 3, "truncated|/dev/null"),
    refused("pr advise --T 16 --window 3", 3, "window"),
    refused("pr advise --emit x.py --json", 3, "not allowed with"),
    refused("sizes; pr figure latency -o /nowhere/x.png", 3, "/nowhere"),
    refused("mkfifo results/pipe.json; pr results/pipe.json", 3, ""),
    run("ab --version", 0, "attention-bench .*torch"),
]  # fmt: skip


def main() -> None:
    wanted = [it for it in INPUTS if all(word in it.typed + it.setting for word in sys.argv[1:])]
    good = 0
    with tempfile.TemporaryDirectory(prefix="bad_inputs") as name:
        kept = Path(name) / "kept"
        _prepare(kept)
        folders = [Path(name) / f"{i}" for i in range(len(wanted))]
        with ThreadPoolExecutor(2) as pool:
            verdicts = pool.map(lambda it, folder: _verdict(it, kept, folder), wanted, folders)
            for it, verdict in zip(wanted, verdicts, strict=True):
                print(f"{'BAD' if verdict else 'ok '} {it.typed}{f'   [{it.setting}]' * bool(it.setting)}")
                print(f"      {verdict}\n" * bool(verdict), end="", flush=True)
                good += not verdict
    print(f"{good} of {len(wanted)} with one line and the right exit code")


def _prepare(kept: Path) -> None:
    kept.mkdir()
    (kept / "mine.py").write_text(MINE)
    ok = "from torch.nn.functional import scaled_dot_product_attention as ok\n"
    modules = {"broken": "def ok(:", "leaving": "import sys; sys.exit(3)", "größe": ok,
               "loud": f"print('hi'); {ok}", "moving": f"import os; os.chdir('/'); {ok}"}  # fmt: skip
    for name, text in modules.items():
        (kept / f"{name}.py").write_text(f"{text}\n")
    for name in ("base", "other"):
        done = _bash(f"bench $SMALL --impl sdpa,fused --benchmark-save={name}", kept)
        assert done.returncode == 0, done.stdout
    (run,) = kept.glob("results/*/0001_base.json")
    many = kept.parent / "many" / "machine"
    many.mkdir(parents=True)
    for i in range(10_000):
        (many / f"{i:05}_base.json").hardlink_to(run)


def _verdict(it: Input, kept: Path, folder: Path) -> str:
    """Return what was wrong with the output; empty if nothing was."""
    shutil.copytree(kept, folder, symlinks=True)
    done = _bash(it.typed, folder, it.setting)
    said = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", done.stdout)
    lines = [line for line in said.splitlines() if line.strip()]
    found = [line for line in lines if re.search(it.words, line)]
    faults = [f"exit code {done.returncode}, not {it.code}"] if done.returncode != it.code else []
    if BROKEN.search(said):
        faults.append("a traceback")
    if it.words and len(found) != 1:
        faults.append(f"{len(found)} lines say {it.words!r}")
    if it.alone and it.code and len(lines) != 1:
        faults.append(f"{len(lines)} lines")
    if it.setting == "80" and (wide := [it for it in lines if len(it.rstrip()) > 80 and not PROSE.match(it)]):
        faults.append(f"wider than 80 columns: {wide[0][:100]}")
    if faults and lines:
        faults.append("last line: " + lines[-1][:200])
    shutil.rmtree(folder, ignore_errors=True)
    return "; ".join(faults)


def _bash(typed: str, folder: Path, setting: str = "") -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")} | {"COLUMNS": "80"}
    env |= {"PYTHONPATH": str(CHECKOUT)} if re.search("(^|; )ab ", typed) else {}
    command = ["bash", "-c", SHELL + "\n" + typed]
    if setting == "root":
        command, env = ["unshare", "-m", *command], env | {"OWN_NAMESPACE": "1"}
    if setting == "80":
        return _in_terminal(command, folder, env)
    process = subprocess.Popen(command, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True,
                               preexec_fn=_listen)  # fmt: skip
    if setting.partition(":")[0] in ("ctrl-c", "sigint"):
        kind, _, seconds = setting.partition(":")
        time.sleep(float(seconds))
        if kind == "ctrl-c":
            os.killpg(process.pid, signal.SIGINT)
        else:
            _python_under(process.pid).send_signal(signal.SIGINT)
    try:
        said, _ = process.communicate(timeout=LONGEST)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        said = process.communicate()[0] + "\nnever ended"
    return subprocess.CompletedProcess(typed, process.returncode, said)


def _listen() -> None:
    """Restore the default handler of SIGINT, which processes started behind a shell's `&` ignore."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _python_under(pid: int):  # type: ignore[no-untyped-def]
    """Return the suite's process: bash itself if it was replaced, else its only child."""
    import psutil

    shell = psutil.Process(pid)
    return shell if "python" in shell.name() else shell.children()[0]


def _in_terminal(command: list[str], folder: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run in a terminal of 80 columns."""
    import fcntl
    import struct
    import termios

    mine, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    env.pop("COLUMNS")
    process = subprocess.Popen(command, cwd=folder, env=env, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    said = b""
    while True:
        try:
            part = os.read(mine, 1 << 16)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        said += part
    os.close(mine)
    return subprocess.CompletedProcess(command, process.wait(), said.decode(errors="replace"))


if __name__ == "__main__":
    main()

"""`python -m bench new-kernel [FILE]` and `new-layer [FILE]`: write a template."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from keyword import iskeyword
from pathlib import Path

from stats.arguments import Parser, as_typed

from .terminal import complain


def _write(what: str, attr: str, arguments: Sequence[str]) -> int:
    """Write the template of a kernel or layer; refuses to overwrite files and to shadow other modules."""
    parser = Parser(f"python -m bench new-{what}", description=f"Write a template of a {what}.")
    parser.add_argument("file", nargs="?", metavar="FILE", default="mine.py", help="default: mine.py")
    path = Path(parser.parse_args(arguments).file)
    if path.suffix != ".py" or not path.stem.isidentifier() or iskeyword(path.stem):
        return complain(f"{path}: expected the name of a module, such as my_{what}.py")
    if find_spec(path.stem):  # which is found before a file of the user's
        return complain(f"{path}: a module {path.stem} exists already; choose another name")
    template = (Path(__file__).parent / "templates" / f"{what}.py.txt").read_text(encoding="utf-8")
    text = template.format(name=path.stem)
    try:
        with path.open("x", encoding="utf-8") as file:
            try:
                file.write(text)
                file.flush()
            except OSError:
                path.unlink()
                raise
    except FileExistsError:
        return complain(f"{path} exists already; choose another name, such as my_{what}.py")
    except OSError as error:
        return complain(f"{path} can't be written: {error.strerror}")
    print(f"{path} is written. Edit it; then check it, and time it beside sdpa:")
    there = "" if path.parent == Path() else f"cd {shlex.quote(str(path.parent))}; "
    print(as_typed(f"  {there}python -m bench check {path.stem}:{attr}"))
    print(as_typed(f"  {there}pytest bench/ --smoke --impl mine={path.stem}:{attr}"))
    return 0


kernel, layer = partial(_write, "kernel", "mine"), partial(_write, "layer", "Mine")

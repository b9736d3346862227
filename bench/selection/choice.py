"""Resolves implementations by name: those of the registry, and the user's own. Depends on torch only."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import fields, replace
from functools import cache
from importlib.metadata import files, packages_distributions
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

import impls
from impls import Impl, Limits
from impls.registry import AROUND, CHOICES, eager_name
from impls.rules import EVERY_RULE
from stats.arguments import nearest
from stats.axes import Axis

from .. import CHECKOUT
from ..cases.case import AXES
from ..cases.cells import Cell
from ..cases.outcome import in_one_line
from ..checks import settings
from ..terminal import warn
from ..timing.devices import DEVICES
from .errors import UsageError

CXX = "clang++" if sys.platform == "darwin" else "g++"
"""Compiler used by torch if CXX is not set."""

CODE = {".py", ".pyx", ".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp", ".ptx", ".metal", ".cl", ".so"}
"""Suffixes of files that are code, also compiled code."""

IMPORTED = re.compile(r"^\s*(?:from|import)\s+(\w+)", re.MULTILINE)
"""Names of imported modules in a source."""


def refuse_absent(device: str) -> None:
    """Raise `UsageError` for a device that torch doesn't find."""
    if not DEVICES[device].present():
        raise UsageError(f"--device {device}: torch finds no such device; leave --device out, or use --device cpu")


def listed(given: Iterable[str]) -> list[str]:
    """Split comma-separated lists of names."""
    return [name.strip() for text in given for name in text.split(",") if name.strip()]


def impls_named(given: list[str], whole_registry: bool, folder: str) -> tuple[Impl, ...]:
    """Return the named implementations; without names the common ones or the whole registry, and those compiled by default."""
    names = listed(given)
    if not names:
        if given:
            raise UsageError("--impl names nothing; `pytest bench/ --list` shows all implementations")
        chosen = [impl for impl in impls.registered() if impl.common or whole_registry]
        names = [impl.name for impl in chosen]
        names += [impl.name + impls.COMPILE for impl in chosen if impl.compiled_by_default]
    return tuple(_impl(name, folder) for name in dict.fromkeys(names))


def _impl(name: str, folder: str) -> Impl:
    if "=" not in name:
        with suppress(KeyError):
            return impls.get(name)
        if ":" not in name and not os.path.exists(os.path.join(folder, f"{name.removesuffix('.py')}.py")):
            near = nearest(eager_name(name), [impl.name for impl in impls.registered()])
            raise UsageError(f"unknown implementation {name!r}{near or ';'} `pytest bench/ --list` shows all")
    try:
        return _own(*name.rpartition("=")[::2], folder)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{name if name.isprintable() else repr(name)}: {error}") from None


def place_of(path: str, folder: str) -> tuple[str, str]:
    """Return the module and attribute of `package.module:attr` or of `package/module.py:attr`; raises ValueError."""
    module, _, attr = path.partition(":")
    if module.endswith(".py"):
        file = from_folder(module, folder)
        if file.startswith(os.pardir):
            raise ValueError(f"{module} is outside the current folder: start in the folder of that file")
        module = file.removesuffix(".py")
        if "." in module:
            raise ValueError(f"{file}: Python can't import from a path with a dot: rename it, or start in its folder")
        module = module.replace(os.sep, ".")
    return module, attr


def repository_of(path: str) -> str | None:
    """Return the kernel repository of `kernels:REPOSITORY#function`, a folder or a name on the hub; None for other paths."""
    module, _, attr = path.partition(":")
    return (module == "kernels" and attr.rpartition("#")[0]) or None


def from_folder(file: str, folder: str) -> str:
    """Return the path of a file relative to a folder, whose path has no symlinks; the file's may have some."""
    parent, name = os.path.split(file)
    parent = os.path.realpath(parent) if os.path.isabs(parent) else os.path.join(folder, parent)
    return os.path.relpath(os.path.join(parent, name), folder)


def own_files(words: Iterable[str], folder: Path) -> dict[str, Path]:
    """Return the user's files that words of a command line name, by their path from `folder`: files as they are, kernel
    repositories, and modules with all code that belongs to them.
    """
    found: dict[str, Path] = {}
    for word in listed(words):
        named = word.rpartition("=")[2]
        if os.path.isfile(folder / named):
            found[named] = folder / named
        elif repository := repository_of(named):
            found |= {os.path.relpath(path, folder): path for path in code_among((folder / repository).rglob("*"))}
        elif named.partition(":")[2]:
            with suppress(ValueError):  # outside of the folder, which an implementation can't be
                found |= _code_of(place_of(named, str(folder))[0].partition(".")[0], folder)
    return found


def _code_of(module: str, folder: Path) -> dict[str, Path]:
    """Return the code of a module or package, of the modules beside it whose names it mentions, and so on; and all other
    code beside it, since names of libraries and sources may be composed at run time.
    """
    beside: dict[str, list[Path]] = {}
    for path in folder.glob("*"):
        beside.setdefault(path.name.partition(".")[0], []).append(path)
    found, names = set[Path](), {module}
    while names := names & beside.keys():
        paths = [path for name in names for path in beside.pop(name)]
        packages = [it for it in paths if it.is_dir() and (it.name == module or code_among(it.iterdir()))]
        new = code_among([*paths, *(file for it in packages for file in it.rglob("*"))])
        text = " ".join(it.read_text(encoding="utf-8", errors="ignore") for it in new if it.suffix != ".so")
        names, found = {*re.findall(r"\w+", text)}, found | {*new}
    if found:
        found |= {path for path in code_among(folder.glob("*")) if path.suffix != ".py"}
    return {path.relative_to(folder).as_posix(): path for path in found}


def _files_of(path: str, imported: ModuleType, folder: str) -> Callable[[], list[Path]] | None:
    """Return a function that finds the user's code behind `module:attr`, sorted by name; of an installed package the lists of
    files with their hashes; None for the suite's own.
    """
    top = sys.modules.get(imported.__name__.partition(".")[0], imported)
    there = next(iter(getattr(top, "__path__", ())), None) or getattr(top, "__file__", None) or ""
    place = folder if repository_of(path) else os.path.dirname(there)
    if top is impls or not place:
        return None
    if is_installed(Path(place)):
        return lambda: lists_of_files(top.__name__)
    return lambda: with_imports(file for _, file in sorted(own_files([path], Path(place)).items()))


def with_imports(files: Iterable[Path]) -> list[Path]:
    """Return files of code with those of the modules that they import from anywhere, except installed packages, torch and
    the suite.
    """
    found, known = [*dict.fromkeys(files)], {*sys.stdlib_module_names, "torch"}
    for file in found:  # which grows
        names = IMPORTED.findall(file.read_text("utf-8", "ignore")) if file.suffix == ".py" else []
        for name in dict.fromkeys(names):
            with suppress(ImportError, ValueError):  # of a module without a specification
                folder = None if name in known else folder_of(name)
                if folder and not is_installed(folder) and folder != CHECKOUT:
                    code = _code_of(name, folder)
                    found += [code[it] for it in sorted(code) if code[it] not in found]
            known.add(name)
    return found


def folder_of(module: str) -> Path | None:
    """Return the folder in which Python finds a module or package; None if it finds none."""
    spec = importlib.util.find_spec(module)
    place = spec and next(iter(spec.submodule_search_locations or ()), spec.origin)
    return Path(place).parent if place else None


def is_installed(folder: Path) -> bool:
    """Whether a folder contains installed packages."""
    return folder.name in ("site-packages", "dist-packages")


def lists_of_files(package: str) -> list[Path]:
    """Return the lists of an installed package's files, with their hashes."""
    names = packages_distributions().get(package, ())
    return [Path(str(it.locate())) for name in names for it in files(name) or () if it.name == "RECORD"]


def code_among(paths: Iterable[Path]) -> list[Path]:
    """Return those paths that are files of code."""
    return [path for path in paths if path.suffix in CODE and path.is_file()]


def _own(name: str, path: str, folder: str) -> Impl:
    """Register a user's kernel or layer, and return it or its compiled form; raises TypeError and ValueError."""
    plain, (module, attr) = eager_name(name), place_of(path, folder)
    if not (plain and module and attr):
        raise ValueError(
            f"expected NAME=module:function, as in {plain or 'mine'}={module or 'mine'}:{attr or 'FUNCTION'}"
        )
    if not re.fullmatch(r"[\w.+-]+", plain):
        raise ValueError("a name is made of letters, digits and _ . + -")
    imported = _import_module(path, module, folder)
    attr = attr.rpartition("#")[2] if repository_of(path) else attr
    try:
        it = attrgetter(attr)(imported)  # also Class.method
    except AttributeError:
        where = getattr(imported, "__file__", None) or next(iter(getattr(imported, "__path__", ())), "a part of Python")
        near = nearest(attr, vars(imported))
        raise ValueError(f"module {module} has no attribute {attr!r}; it is {where}{near}") from None
    except Exception as error:  # of a module that imports it now
        raise ValueError(f"can't import {module}.{attr}: {_why(error, module)}") from None
    limits = _declared(it)
    if isinstance(it, nn.Module):
        if [*it.parameters()]:
            raise ValueError(
                f"that is an instance of {type(it).__name__}; name the class, which is built for every case"
            )
        it = it.eval().forward
    impl = replace(impls.make(plain, it, limits=limits), files=_files_of(path, imported, folder), attr=attr)
    (_refuse_arguments if impl.kernel else _refuse_signature)(it)
    if not (inspect.isroutine(it) or inspect.isclass(it)):  # a partial belongs to the module that names it
        impl = replace(impl, owner=module)
    if not any(known.name == plain and it in (known.kernel, known.core, known.layer) for known in impls.registered()):
        impls.add(impl)
    return impls.get(name)


def _import_module(path: str, module: str, folder: str) -> ModuleType:
    """Import the module, file or kernel repository of an implementation; raises ValueError."""
    named, beside = path.partition(":")[0], Path(folder, *module.split("."))
    source, is_file = beside.with_suffix(".py"), named.endswith(".py")
    if is_file and not source.exists():
        raise ValueError(f"there is no file {named} in {folder}")
    places = [folder, *[str(beside.parent)] * is_file]  # a file may import its neighbours by name, as a script does
    sys.path += [place for place in places if place not in sys.path]  # last, so that they can't shadow others
    if repository := repository_of(path):
        return _imported(repository, lambda: _of_repository(repository, folder))
    imported = _imported(module, lambda: importlib.import_module(module))
    if source.exists():
        _refuse_mixed_up(source, folder)
    file = getattr(imported, "__file__", None)
    for here in filter(Path.exists, (source, beside / "__init__.py")):
        if file and os.path.realpath(file) != os.path.realpath(here):
            warn(f"{module} is {file}, which is found before {here}")
    return imported


def _refuse_mixed_up(source: Path, folder: str) -> None:
    """Raise ValueError if a file imports a neighbour by name, but got a module of that name of the suite's, or of the user's in
    another folder.
    """
    places = Path(folder).resolve(), CHECKOUT
    for name in IMPORTED.findall(source.read_text("utf-8", "ignore")):
        here, loaded = source.with_name(f"{name}.py").resolve(), getattr(sys.modules.get(name), "__file__", None) or "/"
        if here.exists() and here != (there := Path(loaded).resolve()) and any(map(there.is_relative_to, places)):
            raise ValueError(f"it imports {name}, but gets {there}, which was found before {here}: rename one of them")


def _declared(it: Any) -> Limits:
    """Return the declared limits of a user's kernel or layer; raises ValueError for unknown limits, and for
    limits that exclude every case.
    """
    given = getattr(it, "limits", getattr(getattr(it, "func", None), "limits", {}))  # a partial has its function's
    if not isinstance(given, Mapping):
        raise ValueError(f"limits is not a dict, as in {{'dtypes': ('bfloat16',)}}, but {given!r}")
    kinds = {field.name: str(field.type) for field in fields(Limits)}
    found: dict[str, Any] = dict(given)
    for name, value in found.items():
        if name not in kinds:
            raise ValueError(f"limits has no {name!r}; known: {', '.join(kinds)}{nearest(name, kinds)}")
        kind = kinds[name].removesuffix(" | None")
        if value is None and kind != kinds[name]:
            continue
        right, is_right = KINDS[kind]
        if not is_right(value):
            raise ValueError(f"limits[{name!r}] is {value!r}, not {right}")
        if axis := LISTED.get(name):
            words = [value] if isinstance(value, str) else value
            if not words and name != "beyond":
                raise ValueError(f"limits[{name!r}] is empty: no case would be possible")
            try:
                found[name] = axis.read_each(str(word).removeprefix("torch.") for word in words)  # a dtype of torch's
            except ValueError as error:
                raise ValueError(f"limits[{name!r}]: {error}") from None
    return Limits(**found)


KINDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "int": ("a positive whole number", lambda it: type(it) is int and it > 0),
    "float": ("a positive number other than 1", lambda it: type(it) in (int, float) and it > 0 and it != 1),
    "bool": ("True or False", lambda it: isinstance(it, bool)),
    "str": ("text", lambda it: isinstance(it, str)),
    "tuple[str, ...]": ("a tuple of words", lambda it: isinstance(it, Iterable)),
    "Callable[[Any], str | None]": ("a function", callable),
}
"""Right values of a limit, in words and as a test, by the type of its field; None is right where the type allows it."""

LISTED = {f"{name}s": AXES[name] for name in CHOICES}
LISTED["beyond"] = Axis(values=(*EVERY_RULE, *AROUND))
"""Limits that are lists, with the axis that their words are values of."""


SIZES = re.compile(r"[dn]_|.*(dim|embed|hidden|head|width|size|scale|dropout)")
"""Typical names of the first parameter of a layer that isn't built from a `LayerShape`."""


def _refuse_signature(layer: Any) -> None:
    """Raise ValueError if a layer, a class or a partial of one, can't be built from one `LayerShape`."""
    signature, made = inspect.signature(layer), getattr(layer, "func", layer)
    with suppress(TypeError):
        signature.bind("shape")
        of_sizes = SIZES.match(next(iter(signature.parameters))) or made.__init__ is nn.Module.__init__
        if not of_sizes and not {"q", "k", "v"} <= {*inspect.signature(made.forward).parameters}:
            return
    raise ValueError(
        f"{made.__name__}{signature}: a layer is built from one LayerShape: give it a child class, `def __init__(self, "
        "shape): super().__init__(shape.d_model, shape.H)`; of a module that is called with q, k, v name an instance"
    )


def _refuse_arguments(kernel: Callable[..., Any]) -> None:
    """Raise ValueError if a kernel can't be called with q, k and v."""
    with suppress(ValueError):  # a builtin has no signature
        signature = inspect.signature(kernel)
        try:
            signature.bind_partial("q", "k", "v")
        except TypeError:
            name = getattr(kernel, "__name__", "kernel")
            raise TypeError(f"{name}{signature}: a kernel is called with q, k and v; a layer is a class") from None


@cache
def _of_repository(repository: str, folder: str) -> ModuleType:
    """Return the module of a kernel repository, a folder or a name on the hub, loaded by Hugging Face's `kernels`."""
    if importlib.util.find_spec("kernels") is None:
        raise ValueError("kernel repositories need the package kernels: pip install kernels")
    kernels = importlib.import_module("kernels")
    path = Path(folder, repository)
    found: ModuleType = kernels.get_local_kernel(path) if path.is_dir() else kernels.get_kernel(repository)
    return found


def _imported(module: str, load: Callable[[], ModuleType]) -> ModuleType:
    """Import a user's module. Global torch settings that it changes are restored, even if the import fails."""
    before, own_pid, leave = settings.read(never_restored=True), os.getpid(), os._exit
    # Else `os._exit` would end this process without a message; children that the module forks may call it.
    os._exit = lambda status: sys.exit(status) if os.getpid() == own_pid else leave(status)
    try:
        return load()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # also SystemExit, and that of pytest.importorskip
        raise ValueError(f"can't import {module}: {_why(error, module)}") from None
    finally:
        os._exit = leave
        reported = settings.reported_changes(before)
        if changed := settings.restore(before):
            warn(f"{module} modifies global torch settings when it is imported; they were restored: "
                 f"{', '.join(changed)}")  # fmt: skip
        if reported:
            warn(f"{module} changes, when it is imported, {', '.join(reported)}")


def _why(error: BaseException, module: str) -> str:
    """Return an error during an import in one line, and where the package lies if it has no such module."""
    text, package = in_one_line(error), module.partition(".")[0]
    if isinstance(error, ModuleNotFoundError) and error.name and error.name.partition(".")[0] not in sys.modules:
        return f"{text}; start in the folder that contains it, add that to PYTHONPATH, or install it"
    where = getattr(sys.modules.get(package), "__file__", None)
    return f"{text}; {package} is {where}" if where and getattr(error, "name", None) == module else text


def unsupported(cell: Cell) -> str | None:
    """Return why a cell can't be measured in general or on this machine; None if it can be tried."""
    compiler = os.environ.get("CXX", CXX)
    try:
        why = cell.impl.refusal(cell.case)
    except Exception as error:  # of the user's `unless`
        raise UsageError(f"{cell.impl.name}: limits['unless']: {in_one_line(error)}") from None
    if why or not cell.impl.compiled or cell.case.device != "cpu":
        return why
    return (
        None
        if shutil.which(compiler)
        else f"compiled forms on the CPU need a C++ compiler, and {compiler!r} isn't there"
    )

"""Where a compared variant's process gets the user's code: from its own tree of the repository, and from nowhere else that
would be the same for both variants.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Collection, Sequence
from contextlib import suppress
from functools import cache
from importlib.metadata import distributions
from importlib.util import source_from_cache
from pathlib import Path
from tempfile import gettempdir
from typing import Any
from urllib.parse import unquote, urlsplit

from .. import CHECKOUT
from ..selection.choice import code_among, place_of, repository_of
from ..selection.errors import UsageError

SUITE = ("bench", "impls", "stats")
"""Packages of the suite, which both variants import from the same place."""


@cache
def installed_from(repository: Path) -> dict[Path, Path]:
    """Return the files of packages that were installed from a repository, with the package's folder or archive in it."""
    found = dict[Path, Path]()
    for package in distributions():
        url = urlsplit(json.loads(package.read_text("direct_url.json") or "{}").get("url", ""))
        source = Path(unquote(url.path)).resolve()
        if url.scheme == "file" and source.is_relative_to(repository):
            below = source.relative_to(repository)
            found |= {Path(str(package.locate_file(it))).resolve(): below for it in package.files or ()}
    return found


def differ(folders: Sequence[Path]) -> bool:
    """Whether folders contain different code; True without any, as of an archive, whose code is unknown."""
    codes = [{it.relative_to(folder): it.read_bytes() for it in code_among(folder.rglob("*"))} for folder in folders]
    return not codes or any(it != codes[0] for it in codes)


def loaded_libraries() -> set[str]:
    """Return the shared libraries in this process; none where the system doesn't list them."""
    with suppress(OSError):
        maps = Path("/proc/self/maps").read_text(errors="ignore")
        return {*re.findall(r"(/.*\.so[^/\n]*?)(?: \(deleted\))?$", maps, re.MULTILINE)}
    return set()


def is_provided(library: Path, repository: Path) -> bool:
    """Whether a library in a repository belongs to an environment, an installed package, a cache or temporary files."""
    others = [*map(Path, (sys.prefix, sys.base_prefix, gettempdir()))]
    folders = library.parents[: len(library.relative_to(repository).parents)]
    return any(
        it in others or it.name.startswith(".") or "cache" in it.name or any(it.glob("*.dist-info")) for it in folders
    )


class Tree:
    """A variant's tree of the user's repository. `folder`: the current folder in it; `opened`: the files of the repository that
    this process has read so far.
    """

    def __init__(self, folder: str, tree: Path, repository: Path, opened: Collection[str] = ()):
        self._folder, self._tree, self._repository, self._opened = folder, tree.resolve(), repository, opened
        self._given = {*sys.stdlib_module_names, *(name.partition(".")[0] for name in sys.modules)}
        """Modules that the user's can't replace."""

    def check_place(self, name: str) -> None:
        """Raise `UsageError` if a module or kernel repository of the user's isn't that of this variant's tree."""
        if path := name.partition("=")[2]:
            module, _ = place_of(path, self._folder)
            file = getattr(sys.modules[module], "__file__", None) or "another place"
            if (repository := repository_of(path)) and (folder := Path(self._folder, repository)).is_dir():
                file = folder
            self.refuse_others()
            if not Path(file).resolve().is_relative_to(self._tree):
                raise UsageError(
                    f"{name}: {module} is imported from {file}, which is the same for every revision: "
                    "start in the folder of your repository that holds it"
                )

    def refuse_others(self) -> None:
        """Raise `UsageError` if a module was imported from a folder of the working tree that some variant's tree has, too;
        or from elsewhere, as an installed package, though this variant's tree has it, or it was installed from a folder of the
        repository that differs between the variants.
        """
        for name, module in [*sys.modules.items()]:
            file, top = Path(getattr(module, "__file__", None) or "/").resolve(), name.partition(".")[0]
            if top in SUITE or file.is_relative_to(self._tree):
                continue
            if file.is_relative_to(self._repository):
                folders = in_trees(self._tree, file.relative_to(self._repository).parent)
                if any(any(it.glob("*")) for it in folders):  # a submodule's is empty
                    raise UsageError(
                        f"{name} is imported from {file}, which is the same for every revision: "
                        f"add the folder that holds {top} to PYTHONPATH"
                    )
            is_namespace = getattr(sys.modules.get(top), "__file__", None) is None
            if (
                top not in self._given
                and (name == top or is_namespace)
                and file.name
                and self._stands_for_own(name, file)
            ):
                how = "uninstall it, or install it by `pip install -e`"
                if file.suffix != ".py":
                    how = "load it by torch.utils.cpp_extension.load, or compare two environments (--base-python)"
                raise UsageError(
                    f"{name} is imported from {file}, not from your repository, so it is the same for every revision: {how}"
                )
        self._refuse_files()

    def _stands_for_own(self, name: str, file: Path) -> bool:
        """Whether the file of a module is used instead of one in this variant's tree, or was installed from a folder of the
        repository that differs between the variants.
        """
        own = (Path(place, *name.split(".")) for place in (self._folder, self._tree, self._tree / "src"))
        if any(it.with_suffix(".py").exists() or (it / "__init__.py").exists() for it in own):
            return True
        source = installed_from(self._repository).get(file)
        return source is not None and differ(in_trees(self._tree, source))

    def _refuse_files(self) -> None:
        """Raise `UsageError` if a file of the working tree was read that some variant's tree has, too; or if a library in it
        was loaded, unless it belongs to an installed package or to a cache.
        """
        libraries, known = loaded_libraries(), (self._tree, *(CHECKOUT / it for it in SUITE))
        for file in map(Path, sorted({*self._opened, *libraries})):
            if not file.is_relative_to(self._repository) or any(map(file.is_relative_to, known)):
                continue
            below = file.relative_to(self._repository)
            if any((it / below).is_file() for it in self._tree.parent.iterdir()) or (
                str(file) in libraries and not is_provided(file, self._repository)
            ):
                raise UsageError(
                    f"{file} is read, which is the same for every revision: build its path from `__file__`, or build a "
                    "library by torch.utils.cpp_extension.load"
                )


def search(repository: Path, tree: Path, folder: str) -> None:
    """Import the user's modules from a tree of their repository, even if it has an editable installation."""

    def moved(place: str) -> str:
        there = Path(place).resolve()
        if not there.is_relative_to(repository) or not in_trees(tree, below := there.relative_to(repository)):
            return place
        return str(tree / below)

    suite, *others = sys.path
    sys.path[:] = [*map(moved, [*others, folder, str(tree)]), suite]


def opened(repository: Path) -> set[str]:
    """Return a set to which every file of the repository is added that this process opens in Python to read it; for bytecode
    its source.
    """
    found = set[str]()

    def note(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[0], str | bytes) and not arguments[2] & (os.O_WRONLY | os.O_RDWR):
            file = os.path.realpath(os.fsdecode(arguments[0]))
            if file.startswith(f"{repository}{os.sep}"):
                with suppress(ValueError):  # it has no bytecode
                    file = source_from_cache(file)
                found.add(file)

    sys.addaudithook(note)
    return found


def in_trees(tree: Path, below: Path) -> list[Path]:
    """Return the folder `below` in the trees of both variants, which lie beside each other, where it exists."""
    return [folder for it in tree.parent.iterdir() if (folder := it / below).is_dir()]

"""Imports a recipe's own modules, and copies them into the run's folder, so that the folder alone is enough."""

from contextlib import contextmanager
import hashlib
import importlib
import importlib.util
from pathlib import Path
import sys
import sysconfig
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple
import warnings

from mxkit.core.arrays import switches, switches_here
from mxkit.core.system import file_digest, write_atomically
from mxkit.errors import RecipeError, nearest
from mxnet.util import is_np_array, set_np

# Folder of the copies inside the folder of a run.
CODE = "code"

# SHA-256 of the file of each imported module, by name and file: the file may change while Python runs.
_IMPORTED: Dict[Tuple[str, Path], str] = {}
_PYTHON_FOLDERS = {Path(sysconfig.get_paths()[key]).resolve() for key in ("stdlib", "platstdlib", "purelib", "platlib")}
# Modules of `imports` that call `npx.set_np()` when Python loads them.
_NUMPY: Set[str] = set()
# In a checkout they may be beside a recipe.
_NEVER_COPIED = {"mxkit", "mxnet", "gluoncv"}


class RunCode(NamedTuple):
    """The modules of a run, as `net.json` lists them.

    Attributes:
        imports: SHA-256 of the file of each module in the recipe's `imports`; "" for a module without a file.
        files: SHA-256 of each copied file, by its path in `code/`.
    """

    imports: Dict[str, str]
    files: Dict[str, str]


@contextmanager
def switched(arrays: Any) -> Iterator[None]:
    """Set MXNet's switches for a recipe's `arrays`; they are restored even if a user's code changes them."""
    before = switches_here()
    try:
        with switches(arrays == "np"):
            yield
    finally:
        if switches_here() != before:  # a user's code called npx.set_np() or npx.reset_np()
            set_np(*before)


def import_modules(names: Sequence[Optional[str]], import_path: Any, arrays: Any) -> List[Tuple[str, str]]:
    """Import the modules of `imports` from the recipe's folder or Python's path.

    Args:
        names: Names of the modules; None for a value that is no name.
        import_path: The recipe's folder, or None.
        arrays: The recipe's kind of arrays.

    Returns:
        Path in the recipe and message of each module that cannot be imported, or has another kind of arrays.
    """
    folder = str(Path(import_path)) if isinstance(import_path, str) else str(Path.cwd())
    sys.path.insert(0, folder)
    problems = []
    try:
        for number, name in enumerate(names):
            with switched(arrays):
                text = "" if name is None else _import(name, folder)
                if name is not None and is_np_array() and arrays == "nd":
                    _NUMPY.add(name)
            if text:
                problems.append((f"imports.{number}", text))
    finally:
        sys.path.remove(folder)
    numpy = [name for name in names if name in _NUMPY and arrays == "nd"]
    if numpy:
        text = f"the module {numpy[0]!r} calls npx.set_np(), its code is of mx.np; received 'nd'; expected np"
        problems.append(("arrays", text))
    return problems


def _import(name: str, folder: str) -> str:
    """Import a module; return a message if it cannot be imported. Errors of the module's own code are raised."""
    loaded = sys.modules.get(name)
    importlib.invalidate_caches()
    try:
        spec = importlib.util.find_spec(name) if loaded is None else importlib.machinery.PathFinder.find_spec(name)
    except ModuleNotFoundError:  # the package of a dotted name is missing
        spec = None
    if loaded is not None:
        origin = getattr(loaded, "__file__", None)
        if spec is None or not spec.origin or not origin or Path(spec.origin).resolve() == Path(origin).resolve():
            return ""
        if _loaded_digest(name) == file_digest(Path(spec.origin)):
            return ""
        return f"a module {name!r} was imported before from {origin}; rename this one, {spec.origin}"
    if spec is None:
        hint = nearest(name, [path.stem for path in Path(folder).glob("*.py")])
        return f"there is no module {name!r} in {folder} or on Python's path{'; ' + hint if hint else ''}"
    before = set(sys.modules)
    try:
        importlib.import_module(name)
    except SystemExit:
        way = 'remove the call, or move it below `if __name__ == "__main__":`'
        return f"the module {name!r} calls sys.exit() when it is imported: {way}"
    for new in set(sys.modules) - before:
        file = _file_of(new)
        if file is not None and not _is_installed(file):
            _IMPORTED[new, file] = file_digest(file)
    return ""


def keep_code(folder: Path, imports: Sequence[str]) -> RunCode:
    """Copy the modules of a recipe into a run's folder, with the loaded modules of the same folder.

    Args:
        folder: Folder of the run.
        imports: Names of loaded modules.

    Returns:
        The hashes of the modules and of the copies. Installed packages and compiled modules are not copied.

    Side effects:
        Writes `folder/code/`.

    Warns:
        UserWarning: A file was changed after Python had loaded it.
    """
    files = {name: _file_of(name) for name in imports}
    own = {name: file for name, file in files.items() if file and file.suffix == ".py" and not _is_installed(file)}
    roots = {file.parents[len(name.split(".")) - (file.name != "__init__.py")] for name, file in own.items()}
    copied = {}
    for inside, file in sorted(_loaded_below(roots).items()):
        content = file.read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        copy = folder / CODE / inside
        loaded = _IMPORTED.get((_name_of(inside), file), digest)
        if loaded != digest:
            if copy.is_file() and file_digest(copy) == loaded:
                copied[inside] = loaded
                continue
            warnings.warn(
                f"imports: {file} was changed after Python had loaded it: the run uses the loaded code, and its folder "
                "gets the changed file. Start Python again",
                stacklevel=2,
            )
        if copy.resolve() != file.resolve():
            copy.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(copy, content)
        copied[inside] = digest
    return RunCode({name: "" if file is None else file_digest(file) for name, file in files.items()}, copied)


def _loaded_below(roots: Set[Path]) -> Dict[str, Path]:
    """Files of the modules that Python has loaded from below folders, by their paths there."""
    found = {}
    for name in list(sys.modules) if roots else ():
        file, top = _file_of(name), name.split(".")[0]
        if file is None or file.suffix != ".py" or top in _NEVER_COPIED or _is_installed(file):
            continue
        for root in roots.intersection(file.parents):
            inside = file.relative_to(root).as_posix()
            if _name_of(inside) == name:
                found[inside] = file
    return found


def check_code(folder: Path, code: RunCode) -> None:
    """Refuse copies that differ from the code of the training, before any line of them runs.

    Raises:
        RecipeError: A copy is missing or was changed, or Python has loaded another module of the same name.
    """
    for inside, expected in code.files.items():
        file = folder / CODE / inside
        if Path(inside).is_absolute() or ".." in Path(inside).parts:
            raise RecipeError(f"{folder / 'net.json'}: expected paths inside of {CODE}; received {inside!r}")
        if not file.is_file() or file.is_symlink():
            raise RecipeError(f"{file} is missing: the run's recipe imports it. Copy the whole folder of the run")
        if file_digest(file) != expected:
            raise RecipeError(
                f"{file} was changed since the run was trained: its SHA-256 is not that of net.json. Nothing of it "
                "was run; copy the folder of the run again"
            )
        name = _name_of(inside)
        if name in sys.modules and _loaded_digest(name) not in (expected, ""):
            raise RecipeError(
                f"Python has loaded another module {name!r} ({sys.modules[name].__file__}) than the run was trained "
                f"with ({file}). Use this run in a process of its own"
            )


def warn_of_changes(code: RunCode, import_path: Optional[str], used: str) -> None:
    """Warn of modules that were changed after the training.

    Args:
        code: Modules of the run.
        import_path: Folder in which the recipe looks for the originals.
        used: End of the message: which code is used.

    Warns:
        UserWarning: An original or an installed package was changed.
    """
    for name in code.files:
        file = _original(name, import_path)
        if file is not None and file_digest(file) != code.files[name]:
            warnings.warn(f"imports: {file} was changed since the run was trained; {used}", stacklevel=2)
    for name, expected in code.imports.items():
        loaded = _file_of(name)
        if loaded is not None and expected and _is_installed(loaded) and file_digest(loaded) != expected:
            text = f"imports: the installed {name!r} ({loaded}) is not the one that the run was trained with"
            warnings.warn(text, stacklevel=2)


def has_originals(code: RunCode, import_path: Optional[str]) -> bool:
    """Whether the originals of all copies are still where the recipe looks for them."""
    return all(_original(inside, import_path) is not None for inside in code.files)


@contextmanager
def no_bytecode() -> Iterator[None]:
    """Import without writing `__pycache__` into the run's folder."""
    before = sys.dont_write_bytecode
    sys.dont_write_bytecode = True
    try:
        yield
    finally:
        sys.dont_write_bytecode = before


def _original(inside: str, import_path: Optional[str]) -> Optional[Path]:
    files = (Path(root or ".") / inside for root in [import_path, *sys.path])
    return next((file for file in files if file.is_file()), None)


def _name_of(inside: str) -> str:
    parts = list(Path(inside).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _file_of(name: str) -> Optional[Path]:
    file = getattr(sys.modules.get(name), "__file__", None)
    return Path(file) if file and Path(file).is_file() else None


def _loaded_digest(name: str) -> str:
    file = _file_of(name)
    return "" if file is None else _IMPORTED.get((name, file)) or file_digest(file)


def _is_installed(file: Path) -> bool:
    folders = {"site-packages", "dist-packages"}
    return not (folders.isdisjoint(file.parts) and _PYTHON_FOLDERS.isdisjoint(file.resolve().parents))

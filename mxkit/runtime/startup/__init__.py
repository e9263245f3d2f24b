"""Makes MXNet work in programs that do not import mxkit: in one program, or in all programs of an environment."""

from contextlib import suppress
import os
from pathlib import Path
import subprocess
import sys
import sysconfig
from typing import Any, Dict, Iterable, Iterator, List, Sequence

from mxkit.errors import MXNetImportError
from mxkit.runtime.wheels import release

_STARTUP = Path(__file__).resolve().parent
_WAITING = _STARTUP / "waiting.py"
# NumPy 1.24 removed them; from 1.20 on NumPy's `__getattr__` returns them with a warning.
_OLD_NAMES = ("float", "int", "object", "complex", "str", "bool")


def enabling_file() -> Path:
    """The `.pth` file of this environment that Python runs when it starts; it exists while mxkit is enabled."""
    return Path(sysconfig.get_path("purelib"), "mxkit-enabled.pth")


def enabling_text() -> str:
    """The content of `enabling_file`: one line, because Python runs the lines that begin with `import`."""
    code = _WAITING.read_text(encoding="utf-8") + "\nwait()\n"
    return f"import sys; exec({code!r}, {{'__name__': 'mxkit.runtime.startup.waiting'}})\n"


def enable(system: bool = False) -> Path:
    """Let every program of this environment import MXNet as if it had imported mxkit before.

    Args:
        system: Allow a Python outside a virtual environment.

    Returns:
        The new file.

    Raises:
        MXNetImportError: This Python is in no virtual environment, or another tool restores NumPy's old names.
    """
    path = enabling_file()
    if not (system or sys.prefix != sys.base_prefix or Path(sys.prefix, "conda-meta").is_dir()):
        raise MXNetImportError(
            f"{sys.executable} is in no virtual environment: mxkit enable would change every program that it runs. "
            "Make an environment (python3 -m venv .venv) and use its mxkit, or run one program with mxkit run. In a "
            "container, --system enables it for this Python"
        )
    with suppress(ImportError):  # the doctor reports it
        __import__("numpy")
    refuse_other_patches()
    # Programs that start in the meantime must not read half a line.
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        unfinished.write_text(enabling_text(), encoding="utf-8")
        unfinished.replace(path)
    finally:
        with suppress(FileNotFoundError):
            unfinished.unlink()
    return path


def disable() -> bool:
    """Remove the file of `enable`; return whether it existed."""
    try:
        enabling_file().unlink()
    except FileNotFoundError:
        return False
    return True


def refuse_other_patches() -> None:
    """Refuse an environment in which another tool changes MXNet's or NumPy's names while Python starts.

    Raises:
        MXNetImportError: The text names the file of the other tool.
    """
    numpy = sys.modules.get("numpy")
    names = _patched(vars(numpy)) if numpy and release(numpy.__version__) >= (1, 20) else []
    if names:
        what = f"sets numpy.{' and numpy.'.join(names)} in every program, for all libraries"
        what += ": mxkit gives MXNet these names itself, and no library sees them"
    elif "mxnet" in sys.modules:
        what = "imports MXNet in every program, before mxkit can repair it"
    else:
        return
    files = list(map(str, _startup_files())) or ["what this Python runs while it starts"]
    who = f"one of {', '.join(files)}" if len(files) > 1 else files[0]
    raise MXNetImportError(f"{who} {what}. Remove that patch, then repeat the command")


def _patched(names: Dict[str, Any]) -> List[str]:
    """Those of NumPy's names that NumPy removed and something else has set again."""
    removed = [*_OLD_NAMES, *names.get("__expired_attributes__", ())]  # NumPy 2 lists what it removed
    # NumPy 2 has a `bool` of its own.
    return [name for name in removed if name in names and (name != "bool" or names[name] is bool)]


def _startup_files() -> List[Path]:
    """Files with code that Python runs while it starts: those that mention NumPy or MXNet; if none does, all."""
    modules = (sys.modules.get(name) for name in ("sitecustomize", "usercustomize"))
    files = [Path(module.__file__) for module in modules if module and module.__file__]
    files += [path for entry in sys.path for path in sorted(Path(entry).glob("*.pth")) if path != enabling_file()]
    texts = {path: path.read_text(encoding="utf-8", errors="replace") for path in files if path.parent != _STARTUP}
    running = [path for path, text in texts.items() if path.suffix == ".py" or "\nimport " in f"\n{text}"]
    return [path for path in running if "numpy" in texts[path] or "mxnet" in texts[path]] or running


def python_command(arguments: Sequence[str]) -> List[str]:
    """The command line that runs this Python, with its own options, with more arguments.

    Args:
        arguments: Arguments of `python`: its options, then a script, `-m` or `-c`, then the arguments of these.

    Raises:
        MXNetImportError: With an option, Python ignores PYTHONPATH or its packages.
    """
    options: List[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    refused = next((letter for letter in _letters([*options, *arguments]) if letter in "IES"), "")
    if refused:
        raise MXNetImportError(
            f"python -{refused} ignores PYTHONPATH, which mxkit run needs. Leave the option out, or use mxkit enable "
            "and Python itself, which work with -I and -E"
        )
    return [sys.executable, *options, *arguments]


def _letters(arguments: Iterable[str]) -> Iterator[str]:
    """The letters of Python's own options, up to the script, `-m` or `-c`."""
    rest = iter(arguments)
    for argument in rest:
        if argument.startswith("--"):
            next(rest, None)
        elif argument.startswith("-") and argument != "-":
            for place, letter in enumerate(argument[1:], start=2):
                yield letter
                if letter in "cm":
                    return
                if letter in "WX":
                    if place == len(argument):
                        next(rest, None)
                    break
        else:
            return


def variables(old_numpy: bool = False) -> Dict[str, str]:
    """Environment variables with which this environment's Python, and each Python that it starts, gets mxkit.

    Args:
        old_numpy: The modules of the script, and others that import MXNet, get the names that NumPy removed.
    """
    before = os.environ.get("PYTHONPATH")
    entries = [entry for entry in before.split(os.pathsep) if entry != str(_STARTUP)] if before else []
    own = {"MXKIT_RUN": os.path.realpath(sys.prefix), "PYTHONPATH": os.pathsep.join([str(_STARTUP), *entries])}
    return {**own, "MXKIT_OLD_NUMPY": "1"} if old_numpy else own

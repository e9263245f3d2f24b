"""Decides which MXNet fits this machine and Python, and lists and runs the pip commands; `mxkit install` uses it."""

from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
import shlex
import subprocess
import sys
from typing import List, NamedTuple, Optional, Sequence, Tuple

from mxkit.errors import MXNetImportError
from mxkit.runtime.cuda_libraries import requirements
from mxkit.runtime.doctor.probes import probe
from mxkit.runtime.gpus import ARCHITECTURES, Driver, read_driver, runs_on
from mxkit.runtime.wheels import RELEASE, Wheel, foreign_name, installed_wheels, package_spec, release, wheel_problem

_WHEELS = {"cpu": "mxnet", "cuda": "mxnet-cu112"}

# MXNet's own requirements, which pip ignores with --no-deps.
_NEEDS = ("numpy", "requests", "graphviz")


class Machine(NamedTuple):
    """The facts that decide which wheel fits.

    Attributes:
        wheels: The installed ones that own the package `mxnet`.
        damaged: Whether the installed wheel lacks its library or its package.
        missing: Those of MXNet's requirements that are not installed.
        driver: The NVIDIA driver and its GPUs.
    """

    wheels: Tuple[Wheel, ...]
    damaged: bool
    missing: Tuple[str, ...]
    driver: Driver


class Command(NamedTuple):
    """The arguments of a pip command, and why it is needed."""

    arguments: Tuple[str, ...]
    reason: str


class Plan(NamedTuple):
    """The commands that install a wheel.

    Attributes:
        wheel: The requirement that will be met, like `mxnet==1.9.1`.
        reason: Why this wheel.
        commands: In the order in which they must run; empty if the wheel is installed already.
    """

    wheel: str
    reason: str
    commands: Tuple[Command, ...]


def look() -> Machine:
    """Collect the facts about this machine and this Python, without importing MXNet or NumPy.

    Raises:
        MXNetImportError: A file called `mxnet.py` hides MXNet, which no wheel repairs.
    """
    spec, problem = package_spec(), wheel_problem()
    if problem and spec is not None and spec.origin and spec.submodule_search_locations is None:
        raise MXNetImportError(problem)
    installed = installed_wheels()
    # Wheels in other folders of the path are hidden, and do no harm.
    wheels = tuple(wheel for wheel in installed if wheel.folder == installed[0].folder)
    return Machine(
        wheels=wheels,
        damaged=len(wheels) == 1 and problem is not None,
        missing=tuple(name for name in _NEEDS if find_spec(name) is None),
        driver=read_driver(),
    )


def plan(machine: Machine, kind: Optional[str] = None) -> Plan:
    """Decide which wheel fits, and list the commands after which it is the only one installed. Nothing is run.

    Args:
        machine: The facts of `look`.
        kind: "cpu" or "cuda" selects that wheel. None decides by the GPUs, and keeps an installed CUDA wheel, since
            it computes on the CPU too.

    Returns:
        The plan.

    >>> wheel = Wheel("mxnet", "1.9.1", None)
    >>> here = Machine((), False, (), Driver(problem="no NVIDIA driver: ..."))
    >>> for command in plan(here).commands:
    ...     print(*command.arguments)
    install --no-deps mxnet==1.9.1
    >>> plan(here._replace(wheels=(wheel,))).commands
    ()
    """
    usual, reason = _choose(machine)
    chosen = kind or usual
    if chosen != usual:
        reason = f"as asked for; {_WHEELS[usual]} fits this machine: {reason}"
    # Apache MXNet's of this release, or a rebuild with a suffix behind the version
    current = [wheel for wheel in machine.wheels if release(wheel.version) == release(RELEASE)]
    fitting = [wheel.name for wheel in current if _kind(wheel) == chosen and not foreign_name(wheel.name)]
    keep = bool(fitting) and len(machine.wheels) == 1
    name = fitting[0] if keep else _WHEELS[chosen]
    wheel = f"{name}=={RELEASE}"
    commands = (
        *(_libraries(name) if chosen == "cuda" else []),
        *([] if keep else _removals(machine)),
        *_installations(machine, wheel, keep),
    )
    return Plan(wheel, reason, commands)


def wheel_kind(name: str) -> str:
    """The kind of wheel that a name means, for `plan`.

    Raises:
        MXNetImportError: It is none that mxkit installs, or is not Apache MXNet's.

    >>> wheel_kind("mxnet-cu112")
    'cuda'
    """
    kinds = {wheel: kind for kind, wheel in _WHEELS.items()}
    if name in kinds:
        return kinds[name]
    known = f"{name}: mxkit installs {' or '.join(_WHEELS.values())}; pip installs other wheels of Apache MXNet"
    raise MXNetImportError(foreign_name(name) or known)


def describe(plan: Plan) -> str:
    """A plan as text: the wheel and the commands, each with its reason."""
    lines = [f"{plan.wheel}: {plan.reason}"]
    if not plan.commands:
        return "\n".join([*lines, "it is installed; there is nothing to run"])
    if not has_pip():
        lines.append("this Python has no pip: type these, for which uv is needed")
    for command in plan.commands:
        lines += [f"    # {command.reason}", f"    {command_line(command)}"]
    return "\n".join(lines)


def verify() -> str:
    """Import MXNet in another process, and describe the result.

    Raises:
        MXNetImportError: It does not import.
    """
    mxnet = probe(["mxnet"]).answers["mxnet"]
    if mxnet["error"]:
        raise MXNetImportError(f"MXNet is installed, but does not import: {mxnet['error']}: {mxnet['text']}")
    gpus = mxnet.get("gpus", 0)
    return f"MXNet {mxnet['version']} imports and computes; it sees {gpus} GPU{'' if gpus == 1 else 's'}"


def command_line(command: Command) -> str:
    """A command as the user types it: with this Python's pip or, if it has none, with uv."""
    return " ".join(shlex.quote(word) for word in _words(command))


def has_pip() -> bool:
    """Whether this Python has pip; virtual environments that uv makes have none."""
    return find_spec("pip") is not None


def run(commands: Sequence[Command]) -> None:
    """Run pip commands one after another, with their output shown.

    Raises:
        MXNetImportError: A command failed. The text lists the commands not run.

    Side effects:
        Packages of this Python are removed and installed.
    """
    for number, command in enumerate(commands):
        code = subprocess.run(_words(command)).returncode
        if code:
            left = "\n".join(f"    {command_line(remaining)}" for remaining in commands[number:])
            raise MXNetImportError(f"pip ended with exit code {code}. What is left to run:\n{left}")


def _words(command: Command) -> List[str]:
    if has_pip():
        return [sys.executable, "-m", "pip", *command.arguments]
    first, *rest = (word for word in command.arguments if word != "-y")  # uv never prompts
    return ["uv", "pip", first, "--python", sys.executable, *rest]


def _choose(machine: Machine) -> Tuple[str, str]:
    driver = machine.driver
    usable = [gpu for gpu in driver.gpus if runs_on(gpu.capability)]
    if usable and not driver.problem:
        return "cuda", f"it has kernels for {usable[0]}"
    gpus = ", ".join(map(str, driver.gpus))
    reason = driver.problem.split(". ")[0] or f"mxnet-cu112 is compiled for {ARCHITECTURES}, and here is {gpus}"
    if not machine.damaged and [_kind(wheel) for wheel in machine.wheels] == ["cuda"]:
        return "cuda", f"it is there and computes on the CPU too ({reason}); --cpu takes the smaller one"
    return "cpu", reason


def _kind(wheel: Wheel) -> str:
    return "cuda" if wheel.name.startswith("mxnet-cu") else "cpu"


def _libraries(mxnet: str) -> List[Command]:
    absent = [wheel for wheel in requirements(mxnet) if not _has(wheel)]
    # The largest downloads come first: if they fail, the MXNet that is installed still works.
    reason = "NVIDIA's CUDA 11 libraries, which the wheel does not hold: up to 2 GB"
    return [Command(("install", *absent), reason)] if absent else []


def _has(requirement: str) -> bool:
    name, _, wanted = requirement.partition("==")
    return _version(name) == wanted


def _version(distribution: str) -> str:
    try:
        return version(distribution) or ""
    except PackageNotFoundError:
        return ""


def _removals(machine: Machine) -> List[Command]:
    names = tuple(dict.fromkeys(wheel.name for wheel in machine.wheels))
    several = "all of them own the folder mxnet, and have overwritten each other's files"
    reason = several if len(names) > 1 else "both would own the folder mxnet"
    return [Command(("uninstall", "-y", *names), reason)] if names else []


def _installations(machine: Machine, wheel: str, keep: bool) -> List[Command]:
    if keep and not machine.damaged:
        return []
    commands = [Command(("install", *machine.missing), "what MXNet needs")] if machine.missing else []
    if keep:
        return [*commands, Command(("install", "--force-reinstall", "--no-deps", wheel), "its files are damaged")]
    reason = "MXNet; --no-deps, because its metadata asks for numpy<2; mxkit repairs what newer ones change"
    return [*commands, Command(("install", "--no-deps", wheel), reason)]

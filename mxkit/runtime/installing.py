"""Which MXNet fits this machine and Python, and what pip has to do for it; `mxkit install` shows and runs it."""

from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
import platform
import shlex
import subprocess
import sys
import sysconfig
from typing import List, NamedTuple, Optional, Sequence, Tuple

from mxkit.errors import MXNetImportError
from mxkit.runtime.architectures import CU112, runs_on
from mxkit.runtime.cuda_libraries import requirements
from mxkit.runtime.doctor.probes import probe
from mxkit.runtime.driver import Driver, read_driver
from mxkit.runtime.wheels import RELEASE, Wheel, installed_wheels, package_spec, wheel_problem

_WHEELS = {"cpu": "mxnet", "cuda": "mxnet-cu112"}

# What the package registry has of 1.9.1.
_PLATFORMS = {
    "cpu": (("Linux", "x86_64"), ("Linux", "aarch64"), ("Darwin", "x86_64")),
    "cuda": (("Linux", "x86_64"),),
}

# MXNet's own needs, which pip does not look at with --no-deps.
_NEEDS = ("numpy", "requests", "graphviz")


class Machine(NamedTuple):
    """What decides about the wheel.

    Attributes:
        python: Like (3, 11).
        system: Like ("Linux", "x86_64").
        wheels: The installed ones that own the package `mxnet`.
        damaged: Whether what is installed lacks its library or its package.
        numpy: Its version; empty where it is not installed.
        missing: Those of MXNet's needs that are not there.
        driver: The NVIDIA driver and its GPUs.
    """

    python: Tuple[int, int]
    system: Tuple[str, str]
    wheels: Tuple[Wheel, ...]
    damaged: bool
    numpy: str
    missing: Tuple[str, ...]
    driver: Driver


class Command(NamedTuple):
    """A pip command, without what stands before `pip`'s own word, and why it is needed."""

    arguments: Tuple[str, ...]
    reason: str


class Plan(NamedTuple):
    """What to run, in this order.

    Attributes:
        wheel: The requirement that will be met, like `mxnet==1.9.1`.
        reason: Why this wheel.
        commands: Empty where it is there already.
        notes: What to know besides.
    """

    wheel: str
    reason: str
    commands: Tuple[Command, ...]
    notes: Tuple[str, ...] = ()


def look() -> Machine:
    """Look at this machine and this Python, without importing MXNet or NumPy.

    Raises:
        MXNetImportError: A file called `mxnet.py` is in the way, which no wheel mends.
    """
    spec, problem = package_spec(), wheel_problem()
    if problem and spec is not None and spec.origin and spec.submodule_search_locations is None:
        raise MXNetImportError(problem)
    found = installed_wheels()
    # Those of other folders on the path are hidden, and do no harm.
    wheels = tuple(wheel for wheel in found if wheel.folder == found[0].folder)
    try:
        numpy = version("numpy") or ""
    except PackageNotFoundError:
        numpy = ""
    return Machine(
        python=(sys.version_info[0], sys.version_info[1]),
        system=(platform.system(), platform.machine()),
        wheels=wheels,
        damaged=len(wheels) == 1 and problem is not None,
        numpy=numpy,
        missing=tuple(name for name in _NEEDS if find_spec(name) is None),
        driver=read_driver(),
    )


def plan(machine: Machine, kind: Optional[str] = None) -> Plan:
    """Decide which wheel fits, and what has to be run to have it and no other.

    Args:
        machine: As `look` gives it.
        kind: "cpu" or "cuda" takes that wheel; None decides by the GPUs, and leaves a CUDA wheel that is there, since
            it computes on the CPU too.

    Returns:
        The plan. Nothing is run.

    Raises:
        MXNetImportError: There is no such wheel for this system.

    >>> wheel = Wheel("mxnet", "1.9.1", Path("site-packages"))
    >>> here = Machine((3, 13), ("Linux", "x86_64"), (), False, "2.3.0", (), Driver(problem="no NVIDIA driver: ..."))
    >>> for command in plan(here).commands:
    ...     print(*command.arguments)
    install --no-deps mxnet==1.9.1
    >>> plan(here._replace(wheels=(wheel,))).commands
    ()
    """
    chosen, reason = (kind, "as asked for") if kind else _choose(machine)
    if machine.system not in _PLATFORMS[chosen]:
        known = " and ".join(" ".join(one) for one in _PLATFORMS[chosen])
        raise MXNetImportError(
            f"there is no wheel of {_WHEELS[chosen]} {RELEASE} for {' '.join(machine.system)}, only for {known}. "
            "Build MXNet from source, or use a container of such a system"
        )
    keep = _kept(machine, chosen)
    wheel = f"{keep or _WHEELS[chosen]}=={RELEASE}"
    commands = [
        *(_libraries(keep or _WHEELS[chosen]) if chosen == "cuda" else []),
        *_removed(machine, keep),
        *_installed(machine, wheel, keep),
    ]
    return Plan(wheel, reason, tuple(commands), _notes(machine, chosen))


def describe(plan: Plan) -> str:
    """A plan as text: the wheel and why, each command and why, what to know."""
    lines = [f"{plan.wheel}: {plan.reason}", *(f"note: {note}" for note in plan.notes)]
    if not plan.commands:
        return "\n".join([*lines, "it is installed; there is nothing to run"])
    if not has_pip():
        lines.append("this Python has no pip: type these, for which uv is needed")
    for command in plan.commands:
        lines += [f"    # {command.reason}", f"    {command_line(command)}"]
    return "\n".join(lines)


def verify() -> str:
    """Import MXNet in another process, and say what came of it.

    Raises:
        MXNetImportError: It does not import.
    """
    mxnet = probe(["mxnet"]).answers["mxnet"]
    if mxnet["error"]:
        raise MXNetImportError(f"MXNet is installed, but does not import: {mxnet['error']}: {mxnet['text']}")
    gpus = mxnet.get("gpus", 0)
    return f"MXNet {mxnet['version']} imports and computes; it sees {gpus} GPU{'' if gpus == 1 else 's'}"


def command_line(command: Command) -> str:
    """A command as it is typed: with this Python's pip or, where there is none, with uv."""
    return " ".join(shlex.quote(word) for word in _words(command))


def has_pip() -> bool:
    """Whether this Python has pip; virtual environments that uv makes have none."""
    return find_spec("pip") is not None


def run(commands: Sequence[Command]) -> None:
    """Run pip, one command after the other; what it writes is shown.

    Raises:
        MXNetImportError: A command failed, or this Python must not be changed by pip. The text says what is left.

    Side effects:
        Packages of this Python are removed and installed.
    """
    marker = Path(sysconfig.get_path("stdlib"), "EXTERNALLY-MANAGED")
    if marker.is_file() and sys.prefix == sys.base_prefix:
        raise MXNetImportError(
            f"{sys.executable} belongs to the system, which does not let pip change it ({marker}). Make a virtual "
            "environment, install mxkit in it and run its `mxkit install`: python3 -m venv .venv"
        )
    for number, command in enumerate(commands):
        code = subprocess.run(_words(command)).returncode
        if code:
            left = "\n".join(f"    {command_line(one)}" for one in commands[number:])
            raise MXNetImportError(f"pip ended with exit code {code}. What is left to run:\n{left}")


def _words(command: Command) -> List[str]:
    if has_pip():
        return [sys.executable, "-m", "pip", *command.arguments]
    first, *rest = (word for word in command.arguments if word != "-y")  # uv does not ask
    return ["uv", "pip", first, "--python", sys.executable, *rest]


def _choose(machine: Machine) -> Tuple[str, str]:
    driver = machine.driver
    usable = [gpu for gpu in driver.gpus if runs_on(CU112, gpu.capability)]
    if driver.problem:
        kind, reason = "cpu", driver.problem.split(". ")[0]
    elif usable:
        kind, reason = "cuda", f"it has kernels for {usable[0]}"
    else:
        seen = ", ".join(map(str, driver.gpus))
        kind, reason = "cpu", f"mxnet-cu112 is compiled for {CU112}, and here is {seen}"
    if kind == "cpu" and not machine.damaged and [_kind(wheel) for wheel in machine.wheels] == ["cuda"]:
        return "cuda", f"it is there and computes on the CPU too ({reason}); --cpu takes the smaller one"
    return kind, reason


def _kind(wheel: Wheel) -> str:
    return "cuda" if wheel.name.startswith("mxnet-cu") else "cpu"


def _kept(machine: Machine, kind: str) -> str:
    """The one wheel that is there, where it is of this kind and the right release; not where there are two."""
    fitting = [wheel.name for wheel in machine.wheels if _kind(wheel) == kind and wheel.version == RELEASE]
    return fitting[0] if fitting and len(machine.wheels) == 1 else ""


def _libraries(mxnet: str) -> List[Command]:
    absent = [one for one in requirements(mxnet) if not _has(one)]
    if not absent:
        return []
    # The largest downloads come first: where they fail, the MXNet that is there still works.
    return [Command(("install", *absent), "NVIDIA's CUDA 11 libraries, which the wheel does not hold: up to 2 GB")]


def _has(requirement: str) -> bool:
    name, _, wanted = requirement.partition("==")
    try:
        return version(name) == wanted
    except PackageNotFoundError:
        return False


def _removed(machine: Machine, keep: str) -> List[Command]:
    if not machine.wheels or keep:
        return []
    names = tuple(dict.fromkeys(wheel.name for wheel in machine.wheels))
    two = "all of them own the folder mxnet, and have overwritten each other's files"
    return [Command(("uninstall", "-y", *names), two if len(names) > 1 else "both would own the folder mxnet")]


def _installed(machine: Machine, wheel: str, keep: str) -> List[Command]:
    if keep and not machine.damaged:
        return []
    again = ("--force-reinstall",) if keep else ()
    new_numpy = machine.numpy.partition(".")[0].isdigit() and int(machine.numpy.partition(".")[0]) >= 2
    if not (again or new_numpy or machine.python >= (3, 13)):
        return [Command(("install", wheel), "MXNet, with what it needs")]
    found = f"NumPy {machine.numpy}" if new_numpy else f"Python {machine.python[0]}.{machine.python[1]}"
    why = f"MXNet; its metadata asks for numpy<2, which {found} is past; mxkit mends what that changes"
    commands = [Command(("install", *again, "--no-deps", wheel), "its files are damaged" if again else why)]
    if machine.missing:
        commands.insert(0, Command(("install", *machine.missing), "what MXNet needs, since --no-deps leaves it out"))
    return commands


def _notes(machine: Machine, kind: str) -> Tuple[str, ...]:
    if kind == "cuda" and machine.driver.problem:
        return (f"{machine.driver.problem}. Until then this wheel computes on the CPU, as the smaller one does",)
    unusable = [gpu for gpu in machine.driver.gpus if not runs_on(CU112, gpu.capability)]
    if kind == "cuda" and unusable and len(unusable) == len(machine.driver.gpus):
        return (f"it is compiled for {CU112}: nothing of it runs on {unusable[0]}, only on the CPU",)
    return ()

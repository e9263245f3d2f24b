"""The environment of a run, written to `environment.json` in its folder."""

from contextlib import suppress
import datetime
from importlib.metadata import distributions
import json
import os
from pathlib import Path
import platform
import subprocess
from typing import Any, Dict, List, Optional, Sequence

from mxkit.core.device import is_gpu
from mxkit.core.system import write_atomically
from mxkit.distributed.group import size
from mxkit.distributed.schedulers import LAUNCHED, SECRET
from mxkit.runtime.driver import read_driver
from mxkit.runtime.engine_threads import in_force
from mxkit.runtime.exact import gpu_facts, switches, warn_if_late
from mxkit.runtime.machine import processor_model, read_memory, read_processors
from mxkit.version import __version__
import mxnet as mx
import numpy as np

FILE = "environment.json"
WORKERS = "workers.json"
_PACKAGES = ("gluoncv", "opencv-python", "scikit-learn", "pillow")
_VARIABLES = ("MXNET_", "MXKIT_", "OMP_", "KMP_", "DNNL_", "CUDA_", "NCCL_", "NVIDIA_TF32_", "CUBLAS_", "CUDNN_")
_PRIVATE = (SECRET, LAUNCHED)
# Without untracked files: a folder of data may hold millions. Without a lock, and without a daemon for file system
# events.
_GIT = ("git", "-c", "core.fsmonitor=false", "--no-optional-locks", "status", "--porcelain=v2", "--branch", "-uno")
_GIT_SECONDS = 3.0


def record_environment(folder: Path, devices: Sequence[Any]) -> None:
    """Add the present environment to a run's `environment.json`, unless it equals the last one in the file.

    Args:
        folder: Folder of the run.
        devices: Contexts of the net.

    Side effects:
        The file holds a list with one entry per environment of the run, in the order of time.
    """
    warn_if_late(os.environ)
    file, now = folder / FILE, describe_environment(devices)
    earlier = _entries(file)
    if earlier and {**earlier[-1], "since": now["since"]} == now:
        return
    write_atomically(file, json.dumps([*earlier, now], indent=1).encode())


def record_workers(folder: Path, epoch: int, seconds: float, shares: Sequence[Dict[str, Any]]) -> None:
    """Write what each of several workers did in an epoch to a run's `workers.json`.

    Args:
        folder: Folder of the run.
        epoch: Number of the epoch, from 1. A resumed run replaces the entries of this epoch and of later ones.
        seconds: Duration of the epoch.
        shares: As `Together.shares`.
    """
    file = folder / WORKERS
    rows = [row for row in _entries(file) if row["epoch"] < epoch]
    rows.append({"epoch": epoch, "seconds": seconds, "workers": shares})
    write_atomically(file, json.dumps(rows, indent=1).encode())


def _entries(file: Path) -> List[Dict[str, Any]]:
    entries: List[Dict[str, Any]] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else []
    return entries


def describe_environment(devices: Sequence[Any]) -> Dict[str, Any]:
    """Versions, machine, devices, threads, variables and MXNet's features, as plain JSON values.

    Args:
        devices: Contexts of the net.

    Returns:
        `arrays` is "np" under `npx.set_np()`, else "nd"; `memory` is in bytes; `threads` is the number of threads of
        one MXNet operator in this process; `workers` is the number of processes that train together. `gpus` is empty
        unless `devices` has a GPU. `bits` holds the settings that decide the bits of results, as they were when MXNet
        was loaded. `distributions` has all installed distributions; `git` is as `git_state`.

    >>> describe_environment([mx.cpu()])["devices"]
    ['cpu(0)']
    """
    memory = read_memory()
    gpus = [device.device_id for device in devices if is_gpu(device)]
    installed = _installed_distributions()
    variables = sorted(name for name in os.environ if name.startswith(_VARIABLES) and name not in _PRIVATE)
    return {
        "since": datetime.datetime.now().strftime("%Y-%m-%d %H:%M:%S"),
        "versions": {
            "mxkit": __version__,
            "MXNet": mx.__version__,
            "NumPy": np.__version__,
            "Python": platform.python_version(),
            **{name.lower(): version for name, version in installed.items() if name.lower() in _PACKAGES},
        },
        "git": git_state(Path.cwd()),
        "arrays": "np" if mx.util.is_np_array() else "nd",
        "platform": platform.platform(),
        "processor": processor_model(),
        "cores": read_processors().cores,
        "threads": in_force(),
        "memory": None if memory is None else memory.total,
        "devices": [str(one) for one in devices],
        "gpus": [str(gpu) for gpu in read_driver().gpus] if gpus else [],
        "bits": gpu_facts(gpus) if gpus else switches(),
        "workers": size(),
        "variables": {name: os.environ[name] for name in variables},
        "features": sorted(name for name, feature in mx.runtime.Features().items() if feature.enabled),
        "distributions": installed,
    }


def git_state(folder: Path) -> Optional[Dict[str, Any]]:
    """The git commit of a working folder, and whether a tracked file differs from it (`dirty`).

    Returns:
        None without git, a repository or a commit, or if git takes more than 3 seconds.
    """
    try:
        done = subprocess.run(
            _GIT, cwd=str(folder), stdin=subprocess.DEVNULL, capture_output=True, timeout=_GIT_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = done.stdout.decode(errors="replace").splitlines()
    commits = [line.split()[-1] for line in lines if line.startswith("# branch.oid ")]
    if done.returncode or not commits or commits == ["(initial)"]:
        return None
    return {"commit": commits[0], "dirty": any(not line.startswith("#") for line in lines)}


def _installed_distributions() -> Dict[str, str]:
    """Version of each installed distribution; of two with one name, that of the first on the path is imported."""
    versions: Dict[str, str] = {}
    for distribution in distributions():
        with suppress(OSError, ValueError):  # a broken record of pip
            metadata = distribution.metadata  # read from the file at each access
            if metadata["Name"] and metadata["Version"]:
                versions.setdefault(metadata["Name"], metadata["Version"])
    return dict(sorted(versions.items(), key=lambda item: item[0].lower()))

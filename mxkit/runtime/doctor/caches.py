"""Folders of datasets and nets that MXNet, gluoncv and mxkit keep."""

import os
from pathlib import Path
import re
import shutil
from typing import Dict, Iterator, List, Tuple

from mxkit.runtime.doctor.findings import Line

_MANY = 100_000

# Downloads of mxkit, MXNet and gluoncv that were stopped; `mxkit cache clean` knows those that still run.
_LEFTOVER = re.compile(r"(^\..+\.(part|moving)$)|([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$)")


def cache_lines() -> Tuple[Line, ...]:
    """Lines about each cache folder: size, and what stopped downloads left in it."""
    # MXNet reads MXNET_HOME once, at import; gluoncv 0.10.5 for its nets alone, at each call (T57).
    default = Path.home() / ".mxnet"
    home = Path(os.environ.get("MXNET_HOME") or default).expanduser()
    folders = {"mxnet models": home / "models", "mxnet datasets": home / "datasets"}
    if home != default:
        folders["gluoncv datasets"] = default / "datasets"
    lines = [_line(name, folder) for name, folder in folders.items()]
    return (*lines, _free(home))


def _line(name: str, folder: Path) -> Line:
    if not folder.is_dir():
        return Line(name, f"{folder} (not there yet)")
    count, size, stale = 0, 0, 0
    for entry in _files(str(folder)):
        count += 1
        size += entry.stat(follow_symlinks=False).st_size
        stale += bool(_LEFTOVER.search(entry.name))
        if count == _MANY:
            return Line(name, f"{folder} (more than {_MANY:,} files)")
    said = f"{folder} ({count:,} files, {size / 1e6:,.1f} MB)"
    data: Dict[str, object] = {"folder": str(folder), "files": count, "bytes": size, "leftovers": stale}
    if not stale:
        return Line(name, said, data=data)
    return Line(name, f"{said}, {stale} left by stopped downloads", "warning", "mxkit cache clean", data)


def _files(folder: str) -> Iterator["os.DirEntry[str]"]:
    open_: List[str] = [folder]
    while open_:
        try:
            with os.scandir(open_.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        open_.append(entry.path)
                    elif entry.is_file(follow_symlinks=False):
                        yield entry
        except OSError:
            continue  # a folder of somebody else


def _free(home: Path) -> Line:
    there = next(one for one in (home, *home.resolve().parents) if one.is_dir())
    free = shutil.disk_usage(str(there)).free
    said, data = f"{free / 1e9:,.1f} GB for {home}", {"free": free}
    if free >= 1e9:
        return Line("free disk", said, data=data)
    return Line("free disk", said, "warning", "export MXNET_HOME=DIR    puts new downloads on another disk", data)

"""Libraries built on MXNet, as the doctor, `--old-numpy`, `.ci/libraries` and docs/libraries.md know them."""

import re
import sys
from typing import Callable, Dict, List, NamedTuple, Tuple

from mxkit.runtime.wheels import release

_NEED = re.compile(r"([\w.-]+?)(?:(<|==)([\w.]+))?(?:; python_version >= '([\d.]+)')?$")


class Library(NamedTuple):
    """A release of a library, and what it needs beside MXNet and mxkit.

    Attributes:
        name: Its name for pip.
        version: The release that was tried.
        package: The package that programs import.
        needs: Requirements for pip: packages that it does not ask for, and versions of others that it works with.
        alone: What is installed with --no-deps, because the library asks for old packages; else the library comes with
            what it asks for.
        old_numpy: Whether its modules need `--old-numpy`.
        pythons: The versions of Python that it was tried on.
        wheel_of: The newest Python that has a wheel, which newer ones can use too.
    """

    name: str
    version: str
    package: str
    needs: Tuple[str, ...] = ()
    alone: Tuple[str, ...] = ()
    old_numpy: bool = False
    pythons: Tuple[str, ...] = ("3.13", "3.8")
    wheel_of: str = ""


_SETUPTOOLS = "setuptools<81; python_version >= '3.12'"  # has distutils, which left Python
_AUTOGLUON = ("autogluon.core==0.3.2b20211206", "autogluon.mxnet==0.3.2b20211206")
_AUTOGLUON_NEEDS = ("ConfigSpace", "dask", "distributed", "paramiko", "boto3", "autograd", "dill", "scikit-learn")

LIBRARIES = (
    Library("gluonts", "0.17.0", "gluonts", ("pandas<3", _SETUPTOOLS), pythons=("3.13",)),
    Library("gluonts", "0.16.3", "gluonts", ("pandas<3", _SETUPTOOLS)),
    Library("gluonts", "0.15.1", "gluonts", ("pandas<3", _SETUPTOOLS), old_numpy=True),
    # pandas from 2.2 on refuses their frequencies ("invalid frequency"), and older ones have no wheel for Python 3.13
    Library("gluonts", "0.14.4", "gluonts", ("pandas<2.2",), old_numpy=True, pythons=("3.8",)),
    Library("gluonts", "0.13.9", "gluonts", ("pandas<2.2", "pydantic<2"), old_numpy=True, pythons=("3.8",)),
    Library("gluonnlp", "0.10.0", "gluonnlp"),
    Library("gluoncv2", "0.0.64", "gluoncv2", old_numpy=True),
    Library("dgl", "1.0.4", "dgl", ("networkx", "psutil", "scipy", _SETUPTOOLS), wheel_of="3.11"),
    Library("d2l", "0.17.6", "d2l", ("ipython",), ("d2l==0.17.6",)),
    Library(
        "sockeye",
        "2.3.24",
        "sockeye",
        ("pyyaml", "portalocker", "sacrebleu==1.4.14"),
        ("sockeye==2.3.24",),
        old_numpy=True,
    ),
    Library("keras-mxnet", "2.2.4.3", "keras", old_numpy=True),
    Library("mxfusion", "0.3.1", "mxfusion", ("networkx", "scikit-learn"), ("mxfusion==0.3.1",)),
    Library("mxboard", "0.1.0", "mxboard", ("protobuf<4",), old_numpy=True),
    Library("xfer-ml", "1.1.0", "xfer", ("scikit-learn<1.7",), ("xfer-ml==1.1.0",), old_numpy=True),
    Library("cnocr", "1.2.3", "cnocr", ("python-Levenshtein",), ("cnocr==1.2.3",)),
    Library("bert-embedding", "1.0.1", "bert_embedding", ("gluonnlp==0.10.0",), ("bert-embedding==1.0.1",)),
    Library("autogluon.mxnet", "0.3.2b20211206", "autogluon", _AUTOGLUON_NEEDS, _AUTOGLUON),
)


#: The packages whose blocks `save_net` describes by the names of their classes. Reading a description imports them, so
#: others are left out: keras writes a file into the home folder when it is imported.
PACKAGES = frozenset(("gluoncv2", "gluonnlp", "gluonts"))


def library_of(name: str, version: str) -> Library:
    """Return the entry of an installed library: that of its release, or of the newest that was tried."""
    entries = [library for library in LIBRARIES if library.name == name]
    return next((one for one in entries if release(one.version)[:2] == release(version)[:2]), entries[0])


def unmet_needs(library: Library, version_of: Callable[[str], str]) -> Dict[str, str]:
    """Return the requirements that do not hold here, with the installed version; "" for a missing package."""
    unmet = {}
    for need in library.needs:
        found = _NEED.match(need)
        name, operator, bound, since = found.groups() if found else (need, "", "", "")
        if sys.version_info[:2] < release(since or "0"):
            continue
        installed = version_of(name)
        is_met = {"<": release(installed) < release(bound or ""), "==": installed == bound}.get(operator, True)
        if not (installed and is_met):
            unmet[need.partition(";")[0]] = installed
    return unmet


def packages_of(names: str) -> List[str]:
    """Return the packages of libraries, whose names stand in a text with commas between them.

    >>> packages_of("keras-mxnet, dgl")
    ['keras', 'dgl']
    """
    known = {library.name: library.package for library in LIBRARIES}
    return [known.get(word, word.replace("-", "_")) for word in map(str.strip, names.split(",")) if word]

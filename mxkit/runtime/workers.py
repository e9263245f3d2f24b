"""The first function that a process of a DataLoader runs.

A worker that is started by spawn or forkserver is a fresh interpreter. What it unpickles first decides what it
imports first: MXNet's own initializer makes it import MXNet, which fails without mxkit, and the pool then starts
a new worker, for ever (T91). The functions here are pickled by reference, so the worker imports mxkit.
"""

import importlib
import multiprocessing
from types import ModuleType
from typing import Any

from mxkit.runtime.threads import take_one_thread

#: Where a repaired module keeps the initializer that it came with.
UPSTREAM = "_mxkit_upstream_worker_initializer"


def replace_initializer(module: ModuleType, replacement: Any) -> None:
    """Put `replacement` in the place of a module's `_worker_initializer`, once."""
    if UPSTREAM not in vars(module):
        setattr(module, UPSTREAM, module._worker_initializer)
        module._worker_initializer = replacement  # type: ignore[attr-defined]


def _call_upstream(module_name: str, *args: Any) -> None:
    module = importlib.import_module(module_name)
    if multiprocessing.get_start_method() != "fork":  # forked ones take one anyway, and MXNet can hang in them
        take_one_thread()
    getattr(module, UPSTREAM)(*args)


def initialize_mxnet_worker(dataset: Any, active_shape: bool, active_array: bool) -> None:
    """Do what `mxnet.gluon.data.dataloader._worker_initializer` does, with mxkit imported before."""
    _call_upstream("mxnet.gluon.data.dataloader", dataset, active_shape, active_array)


def initialize_gluoncv_worker(dataset: Any) -> None:
    """Do what `gluoncv.data.dataloader._worker_initializer` does, with mxkit imported before."""
    _call_upstream("gluoncv.data.dataloader", dataset)


def work_for_loader_v1(*args: Any) -> None:
    """Do what `mxnet.gluon.data.dataloader.worker_loop_v1` does, with mxkit imported before."""
    importlib.import_module("mxnet.gluon.data.dataloader").worker_loop_v1(*args)

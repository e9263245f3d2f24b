"""Initializers of the processes of a DataLoader.

A worker started by spawn or forkserver is a new interpreter, and first imports what it unpickles first. MXNet's own
initializer makes it import MXNet, which fails without mxkit, and the pool then starts new workers for ever (T91).
The functions here are pickled by reference, so the worker imports mxkit first.
"""

import importlib
from types import ModuleType
from typing import Any

#: The attribute of a repaired module that holds its original initializer.
UPSTREAM = "_mxkit_upstream_worker_initializer"


def replace_initializer(module: ModuleType, replacement: Any) -> None:
    """Replace a module's `_worker_initializer`, once."""
    if UPSTREAM not in vars(module):
        setattr(module, UPSTREAM, module._worker_initializer)
        module._worker_initializer = replacement  # type: ignore[attr-defined]


def _call_upstream(module_name: str, *args: Any) -> None:
    module = importlib.import_module(module_name)
    getattr(module, UPSTREAM)(*args)


def initialize_mxnet_worker(dataset: Any, active_shape: bool, active_array: bool) -> None:
    """Call `mxnet.gluon.data.dataloader._worker_initializer`, with mxkit imported before."""
    _call_upstream("mxnet.gluon.data.dataloader", dataset, active_shape, active_array)


def initialize_gluoncv_worker(dataset: Any) -> None:
    """Call `gluoncv.data.dataloader._worker_initializer`, with mxkit imported before."""
    _call_upstream("gluoncv.data.dataloader", dataset)


def work_for_loader_v1(*args: Any) -> None:
    """Call `mxnet.gluon.data.dataloader.worker_loop_v1`, with mxkit imported before."""
    importlib.import_module("mxnet.gluon.data.dataloader").worker_loop_v1(*args)

"""The public names of MXNet and GluonCV that docs/api-table.md counts."""

from importlib import import_module
import inspect
import pkgutil

_MODULES = """
mx.nd mx.nd.contrib mx.nd.image mx.nd.linalg mx.nd.random mx.nd.sparse
mx.sym mx.sym.contrib mx.sym.image mx.sym.linalg mx.sym.random mx.sym.sparse
mx.sym.np mx.sym.np.linalg mx.sym.np.random mx.sym.npx mx.sym.npx.random mx.sym.npx.image
mx.np mx.np.linalg mx.np.random mx.npx mx.npx.random mx.npx.image
gluon gluon.nn gluon.rnn gluon.loss gluon.data gluon.data.vision gluon.data.vision.transforms gluon.utils
gluon.model_zoo.vision gluon.contrib.nn gluon.contrib.rnn gluon.contrib.cnn gluon.contrib.data
gluon.contrib.data.text gluon.contrib.estimator
mx.image mx.io mx.metric mx.optimizer
mx.contrib.amp mx.contrib.autograd mx.contrib.io mx.contrib.ndarray mx.contrib.onnx mx.contrib.quantization
mx.contrib.symbol mx.contrib.svrg_optimization.svrg_module mx.contrib.svrg_optimization.svrg_optimizer
mx.contrib.tensorboard mx.contrib.text.embedding mx.contrib.text.utils mx.contrib.text.vocab
"""
_PACKAGES = ("gluoncv.data", "gluoncv.nn", "gluoncv.utils", "gluoncv.loss")
#: Classes of arrays, whose methods are names too.
ARRAYS = ("mx.nd.NDArray", "mx.np.ndarray", "mx.sym.Symbol")
#: Rows of the page.
GROUPS = ("mx.nd", "mx.sym", "mx.np", "mx.npx", "gluon", "mx.image", "mx.io", "mx.metric", "mx.optimizer", "mx.contrib")
GROUPS += _PACKAGES
_ALIASES = {
    "mx.npx": "mxnet.numpy_extension",
    "mx.np": "mxnet.numpy",
    "mx.nd": "mxnet.ndarray",
    "mx.sym.npx": "mxnet.symbol.numpy_extension",
    "mx.sym.np": "mxnet.symbol.numpy",
    "mx.sym": "mxnet.symbol",
    "gluon": "mxnet.gluon",
    "mx": "mxnet",
}


def module_of(space):
    """The module behind a namespace, by the name under which users know it."""
    for alias, name in _ALIASES.items():
        if space == alias or space.startswith(alias + "."):
            return import_module(name + space[len(alias) :])
    return import_module(space)


def spaces():
    """Names of all namespaces, those of GluonCV included."""
    found = _MODULES.split() + list(ARRAYS)
    for package in _PACKAGES:
        module = import_module(package)
        found.append(package)
        found += [one.name for one in pkgutil.walk_packages(getattr(module, "__path__", ()), package + ".")]
    return [space for space in found if "sync_bn" not in space]


def names_of(space):
    """The public names of a namespace, with their objects."""
    if space in ARRAYS:
        parent, _, name = space.rpartition(".")
        owner = getattr(module_of(parent), name)
        members = {one: getattr(owner, one) for one in dir(owner) if one not in dir(object)}
        return {one: member for one, member in members.items() if _is_method(one) and (space, one) not in _OF_MXKIT}
    module = module_of(space)
    members = {one: getattr(module, one) for one in dir(module) if not one.startswith("_")}
    return {one: member for one, member in members.items() if _belongs(member, module, space)}


def _is_method(name):
    return name == "__array__" or not name.startswith("_") or name.startswith("__") and name not in _NOT_METHODS


_NOT_METHODS = {
    *("__module__", "__dict__", "__weakref__", "__slots__", "__del__", "__array_priority__", "__annotations__"),
    *("__array_interface__", "__getstate__", "__setstate__", "__firstlineno__", "__static_attributes__"),
}


#: Methods that MXNet's classes lack and mxkit adds (T278, T279, T282): MXNet alone has nothing to compare them with.
_OF_MXKIT = {
    *(("mx.nd.NDArray", "__numpy_dtype__"), ("mx.np.ndarray", "__numpy_dtype__")),
    *(("mx.np.ndarray", "__iter__"), ("mx.np.ndarray", "ravel")),
}


def _belongs(member, module, space):
    """Whether a name is the namespace's own, and not a helper that its module imports from elsewhere."""
    if inspect.ismodule(member) or type(member).__name__ == "_Feature":
        return False
    home = getattr(member, "__module__", None) or ""
    if space.startswith("gluoncv"):
        return home == module.__name__
    if not home or home == "mxnet.registry":  # a constant, or what makes `register` and `create`
        return True
    if space in ("mx.np", "mx.npx"):  # NumPy's types, functions that mxkit put there, cpu and set_np
        return home.startswith(("numpy", "mxnet", "mxkit")) and home != "mxnet.base"
    package = ".".join(module.__name__.split(".")[:2])
    return (home + ".").startswith(package + ".") or getattr(member, "__name__", "") in getattr(module, "__all__", ())


def group_of(name):
    """The row of the page that counts a name."""
    return max((group for group in GROUPS if (name + ".").startswith(group + ".")), key=len)


def all_names():
    """Every name in full."""
    return {f"{space}.{name}" for space in spaces() for name in names_of(space)}

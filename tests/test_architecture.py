"""The house: imports go downward, only core reads Gluon's inside, functions are short, `import mxkit` is light."""

import ast
import functools
import inspect
import io
import json
import os
from pathlib import Path
import subprocess
import sys
import textwrap
import tokenize

import mxkit
import mxnet as mx
from mxnet import gluon

ROOT = Path(mxkit.__file__).parent

# Rooms from the ground up. A room imports from itself and from rooms of an earlier line; two rooms of one line do not
# import each other.
LAYERS = [
    {"errors", "version"},
    {"runtime"},
    {"core"},
    {"data", "storage", "losses", "metrics", "gradients", "distributed"},
    {"nets"},
    {"models", "plots"},
    {"training"},
    {"recipe", "profiling"},
    {"reports", "exporting"},
    {"serving"},
    {"cli"},
    {"__main__"},
]


def room_of(module):
    """The room of `module` (dotted, without `mxkit.`) and the number of its layer."""
    room = module.split(".")[0]
    for number, rooms in enumerate(LAYERS):
        if room in rooms:
            return room, number
    raise AssertionError(f"{module} stands in no layer: give its room a place in LAYERS and in docs/design.md")


@functools.lru_cache(maxsize=None)
def tree_of(path):
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.lru_cache(maxsize=None)
def nodes_of(path):
    return list(ast.walk(tree_of(path)))


def modules():
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        dotted = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if dotted:
            yield dotted, path


def imports_of(dotted, path):
    """Modules of mxkit that a file imports, anywhere in it, dotted and without `mxkit.`."""
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            for alias in node.names:
                assert alias.name != "mxkit", f"{path}: nothing imports from the package root"
                if alias.name.startswith("mxkit."):
                    yield alias.name[len("mxkit.") :]
        elif isinstance(node, ast.ImportFrom):
            assert node.module != "mxkit", f"{path}: nothing imports from the package root"
            if node.level:
                base = dotted.split(".") if path.name == "__init__.py" else dotted.split(".")[:-1]
                source = ".".join([*base[: len(base) - node.level + 1], node.module or ""]).strip(".")
            elif node.module and node.module.startswith("mxkit."):
                source = node.module[len("mxkit.") :]
            else:
                continue
            for alias in node.names:  # `from mxkit.runtime import wheels` imports a module, not a name
                inner = ROOT.joinpath(*source.split("."), f"{alias.name}.py")
                yield f"{source}.{alias.name}" if inner.exists() else source


def test_imports_go_downward():
    for dotted, path in modules():
        room, layer = room_of(dotted)
        for imported in imports_of(dotted, path):
            other, below = room_of(imported)
            assert other == room or below < layer, f"{dotted} (layer {layer}) imports {imported} (layer {below})"


def test_modules_do_not_import_each_other_in_a_circle():
    graph = {dotted: set(imports_of(dotted, path)) for dotted, path in modules()}
    done, open_ = set(), []

    def visit(module):
        assert module not in open_, f"imports in a circle: {' -> '.join([*open_, module])}"
        if module in done or module not in graph:
            return
        open_.append(module)
        for other in graph[module] - {module}:
            visit(other)
        open_.pop()
        done.add(module)

    for module in graph:
        visit(module)


def test_export_list_is_whole_and_sorted():
    assert list(mxkit.__all__) == sorted(mxkit.__all__)
    for name in mxkit.__all__:
        assert getattr(mxkit, name) is not None
    assert set(mxkit.__all__) <= set(dir(mxkit))


def public_names():
    """Names that the root and the rooms export: those of their stubs, or of an `__init__.py` that lists them."""
    for path in [*ROOT.rglob("__init__.pyi"), *ROOT.rglob("__init__.py")]:
        for node in tree_of(path).body:
            for alias in node.names if isinstance(node, ast.ImportFrom) else ():
                if alias.asname == alias.name:
                    yield path.parent, alias.name


def test_the_root_has_few_names():
    names = {name for place, name in public_names() if place == ROOT} - {"callbacks"}  # a room, in mxkit/training
    assert "fit" in names
    rooms = {path.name for path in ROOT.iterdir() if path.is_dir()} | {"errors"}
    assert len([name for name in names - rooms if not name.startswith("__")]) <= 34


def hiding_names():
    rooms = {path.name for path in ROOT.iterdir() if path.is_dir()}
    functions = {(place, name) for place, name in public_names() if name not in rooms | {"errors"}}
    places = {}
    for dotted, path in modules():
        if path.name not in ("__init__.py", "__main__.py"):
            places.setdefault(path.stem, set()).add(dotted)
            if (path.parent, path.stem) in functions:
                yield path.stem
    for name, found in places.items():
        if name in rooms - found:
            yield name


def test_no_module_has_the_name_of_a_function_or_a_room():
    # `import mxkit.x` binds the module as `mxkit.x`, over a function of this name
    assert list(hiding_names()) == []


def test_the_house_has_few_rooms():
    shown = [path for path in ROOT.iterdir() if path.name != "__pycache__"]
    rooms = {path.name for path in shown if path.is_dir()}
    assert rooms == set().union(*LAYERS) - {"errors", "version", "__main__"}
    assert len(rooms) <= 18
    assert len(shown) - len(rooms) <= 6


# The classes whose private attributes only core and runtime may read, so that a fork of MXNet is met in one place.
INSIDE = [
    *(gluon.Block, gluon.HybridBlock, gluon.SymbolBlock, gluon.Parameter, gluon.Constant, gluon.ParameterDict),
    *(gluon.nn.Conv2D.__mro__[1], gluon.nn.BatchNorm.__mro__[1], gluon.Trainer, mx.optimizer.Optimizer),
    *(mx.optimizer.Updater, mx.kvstore.KVStore, mx.nd.NDArray, mx.sym.Symbol, gluon.data.DataLoader),
    *(gluon.data.BatchSampler, gluon.data.SimpleDataset, gluon.data.ArrayDataset, gluon.data.vision.MNIST.__mro__[1]),
    *(getattr(gluon.data.dataset, f"_{name}Dataset") for name in ("LazyTransform", "Sampled", "Filtered")),
]
# File and attribute, and why.
READS_INSIDE = {("training/one_graph.py", "_label"): "of a Metric, which is mxkit's own"}


def is_private(name):
    return isinstance(name, str) and name.startswith("_") and not name.startswith("__")


def private_attributes(kind):
    for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(kind)))):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
            yield node.attr
        elif isinstance(node, ast.FunctionDef):
            yield node.name


def name_of(node):
    """The name of a variable, an attribute or a called function."""
    node = node.func if isinstance(node, ast.Call) else node
    return getattr(node, "id", getattr(node, "attr", ""))


def foreign_reads(path):
    """Names of attributes that a module reads or writes on anything but `self`, `cls` and `super()`."""
    for node in nodes_of(path):
        if isinstance(node, ast.Attribute):
            if name_of(node.value) not in ("self", "cls", "super") or isinstance(node.value, ast.Attribute):
                yield node.attr
        elif isinstance(node, ast.Call) and name_of(node).endswith(("attr", "__setattr__")):
            yield from (one.value for one in node.args[1:2] if isinstance(one, ast.Constant))
        elif isinstance(node, ast.Subscript) and name_of(node.value) == "vars":
            yield from (one.value for one in ast.walk(node.slice) if isinstance(one, ast.Constant))


def own_names(path):
    """Attributes and methods that the classes of a module give themselves."""
    for kind in (node for node in nodes_of(path) if isinstance(node, ast.ClassDef)):
        for node in ast.walk(kind):
            if isinstance(node, ast.FunctionDef):
                yield node.name
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and name_of(node.value) == "self":
                yield node.attr


def test_only_core_and_runtime_read_what_gluon_keeps_private():
    inside = {name for kind in INSIDE for name in private_attributes(kind) if is_private(name)}
    assert {"_cached_graph", "_kv_initialized", "_fresh_grad", "_children", "_batch_sampler", "_kwargs"} <= inside
    found = set()
    for dotted, path in modules():
        if dotted.split(".")[0] not in ("core", "runtime"):
            reads = inside.intersection(foreign_reads(path)) - set(own_names(path))
            found |= {(path.relative_to(ROOT).as_posix(), name) for name in reads}
    assert found == set(READS_INSIDE)


def long_functions(path, most):
    """Functions of a file with more than `most` lines of code."""
    functions = [node for node in nodes_of(path) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    if not any(node.end_lineno - node.lineno >= most for node in functions):
        return
    source = path.read_text(encoding="utf-8")
    skipped = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    lines = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in skipped:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in functions:
        text = node.body[0] if ast.get_docstring(node) else None
        docstring = range(text.lineno, text.end_lineno + 1) if text else ()
        if len(lines.intersection(range(node.lineno, node.end_lineno + 1)).difference(docstring)) > most:
            yield path.relative_to(ROOT).as_posix(), node.name


def test_fit_reads_in_one_breath():
    keywords = [name for name, one in inspect.signature(mxkit.fit).parameters.items() if one.kind is one.KEYWORD_ONLY]
    assert len(keywords) <= 17


def test_no_function_is_long():
    assert [one for _, path in modules() for one in long_functions(path, 60)] == []


def loaded_after(statement, names):
    """Which of `names` a fresh interpreter holds after a statement."""
    code = f"import json, sys; {statement}; print(json.dumps([name for name in {names} if name in sys.modules]))"
    variables = {**os.environ, "PYTHONPATH": str(ROOT.parent)}
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, env=variables, check=True, timeout=300)
    return json.loads(done.stdout)


HEAVY = ["gluoncv", "matplotlib", "typer", "pydantic", "onnxruntime", "safetensors", "torch"]
HEAVY += ["tensorboardX", "wandb", "mlflow", "optuna"]


def test_import_mxkit_loads_nothing_heavy():
    assert loaded_after("import mxkit", [*HEAVY, "onnx", "pandas", "sklearn", "numpy", "mxnet"]) == []


def test_the_ladder_loads_nothing_heavy():
    # pandas, sklearn and onnx are no business of ours here: mxnet imports the last two where they are installed
    # callbacks first: a fresh process must find that room before anything else of training is imported
    assert loaded_after("import mxkit; mxkit.callbacks; import mxnet; mxkit.fit; mxkit.models; mxkit.data", HEAVY) == []


def test_the_command_starts_without_mxnet():
    assert loaded_after("import mxkit.cli", ["mxnet", "numpy", "gluoncv", "matplotlib"]) == []

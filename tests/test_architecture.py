"""The house: imports go downward, the export list is whole, heavy libraries stay out of `import mxkit`."""

import ast
import json
import os
from pathlib import Path
import subprocess
import sys

import mxkit
import pytest

ROOT = Path(mxkit.__file__).parent

# A room may import only from rooms below it, or from its own.
LAYERS = [
    {"version", "errors", "files", "specs", "runtime"},
    {"device", "packed", "seeding", "blocks", "tracing", "forward_errors", "layer_faults", "modes"},
    {"data", "models", "losses", "metrics", "optimizers", "initializers", "plotting", "checkpoint"}
    | {
        "schedules",
        "hyperparameters",
        "contrastive",
        "more_losses",
        "loss_shapes",
        "finetuning",
        "gradients",
        "gradient_check",
        "custom_gradients",
        "own_layer",
        "hybridizing",
        "moving",
        "features",
        "data_plots",
        "feature_plots",
        "layer_table",
        "parameter_table",
        "comparison",
        "static_graphs",
        "surgery",
        "architecture",
        "net_file",
        "exporters",
        "symbol_file",
    },
    {
        "training." + name
        for name in ["record", "accumulator", "checks", "loss_checks", "update", "history", "callbacks", "progress"]
    }
    | {
        "training." + name
        for name in [
            "precision",
            "randomness",
            "norms",
            "epoch",
            "signals",
            "resume",
            "checkpoints",
            "rate_search",
            "rehearsal",
            "evaluation",
            "place",
            "one_graph",
            "unread",
            "extraction",
            "deferred",
            "gpu_exactness",
            "modes",
        ]
    }
    | {"training." + name for name in ["monitor", "builtin", "builtin_logs", "builtin_ema", "learning_rate"]},
    {"training.loop", "profiling"},
    {"recipe"},
    {"reporting", "cli_machine", "cli_profile"},
    {"cli_runs"},
    {"cli"},
    {"__main__"},
]


def room_of(module):
    """The deepest name of LAYERS that `module` (dotted, without `mxkit.`) belongs to, and its layer."""
    for number, rooms in enumerate(LAYERS):
        for room in rooms:
            if module == room or module.startswith(room + "."):
                return room, number
    raise AssertionError(f"{module} stands in no layer: give it a place in LAYERS and in docs/design.md")


def modules():
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        dotted = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if dotted and dotted != "training":
            yield dotted, path


def imports_of(dotted, path):
    """Modules of mxkit that a file imports, anywhere in it, dotted and without `mxkit.`."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
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


@pytest.mark.parametrize(("dotted", "path"), list(modules()), ids=lambda value: str(value).split("/")[-1])
def test_imports_go_downward(dotted, path):
    room, layer = room_of(dotted)
    for imported in imports_of(dotted, path):
        other, below = room_of(imported)
        assert other == room or below < layer or (below == layer and layer in (0, 1, 2, 3)), (
            f"mxkit/{dotted} (layer {layer}) imports {imported} (layer {below})"
        )


def test_modules_of_one_layer_do_not_import_each_other_in_a_circle():
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


def test_no_module_shares_its_name_with_a_public_function():
    functions = {name for name in mxkit.__all__ if callable(getattr(mxkit, name))}
    assert not functions & {dotted.split(".")[-1] for dotted, _ in modules()}


def loaded_after(statement, names):
    """Which of `names` a fresh interpreter holds after a statement."""
    code = f"import json, sys; {statement}; print(json.dumps([name for name in {names} if name in sys.modules]))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT.parent)}
    done = subprocess.run(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, env=environment, check=True, timeout=300
    )
    return json.loads(done.stdout)


HEAVY = ["gluoncv", "matplotlib", "typer", "pydantic", "onnx", "tensorboardX"]


def test_import_mxkit_loads_nothing_heavy():
    assert loaded_after("import mxkit", [*HEAVY, "pandas", "sklearn", "numpy", "mxnet"]) == []


def test_the_ladder_loads_nothing_heavy():
    # pandas and sklearn are no business of ours here: mxnet/model.py imports sklearn where it is installed
    assert loaded_after("import mxkit; import mxnet; mxkit.fit; mxkit.models; mxkit.data", HEAVY) == []


def test_the_command_starts_without_mxnet():
    assert loaded_after("import mxkit.cli", ["mxnet", "numpy", "gluoncv", "matplotlib"]) == []

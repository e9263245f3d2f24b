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

# Rooms from the ground up. A room imports from itself and from rooms of an earlier line; two rooms of one line do not
# import each other.
LAYERS = [
    {"errors", "version"},
    {"runtime"},
    {"core"},
    {"data", "storage", "losses", "metrics", "gradients"},
    {"nets"},
    {"models", "plots", "exporting"},
    {"training"},
    {"recipe", "profiling"},
    {"reports"},
    {"cli"},
    {"__main__"},
]

# Imports that break this rule today: who imports, what, and how it ends. An import that is gone leaves the list.
EXCEPTIONS = {
    ("core.trainers", "nets.settings"): "check_number belongs to core",
    ("data.describing", "plots.data_plots"): "a description draws itself; a function of plots can draw it",
    ("metrics.tasks", "losses.shapes"): "squeezed belongs to core",
    ("nets.architecture.building", "models.zoo"): "models can register the function that makes a net by its name",
    ("nets.architecture.comparing", "models.zoo"): "the table of nets made by name belongs to nets",
    ("nets.architecture.describing", "models.zoo"): "the table of nets made by name belongs to nets",
    ("nets.finetuning", "models.zoo"): "the same as for nets.architecture.building",
    ("nets.saving", "exporting.exporters"): "parameter_bytes belongs to storage",
    ("storage.loading", "nets.settings"): "match_parameters belongs to core",
    ("storage.optimizer_state", "nets.settings"): "refuse_remote belongs to core",
}


def room_of(module):
    """The room of `module` (dotted, without `mxkit.`) and the number of its layer."""
    room = module.split(".")[0]
    for number, rooms in enumerate(LAYERS):
        if room in rooms:
            return room, number
    raise AssertionError(f"{module} stands in no layer: give its room a place in LAYERS and in docs/design.md")


def modules():
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        dotted = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if dotted:
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
        assert other == room or below < layer or (dotted, imported) in EXCEPTIONS, (
            f"mxkit.{dotted} (layer {layer}) imports mxkit.{imported} (layer {below})"
        )


def test_every_exception_is_still_needed():
    assert set(EXCEPTIONS) <= {
        (dotted, imported) for dotted, path in modules() for imported in imports_of(dotted, path)
    }


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


def test_no_module_shares_its_name_with_a_public_function():
    # `import mxkit.x` binds the module as `mxkit.x`, over a function of this name; so the list is read, not asked
    stub = ast.parse((ROOT / "__init__.pyi").read_text(encoding="utf-8"))
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom) and node.module]
    names = {alias.asname for node in imports for alias in node.names}
    names -= {"callbacks"}  # a room of the public names, whose code stands in mxkit/training
    assert "fit" in names
    assert len([name for name in names if not name.startswith("__")]) <= 32  # the others stand in their rooms
    assert not names & {dotted.split(".")[-1] for dotted, _ in modules()}


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
    # callbacks first: a fresh process must find that room before anything else of training is imported
    assert loaded_after("import mxkit; mxkit.callbacks; import mxnet; mxkit.fit; mxkit.models; mxkit.data", HEAVY) == []


def test_the_command_starts_without_mxnet():
    assert loaded_after("import mxkit.cli", ["mxnet", "numpy", "gluoncv", "matplotlib"]) == []

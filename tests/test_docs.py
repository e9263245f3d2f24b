"""The pages of docs/: what they show runs, what they quote is really said, and no public name is left out."""

import ast
import gc
import mmap
from pathlib import Path
import re

from hub_server import running_hub
import mxkit
import mxnet as mx
import numpy as np
from pages import ROOT, RUN, SHOWN, blocks, run_page
import pytest
from sharing import needs, needs_datasets, needs_fastapi, needs_onnx

DOCS = ROOT / "docs"
COOKBOOK = sorted((DOCS / "cookbook").glob("*.md"))
PAGES = ["index", "install", "getting-started", "faq", "leave", "cannot-leave", "several-machines"]
EXECUTED = [*COOKBOOK, *(DOCS / f"{name}.md" for name in PAGES)]
EXECUTED += [DOCS / "zh" / "index.md", DOCS / "zh" / "from-d2l.md"]  # the others have the blocks of English pages
API = "\n".join(page.read_text(encoding="utf-8") for page in (DOCS / "api").glob("*.md"))
FAQ = (DOCS / "faq.md").read_text(encoding="utf-8")


def name_of(page):
    return page.relative_to(DOCS).with_suffix("").as_posix()


NEEDS = {
    'format="onnx"': needs_onnx,
    "from fastapi": needs_fastapi,
    "from datasets": needs_datasets,
    # it leaves its shards open, for the garbage collector
    "webdataset": pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),
    "TensorBoardLog(": needs("tensorboardX"),
    '"hf://': needs("huggingface_hub"),
    "WandbLog(": needs("wandb"),
    "MLflowLog(": needs("mlflow"),
    "from mlflow": pytest.mark.filterwarnings("ignore:.*:DeprecationWarning"),  # while it is imported
}


def needed(page):
    text = page.read_text(encoding="utf-8")
    return [mark for word, mark in NEEDS.items() if word in text]


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """A hub with the net of the page about it."""
    net = mxkit.models.mlp(hidden=(32,))
    mxkit.initialize(net, sample=mx.nd.ones((1, 64)))
    path = tmp_path / "published"
    mxkit.export(net, path, format="safetensors", verify=False)
    files = {"model.safetensors": path.with_suffix(".safetensors").read_bytes()}
    for server in running_hub(monkeypatch, tmp_path):
        server.commit("your-name/digits", files)
        server.commit("your-name/digits", files, branch="v1")
        yield server


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("page", [pytest.param(one, marks=needed(one), id=name_of(one)) for one in EXECUTED])
def test_a_page_runs(page, tmp_path, monkeypatch, forks, request):
    if '"hf://' in page.read_text(encoding="utf-8"):
        request.getfixturevalue("hub")
    monkeypatch.chdir(tmp_path)
    assert {language for language, _ in blocks(page)} <= {*RUN, *SHOWN}
    run_page(page, tmp_path, forks)
    if page.stem == "other-libraries":
        gc.collect()


@pytest.mark.parametrize("page", COOKBOOK, ids=name_of)
def test_a_page_of_the_cookbook_is_short_and_stands_in_its_table_of_contents(page):
    text = page.read_text(encoding="utf-8")
    contents = (DOCS / "cookbook" / "index.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 60
    assert page.name == "index.md" or f"]({page.name})" in contents


ROOMS = {path.name for path in (ROOT / "mxkit").iterdir() if path.is_dir()}


def public_names():
    """Names of the export lists."""
    lists = [
        (f"{room}/__init__.pyi", f"{room}.") for room in ROOMS if (ROOT / "mxkit" / room / "__init__.pyi").exists()
    ]
    lists += [("__init__.pyi", ""), ("models/__init__.py", "models.")]
    for file, prefix in [*lists, ("training/callbacks/__init__.pyi", "callbacks.")]:
        for node in ast.parse((ROOT / "mxkit" / file).read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ImportFrom):
                yield from (prefix + name.asname for name in node.names if name.asname and name.asname[0] != "_")


def test_every_public_name_has_its_place_in_the_reference_once():
    shown = re.findall(r"^::: mxkit\.([\w.]+)$", API, re.MULTILINE)
    assert len(shown) == len(set(shown))
    elsewhere = {"metrics.METRICS", "metrics.Metric", "metrics.MetricSpec"}  # a table, one at the root, a type
    assert set(public_names()) - elsewhere - {"callbacks", "training.callbacks", "errors", *ROOMS, *shown} == set()
    assert set(shown) - {"errors", "__version__", *public_names()} == set()


# An entry of the FAQ: its heading is what is printed, with ... where it differs from case to case; the line after it
# tells who prints it.
ENTRY = re.compile(r"^### `(.+)`\n\n\*(.+)\*$", re.MULTILINE)
ENTRIES = ENTRY.findall(FAQ)
OTHERS = ("MXNet's", "NumPy", "OpenMP's", "Python", "Requests", "The", "pip")
SITE_PACKAGES = Path(mx.__file__).parents[1]


def texts_of(path):
    """Literal strings of a module as they come out, with NUL for what is put in."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.JoinedStr):
            yield "".join(part.value if isinstance(part, ast.Constant) else "\0" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield re.sub(r"%\w|\{\w*\}", "\0", node.value)


def pieces(heading):
    return [piece.strip() for piece in heading.split("...") if piece.strip()]


def test_the_faq_has_many_entries_and_each_tells_who_says_it():
    assert len(ENTRIES) == FAQ.count("\n### ") >= 30
    assert len({heading for heading, _ in ENTRIES}) == len(ENTRIES)
    sources = [source for _, source in ENTRIES if "/" not in source and source != "MXNet's library"]
    assert {source.split(",")[0].split(" ")[0] for source in sources} <= {*OTHERS}


@pytest.mark.parametrize(("heading", "source"), [entry for entry in ENTRIES if entry[1].endswith(".py")])
def test_a_quoted_text_of_python_stands_in_its_file(heading, source):
    texts = [re.sub(r"\s+", " ", text) for text in texts_of(SITE_PACKAGES / source)]
    for piece in pieces(heading):
        assert any(piece in text for text in texts), piece


def test_a_quoted_text_of_the_library_stands_in_it():
    (library,) = (Path(mx.__file__).parent).glob("libmxnet.so")
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        for heading, source in ENTRIES:
            if source == "MXNet's library" and not any(text in heading for text in PROVOKED):
                for piece in pieces(heading):
                    assert content.find(piece.encode()) >= 0, piece


class Branching(mx.gluon.HybridBlock):
    def hybrid_forward(self, F, x):
        return x if x.sum() > 0 else -x


class Flattening(mx.gluon.HybridBlock):
    def hybrid_forward(self, F, x):
        return x.reshape((x.shape[0], -1))


class Once(mx.autograd.Function):
    def forward(self, x):
        return x


def called(net, *inputs, hybridize=False):
    net.initialize()
    net.hybridize(hybridize)
    return net(*inputs)


def twice(function):
    function(mx.nd.ones(1))
    function(mx.nd.ones(1))


def one_loss_after_another():
    body, left, right = (mx.gluon.nn.Dense(2, in_units=2) for _ in range(3))
    for net in (body, left, right):
        net.initialize()
    with mx.autograd.record():
        shared = body(mx.nd.ones((4, 2)))
        losses = [left(shared).sum(), right(shared).sum()]
    for loss in losses:
        loss.backward()


def in_place():
    x = mx.nd.ones(1)
    x.attach_grad()
    with mx.autograd.record():
        x += 1


def stepped_without_backward():
    net = mx.gluon.nn.Dense(2, in_units=3)
    net.initialize()
    mx.gluon.Trainer(net.collect_params(), "sgd").step(1)


def trainer_of(settings, devices=1, **arguments):
    net = mx.gluon.nn.Dense(2, in_units=3)
    net.initialize(ctx=mxkit.devices(f"cpu:{devices}"))
    return mx.gluon.Trainer(net.collect_params(), "sgd", settings, **arguments)


# Texts of MXNet and Python that a few characters of code bring about.
PROVOKED = {
    "GPU is not enabled": lambda: mx.gluon.nn.Dense(2, in_units=3).initialize(ctx=mx.gpu()),
    "is not implemented for GPU": lambda: mx.nd.zeros(1, ctx=mx.gpu()),
    "Compile with USE_CUDA=1": lambda: mx.nd.array([1], ctx=mx.gpu()),
    "has not been initialized. Note": lambda: mx.gluon.nn.Dense(2, in_units=3)(mx.nd.ones((1, 3))),
    "initialization was deferred": lambda: (lambda net: (net.initialize(), net.weight.data()))(mx.gluon.nn.Dense(2)),
    "shape cannot be inferred": lambda: called(mx.gluon.nn.Conv2D(3, 5), mx.nd.ones((1, 28, 28, 1))),
    "kernel size exceed input": lambda: called(mx.gluon.nn.Conv2D(3, 5), mx.nd.ones((1, 28, 28, 1))),
    "Shape inconsistent": lambda: called(mx.gluon.nn.Dense(4, in_units=4), mx.nd.ones((2, 5))),
    "expected int32, got float32": lambda: mx.nd.ones(2, dtype="int32") + mx.nd.ones(2),
    "Incompatible input shape": lambda: mx.nd.concat(mx.nd.ones((1, 2)), mx.nd.ones((1, 3)), dim=0),
    "could not be broadcast": lambda: mx.nd.ones((2, 3)) + mx.nd.ones(4),
    "type ... not supported": lambda: mx.nd.ones(2) + np.ones(2),
    "The truth value": lambda: bool(mx.nd.ones(2)),
    "is out of bounds for axis": lambda: mx.nd.ones((2, 3))[5],
    "not in a computational graph": lambda: mx.nd.ones(1).backward(),
    "The any container is empty": one_loss_after_another,
    "Assigning to NDArrays": in_place,
    "has not been updated by backward": stepped_without_backward,
    "Each Function instance": lambda: twice(Once()),
    "LRScheduler of the optimizer": lambda: trainer_of(
        {"lr_scheduler": mx.lr_scheduler.FactorScheduler(10)}
    ).set_learning_rate(1),
    "keyword argument 'lr'": lambda: trainer_of({"lr": 0.1}),
    "allreduce_grads()": lambda: trainer_of({}, devices=2).allreduce_grads(),
    "cannot be evenly split": lambda: mx.gluon.utils.split_and_load(mx.nd.ones((5, 2)), [mx.cpu(0), mx.cpu(1)]),
    "'Symbol' object has no attribute 'shape'": lambda: called(Flattening(), mx.nd.ones((2, 3)), hybridize=True),
    "is not implemented for Symbol": lambda: called(Branching(), mx.nd.ones((2, 3)), hybridize=True),
    "Children of HybridBlock": lambda: mx.gluon.nn.HybridSequential().add(mx.gluon.nn.Sequential()),
    "'Sequential' object has no attribute 'export'": lambda: mx.gluon.nn.Sequential().export("net"),
    "No such file or directory": lambda: mx.nd.save("no/such.params", mx.nd.ones(1)),
    "Shape of labels": lambda: mx.metric.Accuracy().update([mx.nd.ones(3)], [mx.nd.ones((2, 2))]),
}
NEEDS_NO_GPU = ("GPU is not enabled", "is not implemented for GPU", "Compile with USE_CUDA=1")


@pytest.mark.parametrize("text", PROVOKED)
def test_mxnet_still_says_so(text, tmp_path, monkeypatch):
    if text in NEEDS_NO_GPU and mx.runtime.Features().is_enabled("CUDA"):
        pytest.skip("MXNet is built for GPUs")
    monkeypatch.chdir(tmp_path)
    (heading,) = [heading for heading, source in ENTRIES if text in heading and not source.startswith("The dynamic")]
    with pytest.raises(Exception) as caught:  # noqa: PT011 - the text is what is asked for
        PROVOKED[text]()
    place = 0
    for piece in pieces(heading):
        place = str(caught.value).index(piece, place)


def test_names_of_mxkit_on_the_pages_exist():
    for page in DOCS.rglob("*.md"):
        for name in re.findall(r"\bmxkit\.((?:data\.|models\.)?[A-Za-z]\w+)\b(?=\()", page.read_text(encoding="utf-8")):
            found = mxkit
            for part in name.split("."):
                assert hasattr(found, part), f"{page.name}: mxkit.{name}"
                found = getattr(found, part)

"""The pages of docs/: what they show runs, what they quote is really said, and no public name is left out."""

import ast
import gc
import mmap
from pathlib import Path
import re

from hub_server import running_hub
import mxkit
import mxnet as mx
from pages import ROOT, RUN, SHOWN, blocks, run_page
import pytest
from sharing import ONE_OF_EACH, needs, needs_bfloat16, needs_datasets, needs_fastapi, needs_onnx

DOCS = ROOT / "docs"
COOKBOOK = sorted((DOCS / "cookbook").glob("*.md"))
PAGES = ["index", "install", "getting-started", "faq", "leave", "cannot-leave", "several-machines"]
EXECUTED = [*COOKBOOK, *(DOCS / f"{name}.md" for name in PAGES)]
EXECUTED += [DOCS / "zh" / "index.md"]  # the others have the code of English pages
API = "\n".join(page.read_text(encoding="utf-8") for page in (DOCS / "api").glob("*.md"))
FAQ = (DOCS / "faq.md").read_text(encoding="utf-8")


def name_of(page):
    return page.relative_to(DOCS).with_suffix("").as_posix()


NEEDS = {
    'format="onnx"': needs_onnx,
    'else "bfloat16"': needs_bfloat16,
    "from fastapi": needs_fastapi,
    "from datasets": needs_datasets,
    # it leaves its shards open, for the garbage collector
    "webdataset": pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),
    "TensorBoardLog(": needs("tensorboardX"),
    '"hf://': needs("huggingface_hub"),
    "WandbLog(": needs("wandb"),
    "MLflowLog(": needs("mlflow"),
    "import gluonnlp": needs("gluonnlp"),
    "from gluonts": needs("gluonts"),
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
    if ONE_OF_EACH and page in COOKBOOK:  # the other pages run there; what these call has tests of its own
        for _, code in blocks(page, "python"):
            compile(code, str(page), "exec")
        return
    if '"hf://' in page.read_text(encoding="utf-8"):
        request.getfixturevalue("hub")
    monkeypatch.chdir(tmp_path)
    assert {language for language, _ in blocks(page)} <= {*RUN, *SHOWN}
    run_page(page, tmp_path, forks)
    if page.stem == "other-libraries":
        gc.collect()


def test_the_chinese_page_from_d2l_has_the_code_of_the_english_one():
    pages = [blocks(DOCS / folder / "from-d2l.md", "python") for folder in ("cookbook", "zh")]
    english, chinese = ([ast.dump(ast.parse(code)) for _, code in page] for page in pages)
    assert english == chinese


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


# MXNet puts them together from parts.
PUT_TOGETHER = ("is not implemented for GPU", "Shape inconsistent", "expected int32, got float32")
PUT_TOGETHER += ("The any container is empty", "No such file or directory")


def test_a_quoted_text_of_the_library_stands_in_it():
    (library,) = (Path(mx.__file__).parent).glob("libmxnet.so")
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        for heading, source in ENTRIES:
            if source == "MXNet's library" and not any(text in heading for text in PUT_TOGETHER):
                for piece in pieces(heading):
                    assert content.find(piece.encode()) >= 0, piece


def test_names_of_mxkit_on_the_pages_exist():
    for page in DOCS.rglob("*.md"):
        for name in re.findall(r"\bmxkit\.((?:data\.|models\.)?[A-Za-z]\w+)\b(?=\()", page.read_text(encoding="utf-8")):
            found = mxkit
            for part in name.split("."):
                assert hasattr(found, part), f"{page.name}: mxkit.{name}"
                found = getattr(found, part)

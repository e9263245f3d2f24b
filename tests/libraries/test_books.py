""".ci/books: the cells it takes from a chapter, what it cuts, and what it calls the same."""

from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
import json
import sys

from pages import ROOT
import pytest

pytestmark = pytest.mark.skipif(sys.version_info < (3, 9), reason="ast.unparse")


@pytest.fixture(scope="module")
def books():
    loader = SourceFileLoader("books", str(ROOT / ".ci" / "books"))
    module = module_from_spec(spec_from_loader("books", loader))
    loader.exec_module(module)
    return module


CHAPTER = """
```{.python .input  n=1}
%matplotlib inline
%%tab mxnet
a, num_epochs = 1, 10
```

```{.python .input}
#@tab pytorch
import torch
```

```{.python .input}
#@tab all
%timeit train(max_epochs=50, steps=50)
!pip install x
for epoch in range(9):
    pass
a
```

```{.python .input}
import torch
```
"""


def test_cells_for_mxnet_become_a_short_script(books, tmp_path):
    chapter = tmp_path / "a.md"
    chapter.write_text(CHAPTER.replace("%matplotlib inline\n%%tab mxnet", "%%tab mxnet\n%matplotlib inline"))
    script = books.script_of(chapter)
    assert script.count("try:") == 2
    assert "torch" not in script
    for line in (" = (1, 2)", "train(max_epochs=2, steps=50)", "for epoch in range(2):", "_show(a)"):
        assert line in script
    notebook = tmp_path / "a.ipynb"
    cells = [{"cell_type": kind, "source": ["1 +", " 1"]} for kind in ("code", "markdown")]
    notebook.write_text(json.dumps({"cells": cells}))
    assert list(books.cells_of(notebook)) == ["1 + 1"]
    notebook.write_text(json.dumps({"cells": [{"cell_type": "code", "source": ["def"]}]}))
    assert "_book.fail(1, 'invalid syntax')" in books.script_of(notebook)


@pytest.mark.parametrize(
    ("new", "old", "outcome"),
    [
        ("loss 0.5\nend: 0", "loss 0.5\nend: 0", "same"),
        ("np.float32(0.5001) in 3.2 sec", "0.5 in 9 sec", "same to 1e-3"),
        ("cell 2: KeyError: 'a'", 'cell 2: KeyError: "b"', "same to 1e-3"),
        ("[[1.  2.]]", "[[1. 2.]]", "same to 1e-3"),
        ("nan", "nan ", "same to 1e-3"),
        ("loss 0.51", "loss 0.5", "differs"),
        ("loss nan", "loss 0.5", "differs"),
        ("cell 2: KeyError: a", "1", "differs"),
        ("1\nend: 136", "1\nend: 0", "differs"),
        ("1\nend: too long", "1\nend: 0", "differs"),
        ("1\nend: too long", "1\nend: too long", "too long"),
    ],
)
def test_what_counts_as_the_same(books, new, old, outcome):
    assert books.compared(new, old)[0] == outcome

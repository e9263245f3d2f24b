"""Loads the net to export: from a run's folder, a file of `save_net`, files of a graph, or the name of a zoo's net."""

import json
from pathlib import Path
import re
import tarfile
import tempfile
from typing import Any, Dict, Mapping, NamedTuple, Optional, Tuple
import zipfile

from mxkit.core.blocks import check_net
from mxkit.core.device import unpack
from mxkit.core.graphs import traced_graph
from mxkit.data.source import source_of
from mxkit.errors import MxkitError
from mxkit.exporting.net_graph import graph_of
from mxkit.exporting.symbol_files import GraphPath, graph_files, read_symbol_files, replaced_heads
from mxkit.models.registry import get_model
from mxkit.nets.saving import load_net
from mxkit.recipe.building import batches
from mxkit.recipe.data_checks import load_data
from mxkit.recipe.net_facts import read_facts
from mxkit.recipe.run import open_run
from mxnet import gluon
import numpy as np


class Source(NamedTuple):
    """A net to export, and what is known about its inputs and outputs.

    Attributes:
        net: The net.
        shapes: Shapes of its inputs for one sample; empty if they are not known.
        examples: Arrays for its inputs, as NumPy's; empty if there are none.
        facts: Metadata of the exported file, in JSON: `classes`, `preprocessing`, and `marks`, which says what the
            outputs of detectors, segmentation and pose nets are.
        notes: Changes that loading made, a sentence each.
        compared: The inputs of a comparison, in a sentence.
        epoch: Number of the graph's parameters that were read; None without a graph's files.
    """

    net: Any
    shapes: Tuple[Tuple[int, ...], ...] = ()
    examples: Tuple[Any, ...] = ()
    facts: Dict[str, str] = {}
    notes: Tuple[str, ...] = ()
    compared: Tuple[str, ...] = ()
    epoch: Optional[int] = None


def find_source(source: Any, which: Optional[str] = None, epoch: Optional[int] = None, **names: Any) -> Source:
    """Load the net of `source`.

    Args:
        source: As for `export`.
        which: As for `export`.
        epoch: As for `export`.
        names: `inputs` and `outputs` of `load_exported`, for files of a graph.

    Raises:
        TypeError: `source` is neither a net nor a path.
        FileNotFoundError: There is no such file.
        ValueError: The file holds no net.
        MxkitError: The file is damaged, or the name of a zoo's net is unknown.
    """
    if isinstance(source, (tuple, list)) and len(source) == 2:
        return _of_symbol_files((source[0], source[1]), epoch, names)
    is_net = not isinstance(source, (str, Path))
    if is_net:
        check_net(source)
    text, path = str(source), Path("" if is_net else source).expanduser()
    is_run = not is_net and (path / "recipe.yaml").is_file()
    if which not in (None, "last") and not is_run:
        raise ValueError(f"which: {which!r} is for the folder of a run")
    if is_net:
        return Source(source)
    if text.startswith(("zoo:", "gluoncv:")):
        return Source(get_model(text, weights="pretrained"))
    if is_run:
        return _of_run(path, which)
    if text.endswith((".tar.gz", ".tgz")):
        return _of_archive(path, epoch, names)
    if path.is_file() and zipfile.is_zipfile(path):
        return Source(load_net(path))
    numbered = re.fullmatch(r"(.+)-(\d{4,})\.params", str(path))
    prefix = re.sub(r"-symbol\.json$", "", numbered[1] if numbered else str(path))
    if not Path(f"{prefix}-symbol.json").is_file():
        raise FileNotFoundError(
            f"export: {path}: expected a net, a run's folder, a file of save_net, the common beginning of a graph's "
            "files, a model.tar.gz, or a name like 'zoo:resnet18_v2'; received "
            f"{'something else' if path.exists() else 'none'}. A file .params holds arrays alone: load it into its net "
            "with mxkit.load_parameters, and export the net"
        )
    return _of_symbol_files(Path(prefix), int(numbered[2]) if numbered and epoch is None else epoch, names)


_MARKS: Dict[str, Dict[str, Any]] = {
    "boxes": {
        "outputs": ["class", "score", "left, top, right, bottom"],
        "unit": "pixels of the input",
        "clipped": False,
        "empty": -1,
    },
    "mask": {"outputs": ["scores of the classes for each pixel", "those of the auxiliary head"]},
    "points": {"outputs": ["heat map of each point"]},
}


class _Normalized(gluon.HybridBlock):  # type: ignore[misc]
    """A detector whose boxes are shares of its input's width and height."""

    def __init__(self, net: Any, height: int, width: int) -> None:
        super().__init__(prefix="")
        self.net, self._sides = net, (width, height, width, height)

    def hybrid_forward(self, F: Any, x: Any) -> Tuple[Any, Any, Any]:  # noqa: N803
        classes, scores, boxes = self.net(x)
        sides = enumerate(self._sides)
        columns = [F.slice_axis(boxes, axis=-1, begin=place, end=place + 1) / side for place, side in sides]
        return classes, scores, F.concat(*columns, dim=-1)


def normalized(source: Source, shape: Optional[Tuple[int, ...]]) -> Source:
    """A detector's source whose boxes are shares of the sides of its input.

    Args:
        source: The source.
        shape: Shape of the input; None if it is not known.

    Raises:
        ValueError: The shape is not known, or the net gives something else than classes, scores and boxes.
    """
    if shape is None or len(shape) != 4:
        raise ValueError(
            f"export: boxes='normalized' is for a detector, with an input (1, 3, height, width); received {shape}"
        )
    outputs = graph_of(source.net, [shape]).symbol.list_outputs()
    if len(outputs) != 3:
        raise ValueError(
            "export: boxes='normalized' is for a detector, which gives classes, scores and boxes; "
            f"{type(source.net).__name__} gives {', '.join(outputs)}"
        )
    marks = {"kind": "boxes", **_MARKS["boxes"], "unit": "shares of the input's width and height", "input": shape[2:]}
    net = _Normalized(source.net, *shape[2:])
    return source._replace(net=net, facts={**source.facts, "marks": json.dumps(marks)})


def _of_run(path: Path, which: Optional[str]) -> Source:
    recipe, net, found = open_run(path, which)
    facts = read_facts(path)
    known = {"classes": json.dumps(facts.classes)} if facts.classes else {}
    images, augment = facts.images, recipe.data.model_dump(mode="json").get("eval_augment")
    preprocessing = {"images": None if images is None else images._asdict(), "augment": augment}
    if any(preprocessing.values()):
        known["preprocessing"] = json.dumps(preprocessing)
    shapes = tuple(one.shape for one in facts.known_inputs())
    moves = recipe.loss.made.moves
    if moves is not None:
        known["marks"] = json.dumps({"kind": moves, **_MARKS[moves], "input": shapes[0][2:]})
    try:
        part = recipe.evaluate.split
        inputs, _ = unpack(next(source_of(batches(recipe, load_data(recipe), part)).read(keep_count=True)))
        examples = tuple(np.asarray(one[:4].asnumpy()) for one in inputs)
        compared = f"compared on the first samples of the run's {part} data"
    except (MxkitError, OSError) as error:
        examples = ()
        compared = f"compared on random inputs, because the run's data cannot be read: {str(error)[:200]}"
    notes = (f"the weights are those of {found.path.name}, epoch {found.epoch}",)
    return Source(net, shapes, examples, known, notes=notes, compared=(compared,))


def _of_symbol_files(path: GraphPath, epoch: Optional[int], names: Mapping[str, Any]) -> Source:
    graph, file = graph_files(path, epoch)
    net = read_symbol_files((graph, file), **names)
    inside = traced_graph(net)[1].get_internals().list_outputs()
    text = "the training head {!r} ({}) became {}; its label is no input"
    replaced = replaced_heads(graph.read_text(encoding="utf-8"))
    heads = tuple(text.format(*one) for one in replaced if f"{one[0]}_output" in inside)
    numbered = re.fullmatch(r".+-(\d{4,})\.params", file.name)
    notes = (f"the parameters are those of {file.name}", *heads)
    return Source(net, notes=notes, epoch=int(numbered[1]) if numbered else 0)


def _of_archive(path: Path, epoch: Optional[int], names: Mapping[str, Any]) -> Source:
    """Read the graph and the parameters of an archive like SageMaker's `model.tar.gz`."""
    with tempfile.TemporaryDirectory(prefix="mxkit-") as folder:
        try:
            with tarfile.open(str(path), "r:*") as archive:
                for one in (one for one in archive if one.isfile() and one.name.endswith(("-symbol.json", ".params"))):
                    (Path(folder) / Path(one.name).name).write_bytes(archive.extractfile(one).read())  # type: ignore[union-attr]
        except (tarfile.TarError, EOFError, ValueError) as error:
            raise ValueError(f"export: {path} is damaged, or no archive: {str(error)[:200]}") from error
        graphs = list(Path(folder).glob("*-symbol.json"))
        if len(graphs) != 1:
            received = ", ".join(one.name for one in Path(folder).iterdir()) or "none"
            raise ValueError(f"export: {path}: expected a NAME-symbol.json with NAME-0000.params; received {received}")
        return _of_symbol_files(Path(str(graphs[0])[: -len("-symbol.json")]), epoch, names)

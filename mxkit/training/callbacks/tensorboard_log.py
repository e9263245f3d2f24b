"""Writes a run for TensorBoard."""

from pathlib import Path
import time
from typing import Any, Callable, Dict, List, Mapping, Optional, Union
import warnings

from mxkit.core.arguments import require
from mxkit.core.arrays import to_host
from mxkit.core.blocks import blocks_by_path, parameters_by_path
from mxkit.core.graph import Graph
from mxkit.core.graphs import traced_graph
from mxkit.core.replicas import values_of
from mxkit.plots.plotting import new_figure
from mxkit.training.callbacks.run_log import Numbers, RunLog
from mxkit.training.history import Row
from mxkit.training.state import FitState
import numpy as np

# Files of a run that TensorBoard shows as text, with their languages.
_TEXTS = {"recipe.yaml": "yaml", "environment.json": "json"}


class TensorBoardLog(RunLog):
    """Write a run for TensorBoard: the history over epochs, the updates, settings, graph, figures and histograms.

    It needs the package tensorboardX. The numbers of updates are in the folder `updates` inside `folder`, because they
    have another axis. A hybridized net's graph is written after the first epoch. A confusion matrix among the metrics
    is drawn after each epoch. A recipe adds its text, its environment and the final scores. A resumed run continues in
    the same folder, and hides the numbers that a killed run wrote after its checkpoint.

    Args:
        folder: Folder of one run; `fit` makes it.
        updates: Also write the loss, the learning rate and (with `clip_norm`) the gradient's norm of each update, once
            `fit` has read them.
        histograms: Write the distribution of each parameter after each epoch, for which it is copied to the host.
        figures: Functions of the state of `fit` that return a matplotlib figure, by name; called after each epoch.

    Raises:
        ImportError: When `fit` begins: tensorboardX is not installed.

    >>> log = TensorBoardLog("runs/lenet", figures={"filters": lambda state: mxkit.plots.plot_filters(state.net, "0")})
    """

    def __init__(
        self,
        folder: Union[str, Path],
        *,
        updates: bool = True,
        histograms: bool = False,
        figures: Optional[Mapping[str, Callable[[FitState], Any]]] = None,
    ) -> None:
        super().__init__(updates)
        self.folder, self.histograms, self.figures = Path(folder), histograms, dict(figures or {})
        self._writer: Any = None
        self._of_updates: Any = None
        self._session_end: Any = None
        self._drawn = False

    def begin(self, state: FitState, settings: Mapping[str, Any]) -> None:
        summary = require("tensorboardX.summary", "tensorboard")
        writer = require("tensorboardX", "tensorboard").SummaryWriter
        if not state.updates and any(self.folder.glob("events.out.tfevents.*")):
            warnings.warn(
                f"TensorBoardLog: {self.folder} has the log of an earlier run, and TensorBoard will draw both as one: "
                "choose another folder, or remove this one",
                stacklevel=2,
            )
        # a unique name: tensorboardX would overwrite the file of a run that began in the same second
        suffix = f".{state.updates:08}.{time.time_ns() % 10**9:09}"
        epoch = state.epoch if state.epoch > 1 else None
        self._writer = writer(logdir=str(self.folder), purge_step=epoch, filename_suffix=suffix)
        if self.updates:
            step = state.updates + 1 if state.updates else None
            self._of_updates = writer(logdir=str(self.folder / "updates"), purge_step=step, filename_suffix=suffix)
        scalars = {name: 0.0 for name in state.columns if name.startswith(("train_", "valid_"))}
        experiment, session, self._session_end = summary.hparams(
            {name: one if isinstance(one, (bool, int, float)) else str(one) for name, one in settings.items()}, scalars
        )
        for part in (experiment, session):
            self._writer.file_writer.add_summary(part)
        self._drawn = False

    def write(self, rows: List[Numbers], *, of_updates: bool) -> None:
        writer = self._of_updates if of_updates else self._writer
        for step, numbers in rows:
            for name, value in numbers.items():
                writer.add_scalar(name, value, step)

    def on_epoch(self, state: FitState, row: Row) -> None:
        super().on_epoch(state, row)
        epoch = row["epoch"]
        if not self._drawn:
            self._drawn = _write_graph(self._writer.file_writer, state.net)
        for path, parameter in parameters_by_path(state.net).items() if self.histograms else ():
            values = [np.asarray(to_host(one), dtype="float64") for one in (values_of(parameter) or ())[:1]]
            finite = [one[np.isfinite(one)] for one in values]
            if finite and finite[0].size:
                self._writer.add_histogram(path.replace(".", "/"), finite[0], epoch)
        for name, value in row.items():
            if np.ndim(value) == 2:
                self._writer.add_figure(name, _matrix(value), epoch)
        for name, function in self.figures.items():
            self._writer.add_figure(name, function(state), epoch)
        for writer in self._writers():
            writer.flush()

    def _writers(self) -> List[Any]:
        return [one for one in (self._writer, self._of_updates) if one is not None]

    def attach(self, file: Path, folder: Path) -> None:
        if file.name in _TEXTS and file.parent == folder:
            text = file.read_text(encoding="utf-8")
            self._writer.add_text(file.name, f"```{_TEXTS[file.name]}\n{text}\n```", self._reached[0])

    def end(self, error: Optional[BaseException]) -> None:
        if error is None:
            self._writer.file_writer.add_summary(self._session_end)
        for writer in self._writers():
            writer.close()
        self._writer = self._of_updates = None


def _matrix(values: Any) -> Any:
    figure = new_figure()
    axes = figure.subplots()
    shown = axes.imshow(np.asarray(values, dtype="float64"), cmap="Blues")
    axes.set(xlabel="predicted", ylabel="true")
    figure.colorbar(shown)
    return figure


def _write_graph(writer: Any, net: Any) -> bool:
    """Write the graph of a hybridized net, with a scope for each block; return False if it was not traced."""
    traced = traced_graph(net)
    if not traced:
        return False
    from tensorboardX.proto.attr_value_pb2 import AttrValue
    from tensorboardX.proto.graph_pb2 import GraphDef
    from tensorboardX.proto.node_def_pb2 import NodeDef

    scopes = {block.prefix: path.replace(".", "/") for path, block in blocks_by_path(net) if block.prefix}
    nodes = Graph.of(traced[1]).nodes
    names: Dict[str, int] = {}
    for number, node in enumerate(nodes):
        name = _scoped(node.name, scopes)
        names[f"{name}_{number}" if name in names else name] = number
    by_number = list(names)
    written = [
        NodeDef(
            name=name,
            op="Variable" if node.is_variable else node.operator,
            input=[by_number[one.node] for one in node.inputs],
            attr={key: AttrValue(s=str(value).encode()) for key, value in node.attrs.items()},
        )
        for name, node in zip(by_number, nodes)
    ]
    writer.add_onnx_graph(GraphDef(node=written))  # adds any graph, without the times that `add_graph` wants
    return True


def _scoped(name: str, scopes: Mapping[str, str]) -> str:
    """The path of the block that made an operator, and the rest of the operator's name.

    >>> _scoped("net0_dense1_fwd", {"net0_": "", "net0_dense1_": "features/1"})
    'features/1/fwd'
    """
    prefix = max((one for one in scopes if name.startswith(one)), key=len, default="")
    scope = scopes.get(prefix, "")
    return f"{scope}/{name[len(prefix) :]}" if scope else name[len(prefix) :]

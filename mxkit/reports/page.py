"""An HTML page of a run, or of several runs compared: one file, without network and scripts."""

from contextlib import suppress
import math
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Union

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from mxkit.core.system import write_atomically
from mxkit.errors import RecipeError
from mxkit.recipe.folder import is_number
from mxkit.recipe.reading import as_yaml
from mxkit.recipe.schema import Recipe
from mxkit.reports.comparing import COLOURS, compared_scores, panels, recipe_differences
from mxkit.reports.marks import MarkedPart
from mxkit.reports.predictions import inspect_run
from mxkit.reports.run_files import RunFiles, duration, read_run
from mxkit.storage.directory import list_checkpoints
from mxkit.training.history import fixed
from mxkit.version import __version__
import numpy as np
from pydantic import ValidationError

_LOG_LINES = 40
# A matrix of more classes is wider than a screen; the page then lists the most frequent confusions.
_MATRIX_CLASSES = 30
_CONFUSED_PAIRS = 20

PathLike = Union[str, Path]


def write_report(runs: Sequence[PathLike], out: Optional[PathLike] = None) -> Path:
    """Write a page that shows a run, or compares several.

    It holds the final scores, the recipe, curves, metrics, throughput, confusion matrix and worst mistakes, the table
    of layers, the environment of the run, its checkpoints and the end of its log. The net is built and the data read
    for the matrix, the mistakes and the layers; if one of them is missing, the page has the reason.

    Args:
        runs: Folders of runs.
        out: The file, or a folder for the file `report.html`. None is the run's folder; for several runs the current
            folder.

    Returns:
        The file.

    Raises:
        RecipeError: `runs` is empty, or a folder does not exist or has no readable recipe.yaml.
        OSError: The file cannot be written.

    Side effects:
        Those of `inspect_run`. Missing folders of `out` are made.
    """
    read = [read_run(path) for path in runs]
    if not read:
        raise RecipeError("report: expected at least one folder of a run")
    for run in read:
        if not run.recipe:
            raise RecipeError(f"{run.path} is no folder of a run: {'; '.join(run.problems)}")
    file = Path(out) if out is not None else (read[0].path if len(read) == 1 else Path()) / "report.html"
    file = file / "report.html" if file.is_dir() else file
    content = render(read)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, content.encode())
    return file


def render(runs: Sequence[RunFiles]) -> str:
    """The page as HTML; jinja2 escapes all texts of users and files."""
    environment = Environment(
        loader=FileSystemLoader(str(Path(__file__).parent)),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(number=number, duration=duration, share=share)
    several = len(runs) > 1
    return environment.get_template("page.html").render(
        runs=[_run_view(run) for run in runs],
        several=several,
        title="Runs compared: " + ", ".join(run.name for run in runs) if several else runs[0].name,
        panels=panels(runs) if several else [],
        scores=compared_scores(runs) if several else [],
        differences=recipe_differences(runs) if several else [],
        colours=[COLOURS[place % len(COLOURS)] for place in range(len(runs))],
        version=__version__,
    )


def _run_view(run: RunFiles) -> Dict[str, Any]:
    inspection = inspect_run(run)
    folder = run.path / "checkpoints"
    rows = [{name: one for name, one in row.items() if one is None or is_number(one)} for row in run.rows]
    return {
        "run": run,
        "state": run.state,
        "description": str(run.recipe.get("description") or ""),
        "scores": {name: one for name, one in run.final.items() if is_number(one)},
        "changed": _changed(run),
        "panels": panels([run]),
        "columns": list(dict.fromkeys(name for row in rows for name in row)),
        "rows": rows,
        "samples": sum(row["samples"] for row in rows if is_number(row.get("samples"))),
        "predictions": inspection.predictions and _predictions_view(inspection.predictions, inspection.pictures),
        "layers": inspection.layers,
        "missing": {"pictures": "", **inspection.missing},
        "workers": _workers(run.workers),
        "checkpoints": list_checkpoints(folder) if folder.is_dir() else [],
        "log": run.log[-_LOG_LINES:],
    }


def _changed(run: RunFiles) -> Optional[str]:
    """The values of the recipe that differ from the defaults, as YAML; None if this mxkit refuses the recipe."""
    try:
        recipe = Recipe.model_validate(run.recipe)
    except ValidationError:
        return None
    return as_yaml(recipe.model_dump(exclude_defaults=True))


def _workers(epochs: Sequence[Dict[str, Any]]) -> List[Dict[str, Any]]:
    """Sums over the epochs for each worker; none if the file has another form."""
    rows: List[Dict[str, Any]] = []
    with suppress(KeyError, TypeError):
        seconds = sum(epoch["seconds"] for epoch in epochs) or math.nan
        for parts in zip(*(epoch["workers"] for epoch in epochs)):
            samples, waited = (sum(part[name] for part in parts) for name in ("samples", "waited"))
            measured = sorted(part["sums"] for part in parts if part["sums"] is not None)
            row = {"host": str(parts[-1]["host"]), "samples": samples, "rate": samples / seconds}
            sums = measured[len(measured) // 2] if measured else None
            rows.append({**row, "waited": waited / seconds, "sums": sums})
    return rows


def _predictions_view(predictions: Any, images: Sequence[str]) -> Dict[str, Any]:
    if isinstance(predictions, MarkedPart):
        pairs = zip(predictions.worst, images[::2], images[1::2])
        worst = [
            {"number": one.number, "text": one.text, "truth": truth, "answer": answer} for one, truth, answer in pairs
        ]
        confused = _matrix_view(predictions.matrix, predictions.classes)
        return {**predictions._asdict(), "worst": worst, "confusion": confused}
    matrix, classes = predictions.matrix, predictions.classes
    if matrix.ndim == 3:
        return {"split": predictions.split, "labels": list(zip(classes, matrix.tolist()))}
    found = predictions.mistakes or []
    mistakes = [
        {**one._asdict(), "truth": classes[one.truth], "guess": classes[one.guess], "image": image}
        for one, image in zip(found, images or [""] * len(found))
    ]
    shown = {"split": predictions.split, "mistakes": None if predictions.mistakes is None else mistakes}
    return {**shown, **_matrix_view(matrix, classes)}


def _matrix_view(matrix: Any, classes: Sequence[str]) -> Dict[str, Any]:
    """A confusion matrix for the page; of boxes it has a last row and column for nothing."""
    if matrix is None:
        return {}
    lone = len(matrix) - len(classes)
    truths, guesses = [*classes, *["nothing there"] * lone], [*classes, *["missed"] * lone]
    totals, right = matrix.sum(axis=1), matrix.diagonal()
    with np.errstate(invalid="ignore"):  # 0 of 0 is NaN, which `share` writes as a dash
        recall, precision, shades = right / totals, right / matrix.sum(axis=0), 0.75 * np.sqrt(matrix.T / totals).T
    recall[len(classes) :] = precision[len(classes) :] = np.nan
    confused = sorted((-int(matrix[i, j]), i, j) for i, j in zip(*matrix.nonzero()) if i != j)
    rows = zip(truths, matrix.tolist(), np.nan_to_num(shades), recall)
    return {
        "classes": guesses,
        "samples": int(matrix[: len(classes)].sum()),
        "right": int(right.sum()),
        "as_matrix": len(classes) <= _MATRIX_CLASSES,
        "rows": [dict(zip(("name", "counts", "shades", "recall"), row)) for row in rows],
        "precision": precision,
        "pairs": [(truths[i], guesses[j], -count, -count / totals[i]) for count, i, j in confused[:_CONFUSED_PAIRS]],
    }


def number(value: Any) -> str:
    """Format a number for a table.

    >>> number(0.90541), number(1.5e-05), number(1354), number(float("nan")), number(None)
    ('0.9054', '1.5e-05', '1,354', 'nan', '')
    """
    if value is None:
        return ""
    size = abs(value)
    if isinstance(value, int) or size >= 1e4:
        return f"{value:,.0f}"
    if 0 < size < 0.01:
        return f"{value:.3g}"
    return f"{value:.1f}" if size >= 100 else fixed(value)


def share(value: float) -> str:
    """Format a share of 1 with two digits; NaN is a dash."""
    return "-" if math.isnan(value) else f"{value:.2f}"

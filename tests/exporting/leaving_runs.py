"""Runs that leave for PyTorch, and the proof of their files after an edit."""

import shutil

import mxkit
from mxkit.exporting.trainings import detectors, leaving
from mxkit.exporting.trainings.data_file import data_of
from mxkit.exporting.trainings.proving import Beside, prove
from mxkit.exporting.trainings.recording import example_of, record
from mxkit.recipe.data_checks import load_data
from mxkit.recipe.run import open_run
import numpy as np
from sharing import no_curves


def killed_run(recipe, home):
    """The folder of a run as a process leaves it that is killed after its first checkpoint."""
    with no_curves():
        folder = mxkit.run_recipe(recipe, output=home, progress=False).folder
    for later in sorted((folder / "checkpoints").glob("step-*"))[1:]:
        shutil.rmtree(later)
    return folder


def prover(run, folder, updates, start=False):
    """A function that proves the files of a run after an edit, and returns rows that are too far apart."""
    recipe, _, checkpoint = open_run(run, "last")
    data = load_data(recipe)
    recording = record(recipe, data, folder / "mxnet", updates, None if start else checkpoint)
    detector = recipe.loss.name in detectors.LOSSES
    beside = Beside(recording.state.net, *example_of(recipe, data), detector=detector)
    contents = leaving._contents(recipe, data_of(recipe, data), recording, beside)

    def rows(*edits):
        changed = dict(contents)
        for file, before, after in edits:
            assert before in changed[file]
            changed[file] = changed[file].replace(before, after)
        leaving._write(folder, changed)
        compared, losses = prove(recipe, data, recording, beside, folder)
        assert edits or np.allclose(losses, recording.losses, rtol=1e-3)
        return [row for row in compared if not row.relative <= leaving.TOLERANCE]

    return rows

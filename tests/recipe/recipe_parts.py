"""Recipes that several tests change, and what their runs end with."""

import json

from mxkit.errors import RecipeError
from mxkit.recipe.predictions import describe_prediction, predictions
from mxkit.recipe.reading import load_recipe
from mxkit.recipe.run import load_run, prepare
import numpy as np
from sharing import text_of

RESUMED = """
name: small
seed: 3
data: {name: digits, batch_size: 64}
model: {name: mlp, classes: 10, hidden: [32], dropout: 0.3}
loss: softmax_ce
optimizer: {name: adam, learning_rate: 0.01}
epochs: 4
metrics: [accuracy]
checkpoints: {every: 16 updates, keep_last: 2, keep_best: [valid_accuracy, max]}
"""
SMALL = {
    "name": "small",
    "data": {"name": "digits", "batch_size": 64},
    "model": {"name": "mlp", "hidden": [16]},
    "loss": "softmax_ce",
    "optimizer": {"name": "sgd", "learning_rate": 0.1},
    "updates": 4,
    "metrics": ["accuracy"],
}
STEPS = ["to_tensor", {"name": "normalize", "mean": 0.2, "std": 0.4}]
# has nearly every key
RICH = {
    "name": "rich",
    "description": 'says "a lot"',
    "seed": 5,
    "devices": "cpu:2",
    "threads": 1,
    "arrays": "np",
    "data": {
        "name": "digits",
        "size": 16,
        "batch_size": 100,
        "drop_last": True,
        "augment": [{"name": "crop", "size": 16, "padding": 2}, *STEPS],
        "eval_augment": STEPS,
    },
    "model": {"name": "lenet", "classes": 10},
    "initializer": {"name": "normal", "sigma": 0.1},
    "freeze": ["0.*"],
    "loss": {"name": "label_smoothing", "epsilon": 0.1},
    "optimizer": {
        "name": "sgd",
        "learning_rate": 0.05,
        "momentum": 0.9,
        "multipliers": {"2.*": {"lr": 0.5}},
        "no_weight_decay": True,
        "wd": 0.001,
    },
    "schedule": {"name": "cosine", "warmup": "2 updates"},
    "updates": 20,
    "clip_norm": 1.0,
    "validate_every": 2,
    "compression": {"type": "2bit", "threshold": 0.01},
    "callbacks": [
        {"name": "early_stopping", "monitor": "valid_loss", "mode": "min", "patience": 3},
        {"name": "ema", "decay": 0.9},
        {"name": "csv", "path": "rows.csv"},
    ],
    "checkpoints": {"every": "16 updates", "keep_best": ["valid_accuracy", "max"]},
    "metrics": ["accuracy", {"name": "top_k", "k": 3}],
    "evaluate": {"split": "test", "which": "best", "metrics": ["accuracy", "f1"]},
}


def refusal(recipe, *overrides, check=load_recipe):
    """Text of the error that refuses a recipe; `check=prepared` also loads its data and makes its net."""
    return text_of(RecipeError, check, recipe, overrides)


def prepared(recipe, overrides=()):
    return prepare(load_recipe(recipe, overrides))


def values(run):
    _, net = load_run(run)
    return np.concatenate([p.data().asnumpy().ravel() for p in net._collect_params_with_prefix().values()])


def rows(run):
    found = json.loads((run / "history.json").read_text())["epochs"]
    return [{name: value for name, value in row.items() if "second" not in name} for row in found]


def answers(recipe, classes, scores):
    """The text of each prediction, as `mxkit predict` prints it."""
    return [describe_prediction(one) for one in predictions(recipe, classes, scores)]

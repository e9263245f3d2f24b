"""What of a training has no PyTorch code, and what to write instead."""

from typing import Any, Dict, List, NamedTuple, Sequence

from mxkit.data.splits import Split
from mxkit.errors import ExportError
from mxkit.exporting.to_torch.operators import Problem
from mxkit.exporting.trainings import texts
from mxkit.exporting.trainings.optimizers import rule_of
from mxkit.losses.named_losses import get_batch_loss
from mxkit.recipe.building import is_loader
from mxkit.recipe.schema import Recipe
import mxnet as mx

# They watch the training, and change nothing of it.
_WATCHING = ("csv", "mlflow", "tensorboard", "time_limit", "wandb")
_LOADERS = "write `loaders` of data.py, with a torch Dataset"


class Missing(NamedTuple):
    """A part of a training without PyTorch code.

    Attributes:
        part: What raises NotImplementedError for it: "loss", "optimizer", "net", "data" or "callbacks"; "" for what
            `train.py` leaves out.
        name: What it is, like "loss focal".
        instead: What to do instead.
    """

    part: str
    name: str
    instead: str

    def __str__(self) -> str:
        return f"{self.name}: {self.instead}"


def missing_parts(recipe: Recipe, data: Any) -> List[Missing]:
    """All of a recipe that has no PyTorch code, but operators of its net."""
    found = []
    loss, arguments = str(recipe.loss.name), recipe.loss.arguments
    if texts.loss_text(loss, arguments) is None:
        name = " with ".join(filter(None, (f"loss {loss}", ", ".join(arguments))))
        found.append(Missing("loss", name, "write `losses`, one value for each sample, with torch"))
    try:
        rule_of(mx.optimizer.create(recipe.optimizer.name, **recipe.optimizer.arguments))
    except KeyError as error:
        found.append(Missing("optimizer", f"optimizer {error.args[0]}", "write the `step` of its class, with torch"))
    found += [Missing("data", one, _LOADERS) for one in _problems_of_data(recipe, data)]
    if recipe.limit_batches:
        found.append(Missing("data", "limit_batches", _LOADERS))
    if recipe.amp:
        found.append(Missing("", f"amp {recipe.amp}", "train.py takes --amp bfloat16, and else computes in float32"))
    names = [one.name for one in recipe.callbacks]
    others = [one for one in names if one not in (*_WATCHING, "ema")] + ["ema"] * (names.count("ema") > 1)
    return found + [Missing("callbacks", f"callback {one}", "write it in `after_epoch`") for one in others]


def _problems_of_data(recipe: Recipe, data: Any) -> List[str]:
    parts = [part for part in (data.train, data.valid, data.test) if part is not None]
    several = any(isinstance(one, tuple) for part in parts if isinstance(part, Split) for one in (part.x, part.y))
    loaders = [type(part).__name__ for part in parts if is_loader(part)]
    values = {
        f"data {recipe.data.name}, which has several arrays": several,
        f"data {recipe.data.name}, whose batches a {''.join(loaders[:1])} makes": loaders,
        "data.augment": recipe.data.augment,
        "data.pairs": recipe.data.pairs,
    }
    return [name for name, value in values.items() if value]


def of_net(problems: List[Problem]) -> List[Missing]:
    """Operators of a net without an equivalent."""
    return [Missing("net", f"operator {one.operator} in {one.path or 'the net'}", one.reason) for one in problems]


def refuse(name: str, missing: List[Missing]) -> None:
    """Raise ExportError with all that has no code."""
    if missing:
        raise ExportError(
            f"export: the training of {name} holds what mxkit has no PyTorch code for: {'; '.join(map(str, missing))}. "
            "partial=True (--partial) writes the rest, which raises NotImplementedError there. Without training= the "
            "net alone is written"
        )


def marked_texts(recipe: Recipe, missing: Sequence[Missing]) -> Dict[str, str]:
    """What stands in `train.py` and `data.py` for missing parts: bodies that raise NotImplementedError, and notes.

    Returns:
        "unwritten", the end of the docstring; "loss" and "data", bodies of functions; "after", the function
        `after_epoch`, and "after_epoch", its call. Empty texts where nothing is missing.
    """
    lines = "".join(f"- {one}\n" for one in missing)
    callbacks = [one for one in recipe.callbacks if one.name not in _WATCHING and one.name != "ema"]
    loss = get_batch_loss(recipe.loss.made)
    sources = {
        "loss": texts.source_of(loss.user_forward or loss.loss),
        "callbacks": "\n".join(texts.source_of(one.made) or repr(one) for one in callbacks),
    }
    texts_of = {
        part: texts.indented(texts.unwritten("; ".join(found), sources.get(part, "")))
        for part in ("loss", "data", "callbacks")
        for found in [[str(one) for one in missing if one.part == part]]
        if found
    }
    after = texts_of.get("callbacks")
    return {
        "unwritten": f"\nNot written:\n{lines}" if missing else "",
        "loss": texts_of.get("loss", ""),
        "data": texts_of.get("data", ""),
        "after": texts.AFTER_EPOCH.substitute(body=after) if after else "",
        "after_epoch": "        after_epoch(state, net, optimizer)\n" if after else "",
    }

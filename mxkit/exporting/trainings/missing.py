"""What of a training has no PyTorch code, and what to write instead."""

from textwrap import indent
from typing import Any, Dict, List, NamedTuple, Sequence

from mxkit.errors import ExportError
from mxkit.exporting.to_torch.operators import Problem
from mxkit.exporting.trainings.data_file import problems_of
from mxkit.exporting.trainings.optimizers import rule_of
from mxkit.exporting.trainings.texts import loss_text, source_of, unwritten
from mxkit.losses.named_losses import get_batch_loss
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
    if loss_text(loss, arguments) is None:
        name = " with ".join(filter(None, (f"loss {loss}", ", ".join(arguments))))
        found.append(Missing("loss", name, "write `losses`, one value for each sample, with torch"))
    optimizer = mx.optimizer.create(recipe.optimizer.name, **recipe.optimizer.arguments)
    try:
        if optimizer.rescale_grad != 1:  # of a running Trainer it is one over the samples, too
            raise KeyError(f"{recipe.optimizer.name} with rescale_grad")
        rule_of(optimizer)
    except KeyError as error:
        found.append(Missing("optimizer", f"optimizer {error.args[0]}", "write the `step` of its class, with torch"))
    problems = [*problems_of(recipe, data), *["limit_batches"] * bool(recipe.limit_batches)]
    found += [Missing("data", one, _LOADERS) for one in problems]
    if recipe.amp:
        found.append(Missing("", f"amp {recipe.amp}", "train.py takes --amp bfloat16, and else computes in float32"))
    names = [one.name for one in recipe.callbacks]
    others = [one for one in names if one not in (*_WATCHING, "ema")] + ["ema"] * (names.count("ema") > 1)
    return found + [Missing("callbacks", f"callback {one}", "write it in `after_epoch`") for one in others]


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


def marked_bodies(recipe: Recipe, missing: Sequence[Missing]) -> Dict[str, str]:
    """By part, the body of the function that stands for what is missing: MXNet's code as a comment, and an error."""
    loss = get_batch_loss(recipe.loss.made)
    made = {"loss": [loss.user_forward or loss.loss], "callbacks": [one.made for one in recipe.callbacks]}
    said: Dict[str, List[str]] = {}
    for one in missing:
        said.setdefault(one.part, []).append(str(one))
    sources = {part: "\n".join(map(source_of, made.get(part, ()))) for part in said}
    return {part: indent(unwritten("; ".join(own), sources[part]), "    ") for part, own in said.items()}

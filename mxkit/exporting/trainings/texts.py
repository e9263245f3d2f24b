"""The files of a training in PyTorch: `train.py`, `data.py` and `README.md`, as templates that read like the files."""

import ast
import inspect
import json
import math
from pathlib import Path
import re
from string import Template
from textwrap import dedent, indent
from typing import Any, Mapping, Optional

from mxkit.core.loss_meanings import CLASSES, Task
from mxkit.exporting.trainings import detectors
from mxkit.training.schedules import RISE, START_DIVISOR, updates_of
import numpy as np


def template(name: str) -> str:
    """The text of a template beside this module, for `filled`."""
    return (Path(__file__).parent / f"{name}.template").read_text(encoding="utf-8")


_LOGITS = "F.binary_cross_entropy_with_logits(output"
_REST = "flatten(1).mean(1)"
_RESIZED = """if one.shape[2:] != label.shape[1:]:
    one = F.interpolate(one, label.shape[1:], mode="bilinear", align_corners=True)
"""
_SAME = "label = label.reshape(output.shape).float()\n"
_CLASS = "label.flatten().long()"
_CROSS_ENTROPY = f'F.cross_entropy(output, {_CLASS}, reduction="none"'
LOSSES: Mapping[str, str] = {
    **{name: template(f"{name}.py").rstrip("\n") for name in detectors.LOSSES},
    "contrastive": """a, b = output
squared, same = ((a - b) ** 2).sum(1), label.flatten() > 0
return torch.where(same, squared, F.relu($margin - (squared + 1e-12).sqrt()) ** 2)""",
    "focal": f"""log = -{_CROSS_ENTROPY})
return -((-torch.expm1(log)).clamp(min=1e-12) ** $gamma) * log""",
    "hinge": f"{_SAME}return F.relu($margin - output * label).{_REST}",
    "huber": f"""{_SAME}apart = (output - label).abs()
return torch.where(apart > $rho, apart - $rho / 2, apart.square() / (2 * $rho)).{_REST}""",
    "l1": f"{_SAME}return (output - label).abs().{_REST}",
    "l2": f"{_SAME}return (output - label).square().{_REST} / 2",
    "label_smoothing": f"return {_CROSS_ENTROPY}, label_smoothing=$epsilon)",
    "logistic": f'{_SAME}return {_LOGITS}, (label + 1) / 2, reduction="none").{_REST}',
    "pixel_ce": f"""outputs = output if isinstance(output, tuple) else (output,)
total = torch.zeros(len(label), dtype=outputs[0].dtype, device=label.device)
for one, weight in zip(outputs, $weights):
{indent(_RESIZED, "    ")}    pixels = F.cross_entropy(one, label.long(), ignore_index=-1, reduction="none")
    total = total + weight * pixels.sum((1, 2))
return total""",
    "pose": """rows, columns = output.shape[2:]
sigma = $sigma
bells = []
for axis, cells in ((0, columns), (1, rows)):
    centre = (label[:, :, axis] * $scale + 0.5).floor()
    away = torch.arange(cells, device=label.device) - centre[:, :, None]
    bells.append((-away.square() / (2 * sigma**2)).exp() * (away.abs() <= 3 * sigma))
target = bells[1][:, :, :, None] * bells[0][:, :, None]
known = (label[:, :, 2] > 0)[:, :, None, None]
return ((output - target).square() * known).mean((1, 2, 3)) / 2""",
    "sigmoid_bce": f'{_SAME}return {_LOGITS}, label, reduction="none").{_REST}',
    "softmax_ce": f"return {_CROSS_ENTROPY})",
    "squared_hinge": f"{_SAME}return F.relu($margin - output * label).square().{_REST}",
}
# MXNet's, or None where `leaving` takes the value from the net
_DEFAULTS = {"gamma": 2.0, "margin": 1.0, "rho": 1.0, "epsilon": 0.1, **dict.fromkeys(("weights", "sigma", "scale"))}
_DEFAULTS.update(negatives=3.0, iou=0.5, box_weight=1.0, size_weight=0.1, offset_weight=1.0)
_DEFAULTS.update(samples=256)
_DEFAULTS.update(dict.fromkeys(("size", "layers", "ignored")))
_WEIGHTED_BCE = Template(f"""{_SAME}weights, positive = $zero + $more * label, output.new_tensor($positive)
loss = {_LOGITS}, label, weights, reduction="none", pos_weight=positive)
return loss.{_REST}""")
PIXEL_ACCURACY = f"""one = output[0] if isinstance(output, tuple) else output
{_RESIZED}return ((one.argmax(1) == label) & (label >= 0)).sum().item()"""
_COUNT = Template('''

def count(label: torch.Tensor) -> int:
    """The $what."""
    return int(($label >= 0).sum())
''')
# What a batch adds to the divisor of a loss that does not count samples
COUNTS = dict.fromkeys(("centernet", "ssd"), _COUNT.substitute(what="objects", label="label[:, :, 4]"))
COUNTS["pixel_ce"] = _COUNT.substitute(what="pixels with a label", label="label")


def filled(text: str, **values: Any) -> str:
    """A template with values. Three forms stand if a value is not empty or 0, with `!NAME` if it is.

    They are `?NAME{...}`, a line that begins with `?NAME `, and the lines between `?if NAME` and `?end`.
    """

    def kept(part: Any) -> str:
        return str(part[3]) if bool(values[part[2]]) != bool(part[1]) else ""

    count = 1
    while count:  # the innermost first
        text, count = re.subn(r"(?m)^\?if (!?)(\w+)\n((?:(?!\?if ).*\n)*?)\?end\n", kept, text)
    text = re.sub(r"(?s)\?(!?)(\w+)\{(.*?)\}", kept, text)
    return Template(re.sub(r"(?m)^\?(!?)(\w+) ?(.*\n)", kept, text)).substitute(values)


def tidied(text: str) -> str:
    """The text of a program without imports that it does not use, its constants together."""
    text = re.sub(r"\n{4,}", "\n\n\n", text)
    text = re.sub(r"(?m)^([^\s@].* = .*\n)\n\n(?=(#.*\n)*\w+ = )", r"\1", text)
    used = {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}

    def kept(line: Any) -> str:
        names = [one for one in line[2].split(", ") if one.split(" ")[-1] in used]
        return f"{line[1]}{', '.join(names)}\n" if names else ""

    return re.sub(r"(?m)^(import |from .* import )(.*)\n", kept, text)


def unwritten(what: str, source: str = "") -> str:
    """Lines of a function's body for what has no code here, with the Python code of the MXNet run as a comment."""
    lines = [f"# {line}".rstrip() for line in source.splitlines()]
    return "\n".join([*lines, f"raise NotImplementedError({json.dumps(what)})"])


def source_of(made: Any) -> str:
    """The Python code with which a user's loss, optimizer or callback computes; empty if it cannot be read."""
    kind = type(made)
    names = ("_update_impl", "update", "_losses", "hybrid_forward", "forward", "__call__")
    own = [vars(kind)[name] for name in names if name in vars(kind)]
    own += [] if kind.__module__.startswith(("mxkit.", "mxnet.", "builtins")) else [kind]
    code: Any = made if inspect.isroutine(made) else next(iter(own), None)
    try:
        return dedent(inspect.getsource(code))
    except (OSError, TypeError):  # no file, as of a class of a notebook
        return ""


def loss_text(name: str, arguments: Mapping[str, Any], weighted: bool = False, axes: int = 2) -> Optional[str]:
    """The body of `losses`; None if the loss has no code.

    Args:
        name: The loss.
        arguments: Of it.
        weighted: Whether `losses` takes weights of samples.
        axes: Number of axes of the output: each of more than two has positions.
    """
    own, text = dict(arguments), LOSSES.get(name, "")
    classes, scale = own.pop("class_weight", None), own.pop("weight", None)
    by_name = isinstance(classes, Mapping)
    weights = {int(key): float(one) for key, one in (classes.items() if by_name else enumerate(classes or ()))}
    if classes is not None and _CLASS in text:
        values = f"output.new_tensor({list(weights.values())})"
        values = f"output.new_ones(output.shape[1])\nweights[{list(weights)}] = {values}" if by_name else values
        text = f"label = {_CLASS}\nweights = {values}\n{text.replace(_CLASS, 'label')} * weights[label]"
    elif name == "sigmoid_bce" and (classes is not None or own.get("pos_weight") is not None):
        zero, one = (weights.get(key, 1.0) for key in (0, 1))
        positive = np.ravel(own.pop("pos_weight", None) or 1.0).astype(float).tolist()
        text = _WEIGHTED_BCE.substitute(zero=zero, more=one - zero, positive=positive)
    elif classes is not None:
        return None
    axis = own.pop("axis", -1) if _CLASS in text else -1
    if axis not in (1, -1):
        return None
    if _CLASS in text and axes > 2:
        moved = "" if axis == 1 else "output = output.movedim(-1, 1)  # cross_entropy reads classes there\n"
        text = moved + text.replace(_CLASS, "label.reshape_as(output[:, 0]).long()").replace("return ", "loss = ")
        text += "\nreturn loss.flatten(1).mean(1)"
    if not text or set(own) - {*re.findall(r"\$(\w+)", text), "aux_weight"}:
        return None
    text = Template(text).substitute({**_DEFAULTS, **own})
    text += ("" if scale is None else f" * {float(scale)!r}") + (" * weight.flatten()" if weighted else "")
    return indent(text, "    ")


def accuracy_text(task: Task, axes: int) -> str:
    """The body of `accuracy` of an output with so many axes."""
    if task.kind == CLASSES and axes == 2:
        return "return (output.argmax(1) == label.flatten()).sum().item()"
    labels = "label.reshape(output.shape) > 0.5"
    right = f"(output > {task.threshold!r}) == ({labels})"
    if task.kind == CLASSES:
        right = f"output.argmax({task.axis})\nright = right == label.reshape(right.shape)"
    return f"right = {right}\nreturn right.flatten(1).float().mean(1).sum().item()"


def metric_text(bodies: Mapping[str, str]) -> str:
    """Functions of the metrics, of their bodies by name, and the list METRICS."""
    head = 'def {}(output: torch.Tensor, label: torch.Tensor) -> float:\n    """The sum over the samples."""\n'
    functions = [f"{head.format(name)}{indent(body, '    ')}\n\n\n" for name, body in bodies.items()]
    return f"{''.join(functions)}METRICS: list = [{', '.join(bodies)}]"


def rate_text(schedule: Any, per_epoch: int) -> str:
    """The body of `rate` of a `Schedule` that has its base and its end."""
    name, base, final = schedule.name, float(schedule.base), float(schedule.final)
    warm, total, every = (
        updates_of(one, per_epoch) if one else 0 for one in (schedule.warmup, schedule.total, schedule.every)
    )
    moments = [updates_of(one, per_epoch) for one in schedule.at or ()]
    start = float(schedule.base / START_DIVISOR if schedule.start is None else schedule.start)
    rise = warm or max(1, round(RISE * total))
    fall = max(1, total - rise)
    share = f"share = (min(update, {total}) - {warm}) / {total - warm}\nreturn {final} + ({base} - {final})"
    bodies = {
        "constant": f"return {base}",
        "step": f"return max({base} * {schedule.factor!r} ** ((update - 1) // {every}), {final})",
        "multi_step": f"return {base} * {schedule.factor!r} ** sum(update > moment for moment in {moments})",
        "one_cycle": f"""if update <= {rise}:
    return {base} + ({start} - {base}) * (1 + math.cos(math.pi * update / {rise})) / 2
share = min(update - {rise}, {fall}) / {fall}
return {final} + ({base} - {final}) * (1 + math.cos(math.pi * share)) / 2""",
        "cosine": f"{share} * (1 + math.cos(math.pi * share)) / 2",
        "poly": f"{share} * (1 - share) ** {schedule.power!r}",
    }
    warming = f"if update < {warm}:\n    return {base} * update / {warm}\n" if warm and name != "one_cycle" else ""
    return indent(warming + bodies[name], "    ")


def clip_text(clip_norm: Optional[float], clip_value: Optional[float]) -> str:
    """The lines of `update` that clip the gradients."""
    lines = []
    if clip_norm is not None and math.isfinite(clip_norm):
        lines.append("norm = torch.stack([one.norm() for one in gradients]).norm()")
        lines.append(f"torch._foreach_mul_(gradients, min({float(clip_norm)!r} / norm.item(), 1.0))")
    if clip_value is not None:
        lines.append(f"torch._foreach_clamp_min_(gradients, -{float(clip_value)!r})")
        lines.append(f"torch._foreach_clamp_max_(gradients, {float(clip_value)!r})")
    gradients = "gradients = [one.grad for one in net.parameters() if one.grad is not None]"
    return indent("\n".join([gradients, *lines, ""]), "    ") if lines else ""

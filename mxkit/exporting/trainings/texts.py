"""The files of a training in PyTorch: `train.py`, `data.py` and `README.md`, as templates that read like the files."""

import ast
import inspect
import json
import math
import re
from string import Template
from textwrap import dedent, indent
from typing import Any, List, Mapping, Optional

from mxkit.exporting.trainings import detectors
from mxkit.training.schedules import RISE, START_DIVISOR, updates_of
import numpy as np

TRAIN = '''"""Go on with a training that left MXNet after update $updates, in epoch $epoch.

mxkit $version wrote it; README.md says what is equal.

    python train.py --epochs $epochs     # it goes on from last.pt if there is one
?unwritten
?unwritten Not written:
?unwritten $unwritten
"""

import argparse
import csv
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel

from data import loaders
from net import load

HERE = Path(__file__).parent
ACCUMULATE = $accumulate
WEIGHT_DECAY = $decay
FACTORS: dict[str, tuple] = $factors
FROZEN: list[str] = $frozen
?dropout SEED = $seed
SCORES = $scores
COLUMNS = $columns


def rate(update: int) -> float:
    """The learning rate of update number `update`, from 1."""
$rate


def losses(output: torch.Tensor, $labels) -> torch.Tensor:
    """The loss of each sample."""
$loss
$counting

$metric


$optimizer


def new_optimizer(net: nn.Module) -> $name:
    """The optimizer, with a group of parameters for each pair of factors of the rate and the weight decay."""
    made: dict[tuple, list] = {}
    for name, weight in net.named_parameters():
        weight.requires_grad_(name not in FROZEN)
        if weight.requires_grad:
            made.setdefault(FACTORS.get(name, (1.0, 1.0)), []).append(weight)
    return $name([{"params": own, "factor": lr, "weight_decay": WEIGHT_DECAY * wd} for (lr, wd), own in made.items()])


?batch_norm{def keep_biased_variance(net: nn.Module) -> None:
    """Make BatchNorm's running variance MXNet's: it divides by the number of values, PyTorch's by one less."""

    def scale(layer: Any, inputs: tuple, output: Any = None) -> None:
        values = inputs[0].numel() / inputs[0].shape[1]
        share = (values - 1) / values if layer.training else 1.0
        layer.running_var = layer.running_var / share if output is None else layer.running_var * share

    for layer in net.modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            layer.register_forward_pre_hook(scale)
            layer.register_forward_hook(scale)


}?ema{def averaged(net: nn.Module) -> AveragedModel:
    """The moving average of the weights, which begins as those after the first update."""

    def moved(average: Any, weight: Any, updates: Any) -> Any:
        return average + (1 - $share) * (weight - average)

    return AveragedModel(net, avg_fn=moved)


}def windows(batches: Any, device: str) -> Iterator[list]:
    """The batches of each update; the last ones of an epoch may be fewer."""
    window: list = []
    for number, batch in enumerate(batches, 1):
        window.append([one.to(device) for one in batch])
        if $size >= ACCUMULATE or number == len(batches):
            yield window
            window = []


def update(net: nn.Module, optimizer: Any, number: int, window: list, amp: str | None = None) -> list[float]:
    """Make update `number` from the batches of a window; return its samples, and the sums of losses and metrics."""
    samples = ?counted{sum(count(label) for _, label in window)}?!counted{sum(len(x) for x, *_ in window)}
    optimizer.zero_grad()
    sums = [0.0] * (1 + len(METRICS))
    for $x, $label in window:
        with torch.autocast($first.device.type, torch.bfloat16, enabled=amp == "bfloat16"):
            output = net($x)
            loss = losses(output, $label).sum()
        (loss / ?counted{(samples or 1)}?!counted{samples}).backward()
        found = [loss.item(), *(metric(output, label) for metric in METRICS)]
        sums = [one + more for one, more in zip(sums, found)]
$clip    for group in optimizer.param_groups:
        group["lr"] = rate(number) * group["factor"]
    optimizer.step()
    return [samples, *sums]


@torch.no_grad()
def evaluate(net: nn.Module, batches: Any, device: str, amp: str | None) -> list[float]:
    """The mean loss and metrics over batches."""
    net.eval()
    samples, sums = 0, [0.0] * (1 + len(METRICS))
    for batch in batches:
        $x, $label = (one.to(device) for one in batch)
        with torch.autocast($first.device.type, torch.bfloat16, enabled=amp == "bfloat16"):
            output = net($x)
            found = [losses(output, $label).sum().item(), *(metric(output, label) for metric in METRICS)]
        sums, samples = [one + more for one, more in zip(sums, found)], samples + $count
    net.train()
    return [one / samples for one in sums]


def resume(device: str) -> tuple[nn.Module, Any, dict?ema{, AveragedModel}]:
    """The net, the optimizer?ema{, the averages} and the place in the training, of last.pt or as MXNet left them."""
    net = load(HERE / "net.safetensors").to(device).train()
?batch_norm     keep_biased_variance(net)
    optimizer?ema{, average} = new_optimizer(net)?ema{, averaged(net)}
    if (HERE / "last.pt").exists():
        saved = torch.load(HERE / "last.pt", map_location=device, weights_only=True)
        net.load_state_dict(saved["net"])
        optimizer.load_state_dict(saved["optimizer"])
?ema         average.load_state_dict(saved["average"])
        return net, optimizer, saved["state"]?ema{, average}
    weights = dict(net.named_parameters())
    for key, array in load_file(HERE / "optimizer.safetensors", device).items():
        name, _, slot = key.rpartition(":")
        optimizer.state[weights[name]][slot] = int(array) if slot == "count" else array
    state = json.loads((HERE / "state.json").read_text())
?ema     average.module.load_state_dict(load_file(HERE / "average.safetensors", device))
?ema     average.n_averaged.fill_(state["averaged"])
    return net, optimizer, state?ema{, average}


?after_epoch def after_epoch(state: dict, net: nn.Module, optimizer: Any) -> None:
?after_epoch     """Called after each epoch; the last row of the history is state["history"][-1]."""
?after_epoch $after_epoch
?after_epoch
?after_epoch
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=$epochs)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--amp", choices=["bfloat16"], help="compute the net in 16 bits")
    given = parser.parse_args()
    net, optimizer, state?ema{, average} = resume(given.device)
?dropout     torch.manual_seed(SEED + state["updates"])  # of Dropout
    train, order, others = loaders()
    while state["epoch"] <= given.epochs:
        order.begin(state["epoch"], state["batches"])
        sums = state["sums"] or [0, 0.0, *[0.0] * len(METRICS)]
        for window in windows(train, given.device):
            state["updates"] += 1
            found = update(net, optimizer, state["updates"], window, given.amp)
?ema             average.update_parameters(net)
            sums = [one + more for one, more in zip(sums, found)]
        row = [state["epoch"], state["updates"], order.samples, rate(state["updates"] + 1)]
        row += [one / sums[0] for one in sums[1:]]
        row += evaluate($judged, others["valid"], given.device, given.amp) if "valid" in others else []
        state["history"].append(dict(zip(COLUMNS, row)))
        print("  ".join(f"{key} {value:.5g}" for key, value in state["history"][-1].items()), flush=True)
?after_epoch         after_epoch(state, net, optimizer)
        state.update(epoch=state["epoch"] + 1, batches=0, sums=None)
?ema         parts = {"net": net, "optimizer": optimizer, "average": average}
?ema         saved = {name: part.state_dict() for name, part in parts.items()}
        torch.save({$saved, "state": state}, HERE / "new.pt")
        (HERE / "new.pt").replace(HERE / "last.pt")  # a killed process leaves the last one whole
        arrays = {name: one.clone() for name, one in $judged.state_dict().items()}
        with safe_open(HERE / "net.safetensors", "pt") as file:  # mxkit.load_parameters reads Gluon's names there
            save_file(arrays, HERE / "last.safetensors", file.metadata())
        with (HERE / "history.csv").open("w", newline="") as table:
            csv.writer(table).writerows([COLUMNS, *([row.get(one) for one in COLUMNS] for row in state["history"])])
    print(f"{len(state['history'])} epochs are done: --epochs takes more")
    for part, batches in others.items():
        values = zip(SCORES, evaluate($judged, batches, given.device, given.amp))
        print(f"{part}:", "  ".join(f"{name} {value:.4f}" for name, value in values))


if __name__ == "__main__":
    main()
'''

NO_DATA = Template('''"""The run's data, which is not written: README.md says why."""

from typing import Any


def loaders() -> tuple[Any, Any, dict[str, Any]]:
    """Batches (x, label) for training, their order, whose `begin(epoch, batches)` sets which ones are read next and
    whose `samples` is their number in an epoch, and those of the parts "valid" and "test" by name.
    """
$body
''')

README = """# A training that goes on in PyTorch

mxkit $version wrote this folder from `$run` ($recipe), which had made $updates updates in MXNet $mxnet.

```console
pip install $packages    # Python 3.10 or newer
python train.py --epochs $epochs
```

- `net.py`, `net.safetensors`: the net and its weights; `optimizer.safetensors`, `state.json`: the optimizer's state,
  the place in the training and the history so far. After each epoch `train.py` writes `last.pt`, `history.csv` and
  `last.safetensors`, which `mxkit.load_parameters` reads back.
- `data.py`, `data.safetensors`: the run's samples$changed, in the order of the run's seed.

## What is equal
$proof.
`proof.json` has each comparison: loss, gradients and running statistics in double precision, the optimizer's step in
float32, the learning rates of all updates, and the batches of two epochs.

## What differs
- Numbers of float32 differ in their last digits, and the difference grows with each update: `curves.png` shows the
  losses of these updates, each program going on from its own numbers.$apart
- Dropout draws other numbers. Other versions of NumPy and OpenCV than those of `proof.json` may, too.
- A run of updates goes on by whole epochs, each of which is validated. A schedule goes on by its formula.
- Metrics without code here: $missing.?boxes{
- `net.py` gives what the loss reads, also in evaluation; for boxes, read `last.safetensors` into MXNet's net.}?ema{
- `train.py` validates, scores and writes `last.safetensors` with the averages of the weights; `last.pt` has both. The
  last scores of the MXNet run were those of its weights.}?unwritten{

## What is not written
These parts raise NotImplementedError, or are left out, and were not compared. MXNet's code stands there as a comment.

$unwritten}
"""

_LOGITS = "F.binary_cross_entropy_with_logits(output"
_REST = "flatten(1).mean(1)"
_RESIZED = """if one.shape[2:] != label.shape[1:]:
    one = F.interpolate(one, label.shape[1:], mode="bilinear", align_corners=True)
"""
_SAME = "label = label.reshape(output.shape).float()\n"
_CLASS = "label.flatten().long()"
_CROSS_ENTROPY = f'F.cross_entropy(output, {_CLASS}, reduction="none"'
LOSSES: Mapping[str, str] = {
    **detectors.LOSSES,
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
_DEFAULTS.update(dict.fromkeys(("size", "layers", "ignored")))
_WEIGHTED_BCE = Template(f"""{_SAME}weights, positive = $zero + $more * label, output.new_tensor($positive)
loss = {_LOGITS}, label, weights, reduction="none", pos_weight=positive)
return loss.{_REST}""")
METRICS: Mapping[str, str] = {
    "accuracy": "return (output.argmax(1) == label.flatten()).sum().item()",
    "accuracy of labels": """right = (output > 0) == (label.reshape(output.shape) > 0.5)
return right.flatten(1).float().mean(1).sum().item()""",
    "pixel_accuracy": f"""one = output[0] if isinstance(output, tuple) else output
{_RESIZED}return ((one.argmax(1) == label) & (label >= 0)).sum().item()""",
}
_COUNT = Template('''

def count(label: torch.Tensor) -> int:
    """The $what."""
    return int(($label >= 0).sum())
''')
# What a batch adds to the divisor of a loss that does not count samples
COUNTS = dict.fromkeys(("centernet", "ssd"), _COUNT.substitute(what="objects", label="label[:, :, 4]"))
COUNTS["pixel_ce"] = _COUNT.substitute(what="pixels with a label", label="label")


def filled(text: str, **values: Any) -> str:
    """A template with values; `?NAME{...}` and a line that begins with `?NAME` stand if that value is not empty or 0.

    With `?!NAME` they stand if it is.
    """

    def kept(part: Any) -> str:
        return str(part[3]) if bool(values[part[2]]) != bool(part[1]) else ""

    text = re.sub(r"(?s)\?(!?)(\w+)\{(.*?)\}", kept, text)
    return Template(re.sub(r"(?m)^\?(!?)(\w+) ?(.*\n)", kept, text)).substitute(values)


def tidied(text: str) -> str:
    """The text of a program without imports that it does not use."""
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


def loss_text(name: str, arguments: Mapping[str, Any], weighted: bool = False) -> Optional[str]:
    """The body of `losses`, which takes weights of samples if `weighted`; None if the loss has no code."""
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
    if not text or set(own) - {*re.findall(r"\$(\w+)", text), "aux_weight"}:
        return None
    text = Template(text).substitute({**_DEFAULTS, **own})
    text += ("" if scale is None else f" * {float(scale)!r}") + (" * weight.flatten()" if weighted else "")
    return indent(text, "    ")


def metric_text(names: List[str], loss: str) -> str:
    """Functions of the metrics that have code, and the list METRICS."""
    of_labels = " of labels" if loss == "sigmoid_bce" else ""
    head = 'def {}(output: torch.Tensor, label: torch.Tensor) -> float:\n    """The sum over the samples."""\n'
    functions = [f"{head.format(name)}{indent(METRICS[name + of_labels], '    ')}\n\n\n" for name in names]
    return f"{''.join(functions)}METRICS: list = [{', '.join(names)}]"


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

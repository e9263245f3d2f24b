"""The files of a training in PyTorch: `train.py`, `data.py` and `README.md`, as templates that read like the files."""

import inspect
import json
import math
from string import Template
import textwrap
from textwrap import indent
from typing import Any, Dict, List, Mapping, Optional, Tuple

from mxkit.training.schedules import RISE, START_DIVISOR, updates_of

TRAIN = Template('''"""Go on with a training that left MXNet after update $updates, in epoch $epoch.

mxkit $version wrote it; README.md says what is equal.

    python train.py --epochs $epochs     # it goes on from last.pt if there is one
$unwritten"""

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
$constants
SCORES = $scores
COLUMNS = $columns


def rate(update: int) -> float:
    """The learning rate of update number `update`, from 1."""
$rate


def losses(output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
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


${biased}${averaged}$windows


def update(net: nn.Module, optimizer: Any, number: int, window: list, amp: str | None = None) -> list[float]:
    """Make update `number` from the batches of a window; return its samples, and the sums of losses and metrics."""
    samples = sum($count(label) for _, label in window)
    optimizer.zero_grad()
    sums = [0.0] * (1 + len(METRICS))
    for x, $labels in window:
        with torch.autocast(x.device.type, torch.bfloat16, enabled=amp == "bfloat16"):
            output = net(x)
            loss = losses(output, $labels).sum()
        (loss / $divisor).backward()
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
        x, $labels = (one.to(device) for one in batch)
        with torch.autocast(x.device.type, torch.bfloat16, enabled=amp == "bfloat16"):
            output = net(x)
            found = [losses(output, $labels).sum().item(), *(metric(output, label) for metric in METRICS)]
        sums, samples = [one + more for one, more in zip(sums, found)], samples + $count(label)
    net.train()
    return [one / samples for one in sums]


def resume(device: str) -> tuple[nn.Module, Any, dict$average_type]:
    """The net, the optimizer$and_averages and the place in the training, of last.pt or as MXNet left them."""
    net = load(HERE / "net.safetensors").to(device).train()
${keep}    optimizer$and_average = new_optimizer(net)$make_average
    if (HERE / "last.pt").exists():
        saved = torch.load(HERE / "last.pt", map_location=device, weights_only=True)
        net.load_state_dict(saved["net"])
        optimizer.load_state_dict(saved["optimizer"])
${load_average}        return net, optimizer, saved["state"]$and_average
    weights = dict(net.named_parameters())
    for key, array in load_file(HERE / "optimizer.safetensors", device).items():
        name, _, slot = key.rpartition(":")
        optimizer.state[weights[name]][slot] = int(array) if slot == "count" else array
    state = json.loads((HERE / "state.json").read_text())
${given_average}    return net, optimizer, state$and_average


${after}def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=$epochs)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--amp", choices=["bfloat16"], help="compute the net in 16 bits")
    given = parser.parse_args()
    net, optimizer, state$and_average = resume(given.device)
$seeded    train, order, others = loaders()
    while state["epoch"] <= given.epochs:
        order.begin(state["epoch"], state["batches"])
        sums = state["sums"] or [0, 0.0, *[0.0] * len(METRICS)]
        for window in windows(train, given.device):
            state["updates"] += 1
            found = update(net, optimizer, state["updates"], window, given.amp)
${move_average}            sums = [one + more for one, more in zip(sums, found)]
        row = [state["epoch"], state["updates"], order.samples, rate(state["updates"] + 1)]
        row += [one / sums[0] for one in sums[1:]]
        row += evaluate($judged, others["valid"], given.device, given.amp) if "valid" in others else []
        state["history"].append(dict(zip(COLUMNS, row)))
        print("  ".join(f"{key} {value:.5g}" for key, value in state["history"][-1].items()), flush=True)
${after_epoch}        state.update(epoch=state["epoch"] + 1, batches=0, sums=None)
$save        (HERE / "new.pt").replace(HERE / "last.pt")  # a killed process leaves the last one whole
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
''')

BIASED = '''def keep_biased_variance(net: nn.Module) -> None:
    """Make BatchNorm's running variance MXNet's: it divides by the number of values, PyTorch's by one less."""

    def scale(layer: Any, inputs: tuple, output: Any = None) -> None:
        values = inputs[0].numel() / inputs[0].shape[1]
        share = (values - 1) / values if layer.training else 1.0
        layer.running_var = layer.running_var / share if output is None else layer.running_var * share

    for layer in net.modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            layer.register_forward_pre_hook(scale)
            layer.register_forward_hook(scale)


'''

_AVERAGED = Template('''def averaged(net: nn.Module) -> AveragedModel:
    """The moving average of the weights, which begins as those after the first update."""

    def moved(average: Any, weight: Any, updates: Any) -> Any:
        return average + (1 - $decay) * (weight - average)

    return AveragedModel(net, avg_fn=moved)


''')
_SAVE = """\
        torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict(), "state": state}, HERE / "new.pt")
"""
# What TRAIN has for a moving average of the weights, by its names.
_AVERAGE = {
    "and_average": ", average",
    "and_averages": ", the averages",
    "average_type": ", AveragedModel",
    "make_average": ", averaged(net)",
    "load_average": '        average.load_state_dict(saved["average"])\n',
    "given_average": (
        '    average.module.load_state_dict(load_file(HERE / "average.safetensors", device))\n'
        '    average.n_averaged.fill_(state["averaged"])\n'
    ),
    "move_average": "            average.update_parameters(net)\n",
    "save": (
        '        parts = {"net": net, "optimizer": optimizer, "average": average}\n'
        "        saved = {name: part.state_dict() for name, part in parts.items()}\n"
        '        torch.save({**saved, "state": state}, HERE / "new.pt")\n'
    ),
    "judged": "average.module",
}

WINDOWS = Template('''def windows(batches: Any, device: str) -> Iterator[list]:
    """The batches of each update; the last ones of an epoch may be fewer."""
    window: list = []
    for number, batch in enumerate(batches, 1):
        window.append([one.to(device) for one in batch])
        if $size >= ACCUMULATE or number == len(batches):
            yield window
            window = []''')

AFTER_EPOCH = Template('''def after_epoch(state: dict, net: nn.Module, optimizer: Any) -> None:
    """Called after each epoch; the last row of the history is state["history"][-1]."""
$body


''')

CALL_AFTER_EPOCH = "        after_epoch(state, net, optimizer)\n"

NO_DATA = Template('''"""The run's data, which is not written: README.md says why."""

from typing import Any


def loaders() -> tuple[Any, Any, dict[str, Any]]:
    """Batches (x, label) for training, their order, whose `begin(epoch, batches)` sets which ones are read next and
    whose `samples` is their number in an epoch, and those of the parts "valid" and "test" by name.
    """
$body
''')

SEEDED = '    torch.manual_seed(SEED + state["updates"])  # of Dropout\n'

README_UNWRITTEN = """
## What is not written
These parts raise NotImplementedError, or are left out, and were not compared. MXNet's code stands there as a comment.

"""

README_AVERAGES = """\
- `train.py` validates, scores and writes `last.safetensors` with the averages of the weights; `last.pt` has both. The
  last scores of the MXNet run were those of its weights.
"""

README = Template("""# A training that goes on in PyTorch

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
- Metrics without code here: $missing.
$averages$unwritten""")

_REST = "flatten(1).mean(1)"
_RESIZED = (
    "if one.shape[2:] != label.shape[1:]:\n"
    '    one = F.interpolate(one, label.shape[1:], mode="bilinear", align_corners=True)\n'
)
_SAME = "label = label.reshape(output.shape).float()\n"
# The code of a loss, and its arguments with MXNet's defaults.
_LOSSES: Mapping[str, Tuple[str, Mapping[str, Any]]] = {
    "focal": (
        'log = -F.cross_entropy(output, label.flatten().long(), reduction="none")\n'
        "return -((-torch.expm1(log)).clamp(min=1e-12) ** $gamma) * log",
        {"gamma": 2.0},
    ),
    "hinge": (f"{_SAME}return F.relu($margin - output * label).{_REST}", {"margin": 1.0}),
    "huber": (
        f'{_SAME}return F.huber_loss(output, label, reduction="none", delta=$rho).{_REST} / $rho',
        {"rho": 1.0},
    ),
    "l1": (f"{_SAME}return (output - label).abs().{_REST}", {}),
    "l2": (f"{_SAME}return (output - label).square().{_REST} / 2", {}),
    "label_smoothing": (
        'return F.cross_entropy(output, label.flatten().long(), reduction="none", label_smoothing=$epsilon)',
        {"epsilon": 0.1},
    ),
    "logistic": (
        f'{_SAME}return F.binary_cross_entropy_with_logits(output, (label + 1) / 2, reduction="none").{_REST}',
        {},
    ),
    "pixel_ce": (
        "outputs = output if isinstance(output, tuple) else (output,)\n"
        "total = torch.zeros(len(label), dtype=outputs[0].dtype, device=label.device)\n"
        "for one, weight in zip(outputs, $weights):\n"
        f"{indent(_RESIZED, '    ')}"
        '    pixels = F.cross_entropy(one, label.long(), ignore_index=-1, reduction="none")\n'
        "    total = total + weight * pixels.sum((1, 2))\n"
        "return total",
        {"aux_weight": None, "weights": None},
    ),
    "pose": (
        "rows, columns = output.shape[2:]\n"
        "sigma = $sigma\n"
        "bells = []\n"
        "for axis, cells in ((0, columns), (1, rows)):\n"
        "    centre = (label[:, :, axis] * $scale + 0.5).floor()\n"
        "    away = torch.arange(cells, device=label.device) - centre[:, :, None]\n"
        "    bells.append((-away.square() / (2 * sigma**2)).exp() * (away.abs() <= 3 * sigma))\n"
        "target = bells[1][:, :, :, None] * bells[0][:, :, None]\n"
        "known = (label[:, :, 2] > 0)[:, :, None, None]\n"
        "return ((output - target).square() * known).mean((1, 2, 3)) / 2",
        {"sigma": None, "scale": None},
    ),
    "sigmoid_bce": (
        f'{_SAME}return F.binary_cross_entropy_with_logits(output, label, reduction="none").{_REST}',
        {},
    ),
    "softmax_ce": ('return F.cross_entropy(output, label.flatten().long(), reduction="none")', {}),
    "squared_hinge": (f"{_SAME}return F.relu($margin - output * label).square().{_REST}", {"margin": 1.0}),
}
_WEIGHTED_BCE = Template(
    f"{_SAME}weights, positive = $zero + $more * label, output.new_tensor($positive)\n"
    'loss = F.binary_cross_entropy_with_logits(output, label, weights, reduction="none", pos_weight=positive)\n'
    f"return loss.{_REST}"
)
# Losses of one class a sample, which a weight of its class multiplies.
_OF_CLASSES = ("focal", "label_smoothing", "softmax_ce")
METRICS: Mapping[str, str] = {
    "accuracy": "return (output.argmax(1) == label.flatten()).sum().item()",
    "accuracy of labels": (
        "return ((output > 0) == (label.reshape(output.shape) > 0.5)).flatten(1).float().mean(1).sum().item()"
    ),
    "pixel_accuracy": (
        "one = output[0] if isinstance(output, tuple) else output\n"
        f"{_RESIZED}"
        "return ((one.argmax(1) == label) & (label >= 0)).sum().item()"
    ),
}


# What a batch adds to the divisor of losses that do not count samples.
_COUNTS: Mapping[str, str] = {
    "pixel_ce": '''

def count(label: torch.Tensor) -> int:
    """The pixels with a label."""
    return int((label >= 0).sum())
''',
}


def indented(text: str) -> str:
    """Lines of a function's body."""
    return "\n".join(f"    {line}" for line in text.split("\n"))


def constant(name: str, value: Any) -> str:
    """The lines of a constant, as ruff formats them."""
    if isinstance(value, dict):
        entries = "".join(f'    "{key}": {one!r},\n' for key, one in value.items())
        return f"{name}: dict[str, tuple] = {{\n{entries}}}" if entries else f"{name}: dict[str, tuple] = {{}}"
    kind = ": list[str]" if isinstance(value, list) else ""
    return f"{name}{kind} = " + json.dumps(value)


def tidied(text: str) -> str:
    """The text of a program without imports that it does not use."""
    for name, line in (
        ("math.", "import math\n"),
        ("F.", "from torch.nn import functional as F\n"),
        ("AveragedModel", "from torch.optim.swa_utils import AveragedModel\n"),
    ):
        if f" {name}" not in text.replace(line, ""):
            text = text.replace(line, "")
    return text


def average_parts(decay: Optional[Tuple[float, bool]]) -> Dict[str, str]:
    """What stands in TRAIN for a moving average of the weights; None for a run without."""
    if decay is None:
        return {"averaged": "", **dict.fromkeys(_AVERAGE, ""), "judged": "net", "save": _SAVE}
    text = f"min({decay[0]!r}, (1 + updates) / (10 + updates))" if decay[1] else repr(decay[0])
    return {"averaged": _AVERAGED.substitute(decay=text), **_AVERAGE}


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
        return textwrap.dedent(inspect.getsource(code))
    except (OSError, TypeError):  # no file, as of a class of a notebook
        return ""


def losses_with_code() -> List[str]:
    """Names of the losses that have code."""
    return list(_LOSSES)


def loss_text(name: str, arguments: Mapping[str, Any]) -> Optional[str]:
    """The body of `losses`; None if the loss has no code."""
    own = dict(arguments)
    text, known = _LOSSES.get(name, ("", {}))
    classes, scale, lines = own.pop("class_weight", None), own.pop("weight", None), []  # type: Any, Any, List[str]
    if classes is not None and name in _OF_CLASSES:
        lines = ["label = label.flatten().long()", *_class_weights(classes)]
        text = text.replace("label.flatten().long()", "label") + " * weights[label]"
    elif name == "sigmoid_bce" and (classes is not None or own.get("pos_weight") is not None):
        zero, one = (float(dict(_pairs(classes or ())).get(key, 1.0)) for key in (0, 1))
        listed = own.pop("pos_weight", None) or 1.0
        listed = [float(value) for value in (listed if isinstance(listed, (list, tuple)) else [listed])]
        text = _WEIGHTED_BCE.substitute(zero=zero, more=one - zero, positive=listed)
    elif classes is not None:
        return None
    if not text or set(own) - set(known):
        return None
    text = Template("\n".join([*lines, text])).substitute({**known, **own})
    return indented(text + ("" if scale is None else f" * {float(scale)!r}"))


def _pairs(weights: Any) -> List[Tuple[int, float]]:
    items = weights.items() if isinstance(weights, Mapping) else enumerate(weights)
    return [(int(key), float(one)) for key, one in items]


def _class_weights(weights: Any) -> List[str]:
    keys, values = map(list, zip(*_pairs(weights)))
    if not isinstance(weights, Mapping):
        return [f"weights = output.new_tensor({values})"]
    return ["weights = output.new_ones(output.shape[1])", f"weights[{keys}] = output.new_tensor({values})"]


def count_texts(loss: str) -> Dict[str, str]:
    """How `train.py` counts what losses and metrics are divided by."""
    own = _COUNTS.get(loss)
    count, divisor = ("count", "(samples or 1)") if own else ("len", "samples")
    return {"counting": own or "", "count": count, "divisor": divisor}


def metric_text(names: List[str], loss: str) -> str:
    """Functions of the metrics that have code, and the list METRICS."""
    of_labels = " of labels" if loss == "sigmoid_bce" else ""
    functions = [
        f'def {name}(output: torch.Tensor, label: torch.Tensor) -> float:\n    """The sum over the samples."""\n'
        f"{indented(METRICS[name + of_labels])}\n\n\n"
        for name in names
    ]
    return f"{''.join(functions)}METRICS: list = [{', '.join(names)}]"


def known_metrics(names: List[str]) -> List[str]:
    """Those of the names that have code."""
    return [name for name in names if name in METRICS]


def rate_text(schedule: Any, per_epoch: int) -> str:
    """The body of `rate` of a `Schedule` that has its base and its end."""
    base = repr(float(schedule.base))

    warm = updates_of(schedule.warmup, per_epoch) if schedule.warmup else 0
    lines = [f"if update < {warm}:", f"    return {base} * update / {warm}"] if warm else []
    name, final = schedule.name, repr(float(schedule.final))
    total = updates_of(schedule.total, per_epoch) if schedule.total else 0
    if name == "constant":
        lines.append(f"return {base}")
    elif name == "step":
        every = updates_of(schedule.every, per_epoch)
        lines.append(f"return max({base} * {schedule.factor!r} ** ((update - 1) // {every}), {final})")
    elif name == "multi_step":
        moments = [updates_of(one, per_epoch) for one in schedule.at]
        lines.append(f"return {base} * {schedule.factor!r} ** sum(update > moment for moment in {moments})")
    elif name == "one_cycle":
        start = repr(float(schedule.base / START_DIVISOR if schedule.start is None else schedule.start))
        rise = warm or max(1, round(RISE * total))
        lines = [
            f"if update <= {rise}:",
            f"    return {base} + ({start} - {base}) * (1 + math.cos(math.pi * update / {rise})) / 2",
            f"share = min(update - {rise}, {max(1, total - rise)}) / {max(1, total - rise)}",
            f"return {final} + ({base} - {final}) * (1 + math.cos(math.pi * share)) / 2",
        ]
    else:
        lines.append(f"share = (min(update, {total}) - {warm}) / {total - warm}")
        curve = "(1 + math.cos(math.pi * share)) / 2" if name == "cosine" else f"(1 - share) ** {schedule.power!r}"
        lines.append(f"return {final} + ({base} - {final}) * {curve}")
    return indented("\n".join(lines))


def clip_text(clip_norm: Optional[float], clip_value: Optional[float]) -> str:
    """The lines of `update` that clip the gradients."""
    lines = ["gradients = [one.grad for one in net.parameters() if one.grad is not None]"]
    if clip_norm is not None and math.isfinite(clip_norm):
        lines.append("norm = torch.stack([one.norm() for one in gradients]).norm()")
        lines.append(f"torch._foreach_mul_(gradients, min({float(clip_norm)!r} / norm.item(), 1.0))")
    if clip_value is not None:
        lines.append(f"torch._foreach_clamp_min_(gradients, -{float(clip_value)!r})")
        lines.append(f"torch._foreach_clamp_max_(gradients, {float(clip_value)!r})")
    return indented("\n".join(lines)) + "\n" if len(lines) > 1 else ""

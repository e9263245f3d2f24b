"""The files of a training in PyTorch: `train.py`, `data.py` and `README.md`, as templates that read like the files."""

import json
import math
from string import Template
from textwrap import indent
from typing import Any, Dict, List, Mapping, Optional, Tuple

from mxkit.training.schedules import RISE, START_DIVISOR, updates_of

TRAIN = Template('''"""Go on with a training that left MXNet after update $updates, in epoch $epoch.

mxkit $version wrote it; README.md says what is equal.

    python train.py --epochs $epochs     # it goes on from last.pt if there is one
"""

import argparse
import csv
import json
import math
from pathlib import Path
from typing import Any

from data import loaders
from net import load
from safetensors import safe_open
from safetensors.torch import load_file, save_file
import torch
from torch import nn
from torch.nn import functional as F

HERE = Path(__file__).parent
$constants
PARTS = "train", "valid"
SCORES = $scores
COLUMNS = ["epoch", "updates", "samples", "learning_rate", *(f"{part}_{one}" for part in PARTS for one in SCORES)]


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
    groups: dict[tuple, list] = {}
    for name, weight in net.named_parameters():
        weight.requires_grad_(name not in FROZEN)
        if weight.requires_grad:
            groups.setdefault(FACTORS.get(name, (1.0, 1.0)), []).append(weight)
    made = groups.items()
    return $name([{"params": own, "factor": lr, "weight_decay": WEIGHT_DECAY * wd} for (lr, wd), own in made])


${biased}def update(net: nn.Module, optimizer: torch.optim.Optimizer, number: int, window: list) -> tuple[float, list]:
    """Make update `number` from the batches of a window; return the sums of the losses and the metrics."""
    samples = sum($count(label) for _, label in window)$least
    optimizer.zero_grad()
    total, scores = 0.0, [0.0] * len(METRICS)
    for x, label in window:
        output = net(x)
        loss = losses(output, label).sum()
        (loss / samples).backward()
        total += loss.item()
        scores = [one + metric(output, label) for one, metric in zip(scores, METRICS)]
$clip    for group in optimizer.param_groups:
        group["lr"] = rate(number) * group["factor"]
    optimizer.step()
    return total, scores


@torch.no_grad()
def evaluate(net: nn.Module, batches: Any, device: str) -> list[float]:
    """The mean loss and metrics over batches."""
    net.eval()
    samples, sums = 0, [0.0] * (1 + len(METRICS))
    for x, label in batches:
        output, label = net(x.to(device)), label.to(device)
        found = [losses(output, label).sum().item(), *(metric(output, label) for metric in METRICS)]
        sums, samples = [one + more for one, more in zip(sums, found)], samples + $count(label)
    net.train()
    return [one / samples for one in sums]


def resume(device: str) -> tuple[nn.Module, torch.optim.Optimizer, dict]:
    """The net, the optimizer and the place in the training, of last.pt or as MXNet left them."""
    net = load(HERE / "net.safetensors").to(device).train()
${keep}    optimizer = new_optimizer(net)
    if (HERE / "last.pt").exists():
        saved = torch.load(HERE / "last.pt", map_location=device, weights_only=True)
        net.load_state_dict(saved["net"])
        optimizer.load_state_dict(saved["optimizer"])
        return net, optimizer, saved["state"]
    slots = load_file(HERE / "optimizer.safetensors", device)
    for name, weight in net.named_parameters():
        own = {key.rpartition(":")[2]: slot for key, slot in slots.items() if key.rpartition(":")[0] == name}
        if own:
            optimizer.state[weight] = {key: int(slot) if key == "count" else slot for key, slot in own.items()}
    return net, optimizer, json.loads((HERE / "state.json").read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=$epochs)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = parser.parse_args()
    net, optimizer, state = resume(given.device)
    torch.manual_seed(SEED + state["updates"])  # of Dropout
    train, order, others = loaders()
    while state["epoch"] <= given.epochs:
        order.begin(state["epoch"], state["batches"])
        sums, window = state["sums"] or [0, 0.0, *[0.0] * len(METRICS)], []
        for number, (x, label) in enumerate(train, 1):
            window.append((x.to(given.device), label.to(given.device)))
            if len(window) < ACCUMULATE and number < len(train):
                continue
            state["updates"] += 1
            loss, scores = update(net, optimizer, state["updates"], window)
            sums = [one + more for one, more in zip(sums, [sum($count(y) for _, y in window), loss, *scores])]
            window = []
        means = [one / sums[0] for one in sums[1:]]
        row = [state["epoch"], state["updates"], order.samples, rate(state["updates"] + 1), *means]
        row += evaluate(net, others["valid"], given.device) if "valid" in others else []
        state["history"].append(dict(zip(COLUMNS, row)))
        print("  ".join(f"{key} {value:.5g}" for key, value in state["history"][-1].items()), flush=True)
        state.update(epoch=state["epoch"] + 1, batches=0, sums=None)
        torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict(), "state": state}, HERE / "new.pt")
        (HERE / "new.pt").replace(HERE / "last.pt")  # a killed process leaves the last one whole
        with safe_open(HERE / "net.safetensors", "pt") as file:  # mxkit.load_parameters reads Gluon's names there
            arrays = {name: one.clone() for name, one in net.state_dict().items()}
            save_file(arrays, HERE / "last.safetensors", file.metadata())
        with (HERE / "history.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, extrasaction="ignore")
            writer.writeheader()
            writer.writerows(state["history"])
    print(f"{len(state['history'])} epochs are done: --epochs takes more")
    for part, batches in others.items():
        found = zip(SCORES, evaluate(net, batches, given.device))
        print(f"{part}:", "  ".join(f"{name} {value:.4f}" for name, value in found))


if __name__ == "__main__":
    main()
''')

BIASED = '''def keep_biased_variance(net: nn.Module) -> None:
    """Make BatchNorm's running variance MXNet's: it divides by the number of values, PyTorch's by one less."""

    def before(layer: Any, inputs: tuple) -> None:
        layer.before = layer.running_var.clone()

    def after(layer: Any, inputs: tuple, output: torch.Tensor) -> None:
        if layer.training:
            values = output.numel() / output.shape[1]
            kept = (1 - layer.momentum) * layer.before
            layer.running_var = kept + (layer.running_var - kept) * (values - 1) / values

    for layer in net.modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm) and layer.running_var is not None:
            layer.register_forward_pre_hook(before)
            layer.register_forward_hook(after)


'''

README = Template("""# A training that goes on in PyTorch

mxkit $version wrote this folder from `$run` ($recipe), which had made $updates updates in MXNet $mxnet.

```console
pip install $packages    # Python 3.10 or newer
python train.py --epochs $epochs
```

- `net.py`, `net.safetensors`: the net and its weights; `optimizer.safetensors`, `state.json`: the optimizer's state,
  the place in the training and the history so far. After each epoch `train.py` writes `last.pt`, `history.csv` and
  `last.safetensors`, which `mxkit.load_parameters` reads back.
- `data.py`, `data.safetensors`: the run's samples, in the order of the run's seed$changed.

## What is equal
$proof.
`proof.json` has each comparison: loss, gradients and running statistics in double precision, the optimizer's step in
float32, the learning rates of all updates, and the batches of two epochs.

## What differs
- Numbers of float32 differ in their last digits, and the difference grows with each update: `curves.png` shows the
  losses of these updates, each program going on from its own numbers. They differ by at most $apart of the loss.
- Dropout draws other numbers. Other versions of NumPy and OpenCV than those of `proof.json` may, too.
- A run of updates goes on by whole epochs, each of which is validated. A schedule goes on by its formula.
- Metrics without code here: $missing.
""")

_REST = "flatten(1).mean(1)"
_RESIZED = (
    "if one.shape[2:] != label.shape[1:]:\n"
    '    one = F.interpolate(one, label.shape[1:], mode="bilinear", align_corners=True)\n'
)
_SAME = "label = label.reshape(output.shape).to(output.dtype)\n"
# The code of a loss, and its arguments with MXNet's defaults.
_LOSSES: Mapping[str, Tuple[str, Mapping[str, Any]]] = {
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
    "softmax_ce of weighted classes": (
        "weights = torch.tensor($class_weight, dtype=output.dtype, device=output.device)\n"
        'return F.cross_entropy(output, label.flatten().long(), weights, reduction="none")',
        {"class_weight": None},
    ),
    "squared_hinge": (f"{_SAME}return F.relu($margin - output * label).square().{_REST}", {"margin": 1.0}),
}
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
    for name, line in (("math.", "import math\n"), ("F.", "from torch.nn import functional as F\n")):
        if f" {name}" not in text.replace(line, ""):
            text = text.replace(line, "")
    return text


def loss_text(name: str, arguments: Mapping[str, Any]) -> Optional[str]:
    """The body of `losses`; None if the loss has no code."""
    weights = arguments.get("class_weight")
    text, known = _LOSSES.get(f"{name} of weighted classes" if isinstance(weights, list) else name, ("", {}))
    if not text or set(arguments) - set(known):
        return None
    return indented(Template(text).substitute({**known, **arguments}))


def count_texts(loss: str) -> Dict[str, str]:
    """How `train.py` counts what losses and metrics are divided by."""
    own = _COUNTS.get(loss)
    return {"counting": own or "", "count": "count" if own else "len", "least": " or 1" if own else ""}


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

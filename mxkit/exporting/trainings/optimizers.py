"""MXNet's optimizers as short classes of PyTorch: they divide, decay and count as MXNet does."""

from typing import Any, Dict, List, NamedTuple, Tuple

from mxkit.exporting.trainings.texts import source_of, unwritten
import mxnet as mx


class Rule(NamedTuple):
    """One update of one weight, as lines of Python.

    The lines see `weight`, `grad`, `rate`, `decay`, the slots as tensors by name, `count` (updates of this weight, from
    1), and the settings as `self.NAME`. Those of Nadam also see `state["product"]`, MXNet's `m_schedule`, and
    `state["turn"]`, the place of the weight in MXNet's order of updates, from 1 to `self.weights`.

    Attributes:
        says: What differs from PyTorch's own class, a sentence.
        slots: Names of the tensors kept for each weight, in the order of MXNet's states.
        settings: Arguments of MXNet's class that the lines read.
        lines: The lines.
        clips: Where `clip_gradient` acts: "before" or "after" the weight decay is added.
    """

    says: str
    slots: Tuple[str, ...]
    settings: Tuple[str, ...]
    lines: Tuple[str, ...]
    clips: str = "before"

    @property
    def counts(self) -> bool:
        """Whether the lines read `count`."""
        return any("count" in line for line in self.lines)


_DECAYED = "grad = grad + decay * weight"
_MOMENTS = (
    "mean.mul_(self.beta1).add_(grad, alpha=1 - self.beta1)",
    "variance.mul_(self.beta2).addcmul_(grad, grad, value=1 - self.beta2)",
)

# By the name in MXNet's registry; the formulas are those of mxnet/optimizer/optimizer.py and optimizer_op-inl.h.
RULES: Dict[str, Rule] = {
    "sgd": Rule(
        "MXNet's SGD: the velocity holds the learning rate, so a schedule changes new steps only.",
        ("velocity",),
        ("momentum",),
        (_DECAYED, "velocity.mul_(self.momentum).sub_(rate * grad)", "weight.add_(velocity)"),
    ),
    "nag": Rule(
        "MXNet's Nesterov momentum: the velocity holds the rate, and the decay of the weight after the step (T286).",
        ("velocity",),
        ("momentum",),
        (
            "step = grad + decay * weight",
            "weight.add_(self.momentum * (self.momentum * velocity - rate * step) - rate * step)",
            "velocity.mul_(self.momentum).sub_(rate * (grad + decay * weight))",
        ),
    ),
    "adam": Rule(
        "MXNet's Adam: epsilon joins the root of the uncorrected variance; weight decay joins the gradient.",
        ("mean", "variance"),
        ("beta1", "beta2", "epsilon"),
        (
            _DECAYED,
            *_MOMENTS,
            "corrected = rate * math.sqrt(1 - self.beta2**count) / (1 - self.beta1**count)",
            "weight.sub_(corrected * mean / (variance.sqrt() + self.epsilon))",
        ),
        clips="after",
    ),
    "adagrad": Rule(
        "MXNet's AdaGrad: epsilon stands under the root, and weight decay is not divided by it.",
        ("history",),
        ("float_stable_eps",),
        (
            "history.addcmul_(grad, grad)",
            "weight.sub_(rate * (grad / (history + self.float_stable_eps).sqrt() + decay * weight))",
        ),
    ),
    "adadelta": Rule(
        "MXNet's AdaDelta: it has no learning rate, and weight decay is not scaled.",
        ("squares", "steps"),
        ("rho", "epsilon"),
        (
            "squares.mul_(self.rho).addcmul_(grad, grad, value=1 - self.rho)",
            "step = (steps + self.epsilon).sqrt() / (squares + self.epsilon).sqrt() * grad",
            "steps.mul_(self.rho).addcmul_(step, step, value=1 - self.rho)",
            "weight.sub_(step + decay * weight)",
        ),
    ),
    "rmsprop": Rule(
        "MXNet's RMSProp: epsilon stands under the root.",
        ("squares",),
        ("gamma1", "epsilon"),
        (
            _DECAYED,
            "squares.mul_(self.gamma1).addcmul_(grad, grad, value=1 - self.gamma1)",
            "weight.sub_(rate * grad / (squares + self.epsilon).sqrt())",
        ),
        clips="after",
    ),
    "centered rmsprop": Rule(
        "MXNet's centred RMSProp: epsilon stands under the root, and the velocity holds the learning rate.",
        ("squares", "mean", "velocity"),
        ("gamma1", "gamma2", "epsilon"),
        (
            _DECAYED,
            "squares.mul_(self.gamma1).addcmul_(grad, grad, value=1 - self.gamma1)",
            "mean.mul_(self.gamma1).add_(grad, alpha=1 - self.gamma1)",
            "root = (squares - mean * mean + self.epsilon).sqrt()",
            "velocity.mul_(self.gamma2).sub_(rate * grad / root)",
            "weight.add_(velocity)",
        ),
        clips="after",
    ),
    "adamax": Rule(
        "MXNet's Adamax: it has no epsilon.",
        ("mean", "largest"),
        ("beta1", "beta2"),
        (
            _DECAYED,
            "mean.mul_(self.beta1).add_(grad, alpha=1 - self.beta1)",
            "largest.copy_(torch.maximum(self.beta2 * largest, grad.abs()))",
            "weight.sub_(rate / (1 - self.beta1**count) * mean / largest)",
        ),
        clips="after",
    ),
    "nadam": Rule(
        "MXNet's Nadam: each weight, in its turn, multiplies one product of momentums that all weights share.",
        ("mean", "variance"),
        ("beta1", "beta2", "epsilon", "schedule_decay", "weights"),
        (
            _DECAYED,
            "now, then = (self.beta1 * (1 - 0.5 * 0.96 ** (n * self.schedule_decay)) for n in (count, count + 1))",
            'product = state["product"] * now ** state["turn"]',
            'state["product"] = state["product"] * now**self.weights',
            *_MOMENTS,
            "step = (1 - now) * grad / (1 - product) + then * mean / (1 - product * then)",
            "weight.sub_(rate * step / ((variance / (1 - self.beta2**count)).sqrt() + self.epsilon))",
        ),
        clips="after",
    ),
    "ftrl": Rule(
        "MXNet's FTRL, which PyTorch lacks.",
        ("z", "n"),
        ("lamda1", "beta"),
        (
            "z.add_(grad - ((n + grad * grad).sqrt() - n.sqrt()) * weight / rate)",
            "n.addcmul_(grad, grad)",
            "scale = (self.beta + n.sqrt()) / rate + decay",
            "weight.copy_(torch.where(z.abs() > self.lamda1, (z.sign() * self.lamda1 - z) / scale, 0.0))",
        ),
    ),
    "lamb": Rule(
        "MXNet's LAMB, which PyTorch lacks.",
        ("mean", "variance"),
        ("beta1", "beta2", "epsilon"),
        (
            *_MOMENTS,
            "step = mean / (1 - self.beta1**count)",
            "step = step / ((variance / (1 - self.beta2**count)).sqrt() + self.epsilon) + decay * weight",
            "size, length = weight.norm(), step.norm()",
            "weight.sub_(rate * (size / length if size > 0 and length > 0 else 1.0) * step)",
        ),
    ),
}


def rule_of(optimizer: Any) -> Rule:
    """The rule of one of MXNet's optimizers.

    Raises:
        KeyError: There is none, or a setting of it has no rule.
    """
    name = type(optimizer).__name__.lower()
    if getattr(optimizer, "centered", False):
        name = f"centered {name}"
    rule = RULES[name]
    wrong = [key for key in ("clip_weights", "lower_bound", "upper_bound") if getattr(optimizer, key, None)]
    wrong += [] if getattr(optimizer, "bias_correction", True) else ["bias_correction"]
    if wrong:
        raise KeyError(f"{name} with {', '.join(wrong)}")
    if name == "sgd" and not optimizer.momentum:
        return rule._replace(
            says="MXNet's SGD: weight decay joins the gradient.",
            slots=(),
            settings=(),
            lines=(_DECAYED, "weight.sub_(rate * grad)"),
        )
    return rule


def any_rule_of(optimizer: Any) -> Rule:
    """As `rule_of`; that of an optimizer without one has no lines, and numbers its slots."""
    try:
        return rule_of(optimizer)
    except KeyError:
        state = optimizer.create_state(0, mx.nd.zeros((1, 1)))
        slots = len(state) if isinstance(state, tuple) else int(state is not None)
        text = f"MXNet's {type(optimizer).__name__}, whose step is not written."
        return Rule(text, tuple(f"slot{number}" for number in range(slots)), (), ())


def turns_of(optimizer: Any) -> Dict[int, int]:
    """The place of each trained Parameter in the Trainer's order of updates, from 1, by its id."""
    trained = [one for _, one in sorted(optimizer.param_dict.items()) if one.grad_req != "null"]
    return {id(one): turn for turn, one in enumerate(trained, 1)}


def optimizer_class(optimizer: Any) -> str:
    """The code of a class of PyTorch that updates as this optimizer of MXNet's."""
    rule, name = any_rule_of(optimizer), type(optimizer).__name__
    clip = optimizer.clip_gradient
    lines: List[str] = list(rule.lines)
    if clip:
        place = lines.index(_DECAYED) + 1 if rule.clips == "after" and _DECAYED in lines else 0
        lines.insert(place, f"grad = grad.clamp(-{clip!r}, {clip!r})")
    known = {**vars(optimizer), "weights": len(turns_of(optimizer)) or 1}
    settings = [f"self.{key} = {float(known[key])!r}" for key in rule.settings]
    unpacked = [f'{slot} = state.setdefault("{slot}", torch.zeros_like(weight))' for slot in rule.slots]
    if rule.counts:
        unpacked.append('count = state["count"] = state.get("count", 0) + 1')
    body = ["grad = weight.grad", *(["state = self.state[weight]"] if unpacked else []), *unpacked, *lines]
    loop = [
        "for group in self.param_groups:",
        '    rate, decay = group["lr"], group["weight_decay"]',
        '    for weight in (one for one in group["params"] if one.grad is not None):',
        *(f"        {line}" for line in body),
    ]
    marked = unwritten(f"write the step of MXNet's {name}", source_of(optimizer)).split("\n")
    return "\n".join(
        [
            f"class {name}(torch.optim.Optimizer):",
            f'    """{rule.says}"""',
            "",
            "    def __init__(self, groups: list) -> None:",
            '        super().__init__(groups, {"lr": 0.0, "weight_decay": 0.0})',
            *(f"        {one}" for one in settings),
            "",
            "    @torch.no_grad()",
            "    def step(self) -> None:  # type: ignore[override]",
            *(f"        {line}" for line in (loop if rule.lines else marked)),
        ]
    )

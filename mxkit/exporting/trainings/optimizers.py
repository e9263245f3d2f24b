"""MXNet's optimizers as short classes of PyTorch: they divide, decay and count as MXNet does."""

import re
from string import Template
from textwrap import indent
from typing import Any, Dict, List, NamedTuple, Tuple

from mxkit.exporting.trainings.texts import source_of, unwritten
import mxnet as mx


class Rule(NamedTuple):
    """One update of one weight, as lines of Python.

    The lines see `weight`, `grad`, `rate`, `decay`, the slots as tensors by name, `count` (updates of this weight, from
    1), and arguments of MXNet's class as `self.NAME`. Those of Nadam also see `state["product"]`, MXNet's `m_schedule`,
    and `state["turn"]`, the place of the weight in MXNet's order of updates, from 1 to `self.weights`.

    Attributes:
        says: What differs from PyTorch's own class, a sentence.
        slots: Names of the tensors kept for each weight, in the order of MXNet's states.
        lines: The lines; `$clip` stands where `clip_gradient` acts, if that is not before all others.
    """

    says: str
    slots: Tuple[str, ...] = ()
    lines: str = ""

    @property
    def settings(self) -> List[str]:
        """Names of the arguments that the lines read."""
        return list(dict.fromkeys(re.findall(r"self\.(\w+)", self.lines)))


_DECAYED = "grad = grad + decay * weight"
_DECAYED_THEN_CLIPPED = f"{_DECAYED}\n$clip"
_MOMENTS = """mean.mul_(self.beta1).add_(grad, alpha=1 - self.beta1)
variance.mul_(self.beta2).addcmul_(grad, grad, value=1 - self.beta2)"""

# By the name in MXNet's registry; the formulas are those of mxnet/optimizer/optimizer.py and optimizer_op-inl.h.
RULES: Dict[str, Rule] = {
    "sgd": Rule(
        "MXNet's SGD: the velocity holds the learning rate, so a schedule changes new steps only.",
        ("velocity",),
        f"""{_DECAYED}
velocity.mul_(self.momentum).sub_(rate * grad)
weight.add_(velocity)""",
    ),
    "nag": Rule(
        "MXNet's Nesterov momentum: the velocity holds the rate, and the decay of the weight after the step (T286).",
        ("velocity",),
        """step = grad + decay * weight
weight.add_(self.momentum * (self.momentum * velocity - rate * step) - rate * step)
velocity.mul_(self.momentum).sub_(rate * (grad + decay * weight))""",
    ),
    "adam": Rule(
        "MXNet's Adam: epsilon joins the root of the uncorrected variance; weight decay joins the gradient.",
        ("mean", "variance"),
        f"""{_DECAYED_THEN_CLIPPED}
{_MOMENTS}
corrected = rate * math.sqrt(1 - self.beta2**count) / (1 - self.beta1**count)
weight.sub_(corrected * mean / (variance.sqrt() + self.epsilon))""",
    ),
    "adagrad": Rule(
        "MXNet's AdaGrad: epsilon stands under the root, and weight decay is not divided by it.",
        ("history",),
        """history.addcmul_(grad, grad)
weight.sub_(rate * (grad / (history + self.float_stable_eps).sqrt() + decay * weight))""",
    ),
    "adadelta": Rule(
        "MXNet's AdaDelta: it has no learning rate, and weight decay is not scaled.",
        ("squares", "steps"),
        """squares.mul_(self.rho).addcmul_(grad, grad, value=1 - self.rho)
step = (steps + self.epsilon).sqrt() / (squares + self.epsilon).sqrt() * grad
steps.mul_(self.rho).addcmul_(step, step, value=1 - self.rho)
weight.sub_(step + decay * weight)""",
    ),
    "rmsprop": Rule(
        "MXNet's RMSProp: epsilon stands under the root.",
        ("squares",),
        f"""{_DECAYED_THEN_CLIPPED}
squares.mul_(self.gamma1).addcmul_(grad, grad, value=1 - self.gamma1)
weight.sub_(rate * grad / (squares + self.epsilon).sqrt())""",
    ),
    "centered rmsprop": Rule(
        "MXNet's centred RMSProp: epsilon stands under the root, and the velocity holds the learning rate.",
        ("squares", "mean", "velocity"),
        f"""{_DECAYED_THEN_CLIPPED}
squares.mul_(self.gamma1).addcmul_(grad, grad, value=1 - self.gamma1)
mean.mul_(self.gamma1).add_(grad, alpha=1 - self.gamma1)
root = (squares - mean * mean + self.epsilon).sqrt()
velocity.mul_(self.gamma2).sub_(rate * grad / root)
weight.add_(velocity)""",
    ),
    "adamax": Rule(
        "MXNet's Adamax: it has no epsilon.",
        ("mean", "largest"),
        f"""{_DECAYED_THEN_CLIPPED}
mean.mul_(self.beta1).add_(grad, alpha=1 - self.beta1)
largest.copy_(torch.maximum(self.beta2 * largest, grad.abs()))
weight.sub_(rate / (1 - self.beta1**count) * mean / largest)""",
    ),
    "nadam": Rule(
        "MXNet's Nadam: each weight, in its turn, multiplies one product of momentums that all weights share.",
        ("mean", "variance"),
        f"""{_DECAYED_THEN_CLIPPED}
now, then = (self.beta1 * (1 - 0.5 * 0.96 ** (n * self.schedule_decay)) for n in (count, count + 1))
product = state["product"] * now ** state["turn"]
state["product"] = state["product"] * now**self.weights
{_MOMENTS}
step = (1 - now) * grad / (1 - product) + then * mean / (1 - product * then)
weight.sub_(rate * step / ((variance / (1 - self.beta2**count)).sqrt() + self.epsilon))""",
    ),
    "ftrl": Rule(
        "MXNet's FTRL, which PyTorch lacks.",
        ("z", "n"),
        """z.add_(grad - ((n + grad * grad).sqrt() - n.sqrt()) * weight / rate)
n.addcmul_(grad, grad)
scale = (self.beta + n.sqrt()) / rate + decay
weight.copy_(torch.where(z.abs() > self.lamda1, (z.sign() * self.lamda1 - z) / scale, 0.0))""",
    ),
    "lamb": Rule(
        "MXNet's LAMB, which PyTorch lacks.",
        ("mean", "variance"),
        f"""{_MOMENTS}
step = mean / (1 - self.beta1**count)
step = step / ((variance / (1 - self.beta2**count)).sqrt() + self.epsilon) + decay * weight
size, length = weight.norm(), step.norm()
weight.sub_(rate * (size / length if size > 0 and length > 0 else 1.0) * step)""",
    ),
}


_CLASS = Template('''class $name(torch.optim.Optimizer):
    """$says"""

    def __init__(self, groups: list) -> None:
        super().__init__(groups, {"lr": 0.0, "weight_decay": 0.0})
$settings
    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
$body''')
_LOOP = """for group in self.param_groups:
    rate, decay = group["lr"], group["weight_decay"]
    for weight in (one for one in group["params"] if one.grad is not None):
"""


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
        return Rule("MXNet's SGD: weight decay joins the gradient.", (), f"{_DECAYED}\nweight.sub_(rate * grad)")
    return rule


def any_rule_of(optimizer: Any) -> Rule:
    """As `rule_of`; that of an optimizer without one has no lines, and numbers its slots."""
    try:
        return rule_of(optimizer)
    except KeyError:
        state = optimizer.create_state(0, mx.nd.zeros((1, 1)))
        slots = len(state) if isinstance(state, tuple) else int(state is not None)
        text = f"MXNet's {type(optimizer).__name__}, whose step is not written."
        return Rule(text, tuple(f"slot{number}" for number in range(slots)))


def turns_of(optimizer: Any) -> Dict[int, int]:
    """The place of each trained Parameter in the Trainer's order of updates, from 1, by its id."""
    trained = [one for _, one in sorted(optimizer.param_dict.items()) if one.grad_req != "null"]
    return {id(one): turn for turn, one in enumerate(trained, 1)}


def optimizer_class(optimizer: Any) -> str:
    """The code of a class of PyTorch that updates as this optimizer of MXNet's."""
    rule, name, clip = any_rule_of(optimizer), type(optimizer).__name__, optimizer.clip_gradient
    known = {**vars(optimizer), "weights": len(turns_of(optimizer)) or 1}
    body = unwritten(f"write the step of MXNet's {name}", source_of(optimizer))
    if rule.lines:
        unpacked = [f'{slot} = state.setdefault("{slot}", torch.zeros_like(weight))' for slot in rule.slots]
        unpacked += ['count = state["count"] = state.get("count", 0) + 1'] if "count" in rule.lines else []
        unpacked = ["grad = weight.grad", *["state = self.state[weight]"] * bool(unpacked), *unpacked]
        text = "\n".join([*unpacked, rule.lines if "$clip" in rule.lines else f"$clip\n{rule.lines}"])
        text = Template(text).substitute(clip=f"grad = grad.clamp(-{clip!r}, {clip!r})" if clip else "")
        body = _LOOP + indent(text.replace("\n\n", "\n"), " " * 8)
    settings = "".join(f"        self.{key} = {float(known[key])!r}\n" for key in rule.settings)
    return _CLASS.substitute(name=name, says=rule.says, settings=settings, body=indent(body, " " * 8))

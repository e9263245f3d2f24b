"""Makes updates of an exported `train.py` in a process of its own, for the proof: replay.py FOLDER."""

from contextlib import suppress
import copy
import hashlib
import os
import sys
from typing import Any, Dict, List

import numpy as np

#: How many numbers each call of `drawn` gave since the updates began.
calls: List[int] = []


def drawn(count: int) -> "np.ndarray":
    """Stand for `count` numbers drawn from 0 to 1, in MXNet and in `train.py`; each call gives others."""
    calls.append(count)
    return np.modf(np.arange(sum(calls) - count + 1, sum(calls) + 1) * (5**0.5 - 1) / 2)[0].astype(np.float32)


def main(folder: str) -> None:
    """Read `given.npz` in the folder, make its updates, and write `found.npz`."""
    os.chdir(folder)
    sys.path[0] = folder
    import torch

    train: Any = __import__("train")
    with np.load("given.npz") as file:
        given = {name: file[name] for name in file.files}
    unwritten, updates = given["unwritten"].tolist(), int(given["updates"])
    marked = suppress(*[NotImplementedError] * bool(unwritten))
    if "loss" in unwritten:
        train.losses = _squares
    net, optimizer, state, *average = _resumed(train)
    inputs = int(given["inputs"])
    windows, digests = _given_windows(given) if "data" in unwritten else _windows(train, given)
    found: Dict[str, Any] = {
        "trained": np.array([one.requires_grad for _, one in sorted(net.named_parameters())]),
        "rates": np.array([train.rate(number) for number in range(1, int(given["rates"]) + 1)]),
        "digests": np.array(digests),
        "samples": np.array([sum(len(x) for x, *_ in window) for window in windows]),
        "free": np.full(updates, np.nan),
    }
    for number, window in enumerate(windows):
        update = state["updates"] + number + 1
        if number:  # the first update begins as `resume` does
            _put(net, optimizer, given, number)
        wide = copy.deepcopy(net).double()
        doubles = [[*(one.double() for one in batch[:inputs]), *batch[inputs:]] for batch in window]
        gradients = train.new_optimizer(wide)
        gradients.step = lambda: None
        with marked:
            samples, loss, *_ = train.update(wide, gradients, update, doubles)
            found[f"{number} loss "] = np.array(loss / (samples or 1))
            for name, weight in wide.named_parameters():
                found[f"{number} gradient {name}"] = np.array(0.0 if weight.grad is None else weight.grad)
            found.update({f"{number} statistic {name}": np.array(one) for name, one in wide.named_buffers()})
        for name, weight in net.named_parameters():
            gradient = given.get(f"{number} gradient {name}")
            weight.grad = None if gradient is None else torch.tensor(gradient, dtype=weight.dtype)
        for group in optimizer.param_groups:
            group["lr"] = train.rate(update) * group["factor"]
        with marked:
            optimizer.step()
            for name, weight in net.named_parameters():
                found[f"{number} value {name}"] = weight.detach().numpy().copy()
                slots = optimizer.state[weight].items()
                found.update({f"{number} slot {name}:{slot}": np.array(one) for slot, one in slots})
            for own in average:
                if number:
                    own.module.load_state_dict(_part(given, f"{number} averaged "))
                    own.n_averaged.fill_(int(given[f"{number} averages"]))
                own.update_parameters(net)
                for name, one in own.module.named_parameters():
                    found[f"{number} average {name}"] = one.detach().numpy().copy()
    net, optimizer, state, *_ = _resumed(train)
    with marked:
        for number, window in enumerate([] if {"loss", "data"} & {*unwritten} else windows):
            samples, loss, *_ = train.update(net, optimizer, state["updates"] + number + 1, window)
            found["free"][number] = loss / (samples or 1)
    np.savez("found.npz", **found)


def _squares(output: Any, *labels: Any) -> Any:
    """As `squares` of recording.py."""
    return sum(one.flatten(1).square().mean(1) for one in (output if isinstance(output, tuple) else [output]))


def _windows(train: Any, given: Dict[str, Any]) -> Any:
    """The batches of the first updates, as `train.py` reads them, and digests of all batches of two epochs or more."""
    updates, inputs, (begin, first) = int(given["updates"]), int(given["inputs"]), given["place"]
    loader, order, _ = train.loaders()
    epoch, found, digests = int(begin), [], []  # type: Any, Any, Any
    while epoch < begin + 2 or len(found) < updates:
        order.begin(epoch, int(first))
        for window in train.windows(loader, "cpu"):
            found += [window] * (len(found) < updates)
            for batch in window:
                content = [*batch[:inputs], *(one.double() for one in batch[inputs:])]
                digests.append(list(hashlib.sha256(b"".join(one.numpy().tobytes() for one in content)).digest()))
        epoch, first = epoch + 1, 0
    return found, digests


def _given_windows(given: Dict[str, Any]) -> Any:
    """The batches of each update, of MXNet's loader."""
    batches = [list(_part(given, f"batch {at} ").values()) for at in range(given["cuts"][-1])]
    return [batches[begin:end] for begin, end in zip([0, *given["cuts"]], given["cuts"])], []


def _part(given: Dict[str, Any], beginning: str) -> Dict[str, Any]:
    """Arrays whose names begin so, as tensors by the rest of their names."""
    import torch

    return {name[len(beginning) :]: torch.tensor(one) for name, one in given.items() if name.startswith(beginning)}


def _resumed(train: Any) -> Any:
    """The net without Dropout, the optimizer and the place in the training, and the averages if there are any."""
    import torch

    torch.nn.functional.dropout = lambda x, *args, **kwargs: x
    torch.rand = lambda shape, **kwargs: torch.tensor(drawn(*shape))
    torch.randperm = lambda count, **kwargs: torch.arange(count)
    calls.clear()
    net, optimizer, state, *average = train.resume("cpu")
    for module in net.modules():
        if type(module).__name__.startswith("Dropout"):
            module.p = 0.0
        if isinstance(module, torch.nn.RNNBase):
            module.dropout = 0.0
    return (net, optimizer, state, *average)


def _put(net: Any, optimizer: Any, given: Dict[str, Any], number: int) -> None:
    """Give the net and the optimizer what MXNet holds before an update."""
    net.load_state_dict(_part(given, f"{number} before "))
    optimizer.state.clear()
    for name, weight in net.named_parameters():
        own = _part(given, f"{number} held {name}:")
        if own:
            optimizer.state[weight] = {slot: int(one) if slot == "count" else one for slot, one in own.items()}


if __name__ == "__main__":
    main(sys.argv[1])

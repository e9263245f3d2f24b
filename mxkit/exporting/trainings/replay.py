"""Makes updates of an exported `train.py` in a process of its own, for the proof: replay.py FOLDER."""

import copy
import hashlib
import itertools
import os
import sys
from typing import Any, Dict, List

import numpy as np


def main(folder: str) -> None:
    """Read `given.npz` in the folder, make its updates, and write `found.npz`."""
    os.chdir(folder)
    sys.path[0] = folder
    import torch

    train: Any = __import__("train")
    count = getattr(train, "count", len)
    with np.load("given.npz") as file:
        given = {name: file[name] for name in file.files}
    net, optimizer, state = _resumed(train)
    epoch, first = given["place"].tolist()
    loader, order, _ = train.loaders()
    windows: List[Any] = []
    digests: List[List[int]] = []
    for number, begun in ((epoch, first), (epoch + 1, 0)):
        order.begin(number, begun)
        batches = iter(loader)
        for window in iter(lambda own=batches: list(itertools.islice(own, train.ACCUMULATE)), []):  # type: ignore[misc]
            windows += [window] * (len(windows) < int(given["updates"]))
            for x, label in window:
                content = x.numpy().tobytes() + label.double().numpy().tobytes()
                digests.append(list(hashlib.sha256(content).digest()))
    found: Dict[str, Any] = {
        "trained": np.array(
            [one.requires_grad for _, one in sorted(net.named_parameters(), key=lambda named: named[0])]
        ),
        "rates": np.array([train.rate(number) for number in range(1, int(given["rates"]) + 1)]),
        "digests": np.array(digests),
    }
    for number, window in enumerate(windows):
        update = state["updates"] + number + 1
        _put(net, optimizer, given, number)
        wide = copy.deepcopy(net).double()
        doubles = [(x.double(), label) for x, label in window]
        loss, _ = train.update(wide, train.new_optimizer(wide), update, doubles)
        found[f"{number} loss "] = np.array(loss / sum(count(label) for _, label in window))
        for name, weight in wide.named_parameters():
            found[f"{number} gradient {name}"] = np.array(0.0 if weight.grad is None else weight.grad)
        found.update({f"{number} statistic {name}": np.array(one) for name, one in wide.named_buffers()})
        for name, weight in net.named_parameters():
            gradient = given.get(f"{number} gradient {name}")
            weight.grad = None if gradient is None else torch.tensor(gradient, dtype=weight.dtype)
        for group in optimizer.param_groups:
            group["lr"] = train.rate(update) * group["factor"]
        optimizer.step()
        for name, weight in net.named_parameters():
            found[f"{number} value {name}"] = weight.detach().numpy().copy()
            found.update(
                {f"{number} slot {name}:{slot}": np.array(one) for slot, one in optimizer.state[weight].items()}
            )
    net, optimizer, state = _resumed(train)
    found["free"] = np.zeros(int(given["updates"]))
    for number, window in enumerate(windows):
        loss, _ = train.update(net, optimizer, state["updates"] + number + 1, window)
        found["free"][number] = loss / sum(count(label) for _, label in window)
    np.savez("found.npz", **found)


def _resumed(train: Any) -> Any:
    """The net without Dropout, the optimizer and the place in the training."""
    import torch

    torch.nn.functional.dropout = lambda x, *args, **kwargs: x
    net, optimizer, state = train.resume("cpu")
    for module in net.modules():
        if type(module).__name__.startswith("Dropout"):
            module.p = 0.0
        if isinstance(module, torch.nn.RNNBase):
            module.dropout = 0.0
    return net, optimizer, state


def _put(net: Any, optimizer: Any, given: Dict[str, Any], number: int) -> None:
    """Give the net and the optimizer what MXNet holds before an update."""
    import torch

    key = f"{number} before "
    net.load_state_dict({name[len(key) :]: torch.tensor(one) for name, one in given.items() if name.startswith(key)})
    optimizer.state.clear()
    for name, weight in net.named_parameters():
        start = f"{number} held {name}:"
        own = {one[len(start) :]: torch.tensor(value) for one, value in given.items() if one.startswith(start)}
        if own:
            optimizer.state[weight] = {slot: int(one) if slot == "count" else one for slot, one in own.items()}


if __name__ == "__main__":
    main(sys.argv[1])

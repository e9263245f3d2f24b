"""PyTorch's side of the benchmarks, by .venv/peers: mxkit's nets, a plain loop, Lightning's Trainer, predictions."""

from functools import lru_cache
import importlib.util
import logging
import os
import time
from typing import Any, Dict, List, Tuple
import warnings

import torch
from torch import nn
from torch.utils.data import DataLoader

try:
    import lightning
except ImportError:  # then PyTorch's loop is compared alone
    lightning = None

torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))


def versions() -> Dict[str, str]:
    return {"PyTorch": torch.__version__.split("+")[0]}


def lightning_versions() -> Dict[str, str]:
    return {"Lightning": lightning.__version__}


class Residual(nn.Module):
    """Two convolutions and a way past them, as `vision.BasicBlockV1`."""

    def __init__(self, channels_in: int, channels: int) -> None:
        super().__init__()
        stride = 1 if channels_in == channels else 2
        self.body = nn.Sequential(
            nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels, channels, 3, 1, 1, bias=False),
            nn.BatchNorm2d(channels),
        )
        self.past = nn.Sequential()
        if stride == 2:
            self.past.append(nn.Conv2d(channels_in, channels, 1, stride, bias=False))
            self.past.append(nn.BatchNorm2d(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu_(self.body(x) + self.past(x))


class Bottleneck(nn.Module):
    """Three convolutions and a way past them, as `vision.BottleneckV1`: the first has the stride, two have biases."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        layers: List[nn.Module] = []
        quarter = channels // 4
        for before, after, size in ((channels_in, quarter, 1), (quarter, quarter, 3), (quarter, channels, 1)):
            layers.append(nn.Conv2d(before, after, size, stride, size // 2, bias=size == 1))
            layers += [nn.BatchNorm2d(after), nn.ReLU(inplace=True)]
            stride = 1
        self.body, self.past = nn.Sequential(*layers[:-1]), nn.Sequential()
        if channels_in != channels:
            stride = layers[0].stride[0]
            self.past.append(nn.Conv2d(channels_in, channels, 1, stride, bias=False))
            self.past.append(nn.BatchNorm2d(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu_(self.body(x) + self.past(x))


def network(name: str) -> nn.Module:
    """The layers of `mxkit.models.get_model(name)`."""
    if name == "softmax_regression":
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
    if name == "mlp":
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))
    if name == "lenet":
        layers: List[nn.Module] = []
        for channels_in, channels in ((1, 20), (20, 50)):
            layers += [nn.Conv2d(channels_in, channels, 5), nn.ReLU(), nn.MaxPool2d(2)]
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(800, 128), nn.ReLU(), nn.Linear(128, 10))
    if name == "vgg11":
        layers, before = [], 3
        for channels in ((64,), (128,), (256, 256), (512, 512), (512, 512)):
            for one in channels:
                layers += [nn.Conv2d(before, one, 3, padding=1), nn.ReLU(inplace=True)]
                before = one
            layers.append(nn.MaxPool2d(2))
        layers.append(nn.Flatten())
        for dense in (nn.LazyLinear(4096), nn.Linear(4096, 4096)):
            layers += [dense, nn.ReLU(inplace=True), nn.Dropout(0.5)]
        return nn.Sequential(*layers, nn.Linear(4096, 10))
    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    if name == "resnet50":
        for stage, blocks in enumerate((3, 4, 6, 3)):
            before, channels = (128 * 2**stage if stage else 64), 256 * 2**stage
            layers.append(Bottleneck(before, channels, 2 if stage else 1))
            layers += [Bottleneck(channels, channels, 1) for _ in range(blocks - 1)]
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 10))
    for channels_in, channels in ((64, 64), (64, 128), (128, 256), (256, 512)):
        layers += [Residual(channels_in, channels), Residual(channels, channels)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


@lru_cache(maxsize=None)
def built(way: str, name: str, batch: int, shape: Tuple[int, ...], updates: int) -> Tuple[Any, Any, List[Any]]:
    """A net, its optimizer and the batches, kept from round to round."""
    torch.manual_seed(0)
    net = network(name)
    net(torch.rand(2, *shape))  # the first values of lazy layers
    different = [(torch.rand(batch, *shape), torch.randint(0, 10, (batch,))) for _ in range(8)]
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    return net, optimizer, [different[number % 8] for number in range(updates)]


def loop(name: str, batch: int, shape: List[int], updates: int, threads: int, amp: bool = False) -> Dict[str, float]:
    """An epoch of the loop that PyTorch's tutorials write: its seconds, and the number of parameters."""
    torch.set_num_threads(threads)
    net, optimizer, batches = built("loop", name, batch, tuple(shape), updates)
    loss = nn.CrossEntropyLoss()
    begun = time.perf_counter()
    for x, y in batches:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=amp):
            found = loss(net(x), y)
        found.backward()
        optimizer.step()
    return answer(net, begun)


class Sequence(nn.Module):
    """The nets of benchmarks/attention.py."""

    def __init__(self, name: str, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.words = nn.Embedding(5000, width)
        self.recurrent = not heads
        if self.recurrent:
            self.layers: Any = getattr(nn, name.upper())(width, width, layers, batch_first=True)
        else:
            layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, batch_first=True)
            self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 5000 if self.recurrent else 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.layers(self.words(x))
        return self.head(found[0] if self.recurrent else found.mean(1))


@lru_cache(maxsize=None)
def built_sequence(name: str, updates: int, shape: Tuple[int, int], sizes: Tuple[int, int, int]) -> Tuple[Any, ...]:
    torch.manual_seed(0)
    net = Sequence(name, *sizes)
    labels = shape if net.recurrent else shape[:1]
    data = [(torch.randint(0, 5000, shape), torch.randint(0, 10, labels)) for _ in range(updates)]
    return net, torch.optim.Adam(net.parameters(), lr=1e-4), data


def sequence_loop(
    name: str,
    updates: int,
    threads: int,
    shape: List[int],
    width: int,
    layers: int,
    heads: int,
    bar: float,
    amp: bool = False,
) -> Dict[str, float]:
    """As `loop`, over sequences of words."""
    torch.set_num_threads(threads)
    net, optimizer, data = built_sequence(name, updates, (shape[0], shape[1]), (width, layers, heads))
    loss = nn.CrossEntropyLoss()
    begun = time.perf_counter()
    for x, y in data:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=amp):
            found = loss(net(x).flatten(0, -2), y.flatten())
        found.backward()
        optimizer.step()
    return answer(net, begun)


def profiled_sequence(updates: int, **arguments: Any) -> Dict[str, float]:
    """Milliseconds an update of each operator itself, of `sequence_loop`."""
    sequence_loop(updates=updates, **arguments)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as record:
        sequence_loop(updates=updates, **arguments)
    return {one.key: one.self_cpu_time_total / updates / 1e3 for one in record.key_averages()}


def answer(net: nn.Module, begun: float) -> Dict[str, float]:
    passed = time.perf_counter() - begun
    return {"seconds": passed, "parameters": sum(parameter.numel() for parameter in net.parameters())}


def with_lightning(name: str, batch: int, shape: List[int], updates: int) -> Dict[str, float]:
    """As `loop`, by `Trainer.fit` with neither bar, log, checkpoint nor summary."""
    net, _, batches = built("lightning", name, batch, tuple(shape), updates)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.loss = net, nn.CrossEntropyLoss()

        def training_step(self, batch: Any, _: int) -> Any:
            return self.loss(self.net(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        begun = time.perf_counter()
        lightning.Trainer(
            accelerator="cpu", max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False,
        ).fit(Module(), DataLoader(batches, batch_size=None))  # fmt: skip
    return answer(net, begun)


@lru_cache(maxsize=8)
def optimizer_of(arguments: Tuple[Tuple[str, Any], ...], size: int, parameters: int) -> torch.optim.Optimizer:
    """An optimizer of parameters with gradients."""
    given = dict(arguments)
    made = [torch.randn(size, requires_grad=True) for _ in range(parameters)]
    for parameter in made:
        parameter.grad = torch.full((size,), 0.01)
    kind = getattr(torch.optim, given.pop("name"))
    return kind(made, lr=1e-6, **{name: value for name, value in given.items() if name != "fused" or value})


def timed_optimizer(arguments: Dict[str, Any], size: int, parameters: int) -> float:
    """Seconds of `optimizer.step()`, the mean of some 0.05 s."""
    optimizer = optimizer_of(tuple(arguments.items()), size, parameters)
    passes = max(1, 5_000_000 // (size * parameters + 5_000 * parameters))
    begun = time.perf_counter()
    for _ in range(passes):
        optimizer.step()
    return (time.perf_counter() - begun) / passes


def prediction_versions() -> Dict[str, str]:
    for package in ("numpy", "safetensors"):
        importlib.import_module(package)
    return versions()


@lru_cache(maxsize=None)
def exported(base: str, form: str) -> nn.Module:
    """A net that `mxkit.export` wrote."""
    spec = importlib.util.spec_from_file_location("exported", f"{base}.py")
    if spec is None or spec.loader is None:
        raise ImportError(f"{base}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    net: nn.Module = module.load(f"{base}.safetensors")
    return net.to(memory_format=LAYOUTS[form])


LAYOUTS = {"channels last": torch.channels_last, "plain call": torch.contiguous_format}


def seconds(base: str, form: str, shape: List[int], calls: int) -> float:
    """Seconds of so many calls, in inference mode and channels last, or as it is after `eval()`."""
    net, x = exported(base, form), torch.rand(*shape).to(memory_format=LAYOUTS[form])
    with torch.inference_mode(form == "channels last"):
        net(x)
        begun = time.perf_counter()
        for _ in range(calls):
            net(x)
        return time.perf_counter() - begun


def classes(base: str, form: str) -> List[int]:
    """What a net sees in the images that are held out."""
    import numpy as np

    x = torch.from_numpy(np.load(f"{base}-held-out.npy")).to(memory_format=LAYOUTS[form])
    with torch.inference_mode():
        return [one for part in x.split(45) for one in exported(base, form)(part).argmax(1).tolist()]

"""Devices by name, batches split over them, each sample exactly once, and a limit of the batches that are queued."""

from collections import deque
import ctypes
from functools import lru_cache
import math
from pathlib import Path
import re
import socket
from typing import Any, Callable, Deque, Dict, FrozenSet, Iterable, List, NamedTuple, Optional, Sequence, Tuple, Union
import warnings

from mxkit.core.arrays import Packed, legacy, of_kind, to_host
from mxkit.errors import DataError, DeviceError, EmptyDataError, TrapWarning
from mxkit.runtime.gpus import has_known_kernels, read_driver, unusable_gpus, why_no_gpu
from mxkit.runtime.gpus import is_gpu as is_gpu
import mxnet as mx
from mxnet.base import _LIB, NDArrayHandle, check_call, mx_uint
from mxnet.ndarray.ndarray import _DTYPE_NP_TO_MX
import numpy as np

DeviceSpec = Union[str, "mx.Context", Sequence["mx.Context"]]

_SMALLER: Dict["np.dtype", "np.dtype"] = {np.dtype(kind): np.dtype("float32") for kind in ("float64", "bool")}
_SMALLER.update({np.dtype(kind): np.dtype("int32") for kind in ("int64", "uint64", "uint32", "uint16", "int16")})

_own_gpus: FrozenSet[int] = frozenset()  # none is all

_SPEC = re.compile(r"(?P<kind>cpu|gpu)(?::(?P<numbers>\d+(?:,\d+)*))?")
_FORMS = "'auto', 'cpu', 'cpu:4' (four virtual devices), 'gpu', 'gpu:0,2', or a list of mx.Context"


def devices(spec: DeviceSpec = "auto") -> List["mx.Context"]:
    """List the devices that `spec` names.

    Args:
        spec: `"auto"` is every GPU that MXNet sees and has kernels for, or the CPU if there is none. `"cpu:4"` is
            four virtual devices of the CPU, which behave like four GPUs except for speed. `"gpu"` is every GPU,
            `"gpu:0,2"` the GPUs with these numbers. Contexts are returned as they are. After
            `mxkit.distributed.initialize()` `"auto"` and `"gpu"` leave GPUs to the other workers of the machine.

    Returns:
        At least one `mx.Context`, without duplicates.

    Raises:
        DeviceError: `spec` has another form, or names a GPU that MXNet does not see or has no kernels for; the text
            gives the reason.

    Warns:
        TrapWarning: `"auto"` ignores a GPU.

    >>> devices("cpu:2")
    [cpu(0), cpu(1)]
    """
    if isinstance(spec, mx.Context):
        found = [spec]
    elif isinstance(spec, str):
        found = _parse(spec.strip().lower(), spec)
    else:
        found = list(spec) if isinstance(spec, Sequence) else []
        if not found or not all(isinstance(device, mx.Context) for device in found):
            raise DeviceError(f"devices: expected {_FORMS}; received {spec!r:.100}")
    if len(set(found)) != len(found):
        raise DeviceError(f"devices: each device may be named once; received {spec!r:.100}")
    gpus = [device for device in found if is_gpu(device)]
    if gpus:
        count, failure = count_gpus()
        if count == 0:
            with_cuda = mx.runtime.Features().is_enabled("CUDA")
            reason = why_no_gpu(with_cuda, read_driver(), failure)
            raise DeviceError(f"devices: {gpus[0]} does not exist: {reason}. Or use 'auto', which takes what is there")
        _refuse_gpus(gpus, count, _unusable(count))
    return found


def _parse(text: str, spec: str) -> List["mx.Context"]:
    if text == "auto":
        count, failure = count_gpus()
        return _own(_automatic(count, _unusable(count), failure))
    match = _SPEC.fullmatch(text)
    numbers = [int(number) for number in ((match and match["numbers"]) or "").split(",") if number]
    if match is None or (match["kind"] == "cpu" and (len(numbers) > 1 or numbers == [0])):
        raise DeviceError(f"devices: expected {_FORMS}; received {spec!r:.100}")
    if match["kind"] == "gpu":
        return [mx.gpu(number) for number in numbers] or _own([mx.gpu(i) for i in range(max(1, count_gpus()[0]))])
    return [mx.cpu(i) for i in range(numbers[0] if numbers else 1)]


def usable_gpus() -> Dict[int, str]:
    """Numbers of the GPUs that MXNet sees and has kernels for, and a text for each that no other GPU has."""
    count, _ = count_gpus()
    names = {gpu.index: gpu.uuid for gpu in read_driver().gpus} if count else {}
    unusable = _unusable(count)
    return {i: names.get(i) or f"{socket.gethostname()} {i}" for i in range(count) if i not in unusable}


def set_own_gpus(numbers: Sequence[int]) -> None:
    """Let `devices` leave out all other GPUs, unless `spec` names them."""
    global _own_gpus
    _own_gpus = frozenset(numbers)


def _own(found: List["mx.Context"]) -> List["mx.Context"]:
    return [device for device in found if not (_own_gpus and is_gpu(device)) or device.device_id in _own_gpus]


def count_gpus() -> Tuple[int, str]:
    """Return the number of GPUs that MXNet sees, and its message if the count failed, as with a broken driver."""
    try:
        return mx.context.num_gpus(), ""
    except mx.base.MXNetError as error:
        return 0, str(error).strip().splitlines()[-1]


@lru_cache(maxsize=None)
def _unusable(count: int) -> Dict[int, str]:
    if count == 0 or not has_known_kernels(Path(mx.base._LIB._name)):  # a CPU build of MXNet never loads the driver
        return {}
    return unusable_gpus(count, read_driver())


def _automatic(count: int, unusable: Dict[int, str], failure: str) -> List["mx.Context"]:
    notes = [f"leaves out gpu({number}): {reason}" for number, reason in unusable.items()]
    if failure:
        notes.append(f"takes the CPU, because MXNet fails to look for GPUs: {failure}")
    for note in notes:
        warnings.warn(f"devices: 'auto' {note}", TrapWarning, stacklevel=4)
    return [mx.gpu(i) for i in range(count) if i not in unusable] or [mx.cpu()]


def _refuse_gpus(devices: Sequence["mx.Context"], count: int, unusable: Dict[int, str]) -> None:
    for device in devices:
        if device.device_id >= count:
            raise DeviceError(
                f"devices: {device} does not exist: MXNet {mx.__version__} sees {count} GPUs, numbered from 0. Use "
                "'auto' to take what is there, or ask `mxkit doctor` what is missing"
            )
        if device.device_id in unusable:
            raise DeviceError(f"devices: {device} cannot be used: {unusable[device.device_id]}")


class Shard(NamedTuple):
    """The part of a batch for one device.

    Attributes:
        device: Device of the arrays.
        inputs: The net's inputs, each of shape (b, ...), arrays of one kind or `Packed`.
        labels: Arguments of the loss after the net's output, each of shape (b, ...); may be empty.
        samples: b, at least 1.
        numpy: Whether the arrays are of `mx.np`.
    """

    device: "mx.Context"
    inputs: Tuple[Any, ...]
    labels: Tuple[Any, ...]
    samples: int
    numpy: bool = False

    def unpacked(self) -> "Shard":
        """Replace `Packed` inputs by arrays."""
        if all(type(array) is not Packed for array in self.inputs):
            return self
        inputs = [array.unpacked() if type(array) is Packed else array for array in self.inputs]
        return self._replace(inputs=of_kind(tuple(inputs), self.numpy))


class Shards(List[Shard]):
    """A batch split over devices: one `Shard` for each device with samples, in the order of the devices.

    Attributes:
        samples: Number of samples of the whole batch.
        idle: Devices without a sample, because the batch is smaller than the number of devices.
    """

    def __init__(self, shards: Sequence[Shard], idle: Sequence["mx.Context"]) -> None:
        super().__init__(shards)
        self.samples = sum(shard.samples for shard in shards)
        self.idle = list(idle)

    def __repr__(self) -> str:
        parts = ", ".join(f"{shard.samples} on {shard.device}" for shard in self)
        return f"Shards({self.samples} samples: {parts}{'; idle ' + str(self.idle) if self.idle else ''})"


def split_batch(batch: Any, devices: Sequence["mx.Context"], numpy: Optional[bool] = None) -> Shards:
    """Split a batch over devices along axis 0, sizes differing by at most one sample.

    A batch smaller than the number of devices leaves the last devices idle: the engine fails on slices of size 0,
    which `gluon.utils.split_and_load` makes (T8).

    Args:
        batch: `(x, y)`, or tuples of arrays in either place, or `x` alone. Arrays are NDArray, `mx.np`, `Packed` or
            NumPy of shape (B, ...); float64 NumPy becomes float32 as everywhere in MXNet, other types as for
            `as_ndarray`.
        devices: Devices of the parts, at least one.
        numpy: Whether the parts are arrays of `mx.np`; None is the switch of the thread, `npx.set_np()`.

    Returns:
        `Shards`, one for each device with samples.

    Raises:
        EmptyDataError: The batch has no sample.
        DataError: The arrays' first axes differ, or an item is not an array.

    >>> split_batch((np.zeros((5, 3)), np.zeros(5)), [mx.cpu(0), mx.cpu(1)])
    Shards(5 samples: 3 on cpu(0), 2 on cpu(1))
    """
    numpy = mx.util.is_np_array() if numpy is None else numpy
    inputs, labels = unpack(batch)
    arrays = [as_ndarray(array) for array in inputs + labels]
    samples = batch_size(arrays)
    active = list(devices)[: max(1, min(samples, len(devices)))]
    quotient, remainder = divmod(samples, len(active))
    count, end, shards = len(inputs), 0, []
    for number, device in enumerate(active):
        begin, end = end, end + quotient + (number < remainder)
        pieces = arrays if len(active) == 1 else [array[begin:end] for array in arrays]
        here = tuple([piece.as_in_context(device) for piece in pieces])
        here = of_kind(here, True) if numpy else here
        shards.append(Shard(device, here[:count], here[count:], end - begin, numpy))
    return Shards(shards, list(devices)[len(active) :])


def unpack(batch: Any) -> Tuple[Tuple[Any, ...], Tuple[Any, ...]]:
    """Separate a batch into the net's inputs and the loss's labels, each a tuple.

    `(x, y)` and `((x1, x2), (y1, y2))` have labels; a bare array and `(x,)` have none.
    """
    if isinstance(batch, dict):
        first, second = [*map(repr, batch), "'x'", "'y'"][:2]
        raise DataError(
            f"a batch is (x, y); received a {type(batch).__name__} with the keys {', '.join(map(repr, batch))}. "
            f"Pass a function that takes it apart: lambda: ((b[{first}], b[{second}]) for b in batches)"
        )
    if not isinstance(batch, (tuple, list)):
        return (batch,), ()
    if len(batch) not in (1, 2):
        raise DataError(
            f"a batch is (x, y), or tuples of arrays in either place; received {len(batch)} items. Group them: "
            "((x1, x2), y), those of a loader by lambda: (((a, b), y) for a, b, y in loader); rows of numbers are "
            "np.asarray(rows)"
        )
    groups = [tuple(part) if isinstance(part, (tuple, list)) else (part,) for part in batch]
    return groups[0], groups[1] if len(groups) == 2 else ()


def as_ndarray(array: Any) -> Any:
    """Turn a NumPy array into an NDArray on the CPU, and an array of `mx.np` into its view; others are returned.

    `mx.nd.array` alone would convert int64 to float32 and lose whole numbers above 2**24 (T14). Types that MXNet lacks
    become those of mxkit's loaders; int64 stays.

    Raises:
        DataError: `array` is something else, is not numeric, or has whole numbers that do not fit the new type.
    """
    if isinstance(array, (mx.nd.NDArray, Packed)):
        return legacy(array)
    if not isinstance(array, (np.ndarray, np.generic)):
        raise DataError(
            f"a batch holds NDArray or NumPy arrays; received {type(array).__name__}. "
            "Make an array of it: np.asarray(...)"
        )
    host = to_host(array)
    if host.dtype.kind != "i" or host.dtype.itemsize < 8:
        host = narrow(host, "a batch")
    return mx.nd.array(host, dtype=host.dtype.newbyteorder("="))


@lru_cache(maxsize=64)
def narrow_dtype(dtype: "np.dtype") -> "np.dtype":
    """Dtype of an array in a batch: float32 for float64 and bool, int32 for integers of 16 or more bits.

    >>> narrow_dtype(np.dtype("float64")), narrow_dtype(np.dtype(">i8")), narrow_dtype(np.dtype("uint8"))
    (dtype('float32'), dtype('int32'), dtype('uint8'))
    """
    native = dtype.newbyteorder("=")
    return np.dtype("float32") if native.kind == "f" and native.itemsize > 8 else _SMALLER.get(native, native)


def narrow(array: "np.ndarray", where: str) -> "np.ndarray":
    """Convert an array to its dtype in a batch; an array of this dtype is returned as it is.

    Raises:
        DataError: int32 cannot hold one of its whole numbers, or it is not numeric.
    """
    if array.dtype.kind not in "fiub":
        raise DataError(
            f"{where}: expected numbers; received an array of shape {array.shape} {array.dtype}. Convert it, "
            ".astype('float32'); of texts number the classes: classes, y = numpy.unique(labels, return_inverse=True)"
        )
    dtype = narrow_dtype(array.dtype)
    if dtype == np.int32 and array.dtype.itemsize >= 4 and array.dtype != np.int32 and array.size:
        widest = max(int(array.max()), int(array.min()), key=abs)
        if not -(2**31) <= widest < 2**31:
            raise DataError(
                f"{where}: {array.dtype} becomes int32, which cannot hold {widest}; number the values from 0"
            )
    return array if array.dtype == dtype else array.astype(dtype)


def batch_size(arrays: Sequence[Any]) -> int:
    """Number of samples of a batch, after a check that it is equal for all arrays."""
    sizes = {(array.shape or (-1,))[0] for array in arrays}
    if len(sizes) != 1 or -1 in sizes:
        shapes = [tuple(array.shape) for array in arrays]
        raise DataError(f"axis 0 of every array of a batch is the sample axis; received shapes {shapes}")
    samples = int(sizes.pop())
    if samples == 0:
        raise EmptyDataError(f"a batch has no sample: shapes {[tuple(array.shape) for array in arrays]}")
    return samples


def describe_batch(batch: Any) -> str:
    """Shapes and dtypes of a batch for messages, like `x (64, 1, 28, 28) float32, y (64,) int32`."""
    inputs, labels = unpack(batch)

    def phrase(name: str, arrays: Tuple[Any, ...]) -> List[str]:
        return [
            f"{name}{i if len(arrays) > 1 else ''} {tuple(getattr(array, 'shape', ()))} "
            f"{np.dtype(array.dtype).name if hasattr(array, 'dtype') else type(array).__name__}"
            for i, array in enumerate(arrays)
        ]

    return ", ".join(phrase("x", inputs) + phrase("y", labels))


def empty_batch(shape: Sequence[int], dtype: Any) -> Tuple["mx.nd.NDArray", "np.ndarray"]:
    """Make an NDArray on the CPU, and a NumPy view of its memory to fill before the first use of the NDArray.

    The memory is not pinned: `net(x)` refuses pinned arrays, and each costs a cudaHostAlloc on GPU 0 (T133).
    `mx.nd.array` waits for the engine although the array is new. For small batches the wait costs more than the copy:
    60 us of 80 for 64 images of 28x28.

    Args:
        shape: Any.
        dtype: A dtype of MXNet.

    Returns:
        The array and its view. The view must not outlive the array, and must not be written after its first use.
    """
    shape, dtype = tuple(shape), np.dtype(dtype)
    size = math.prod(shape)
    if not shape or not 0 < size < 2**31:  # MXNet refuses larger ones
        return mx.nd.empty(shape, mx.cpu(), dtype), np.empty(shape, dtype)
    handle = NDArrayHandle()
    check_call(_LIB.MXNDArrayCreateEx(*_arguments(shape, dtype.type), ctypes.byref(handle)))
    return mx.nd.NDArray(handle), _memory(handle, shape, dtype)


@lru_cache(maxsize=64)
def _arguments(shape: Tuple[int, ...], kind: type) -> Tuple[Any, ...]:
    """Arguments of MXNet's C function that makes an NDArray on the CPU: to make them takes as long as the call."""
    dimensions = (mx_uint * len(shape))(*map(int, shape))
    cpu, number, at_once = ctypes.c_int(1), ctypes.c_int(0), ctypes.c_int(0)
    return dimensions, mx_uint(len(shape)), cpu, number, at_once, ctypes.c_int(_DTYPE_NP_TO_MX[kind])


def each(function: Callable[[Any], Any], arrays: Any) -> Any:
    """Apply a function to an array, or to each array of a tuple."""
    return tuple(function(array) for array in arrays) if isinstance(arrays, tuple) else function(arrays)


def memory_of(array: "mx.nd.NDArray") -> "np.ndarray":
    """Return the memory of a dense NDArray on the CPU as NumPy; the result must not outlive the NDArray."""
    return _memory(array.handle, array.shape, np.dtype(array.dtype))


def _memory(handle: Any, shape: Tuple[int, ...], dtype: "np.dtype") -> "np.ndarray":
    pointer = ctypes.c_void_p()
    check_call(_LIB.MXNDArrayGetData(handle, ctypes.byref(pointer)))
    memory: Any = ctypes.c_char * (math.prod(shape) * dtype.itemsize)
    return np.ndarray(shape, dtype, memory.from_address(pointer.value or 0))


# A queued batch keeps its arrays in memory (T27: 358 to 788 MB without this limit).
QUEUED_BYTES = 256 * 2**20
# Limit for small batches outside of training
QUEUED_BATCHES = 32


def bytes_of(arrays: Iterable[Any]) -> int:
    """Bytes of arrays."""
    return sum(array.size * np.dtype(array.dtype).itemsize for array in arrays)


class QueuedBatches:
    """Queued batches: at most QUEUED_BYTES, unless a single batch is larger.

    Args:
        most: Maximum number of batches in the queue. With 1, the caller waits for each batch.
    """

    def __init__(self, most: int = QUEUED_BATCHES) -> None:
        self._most = most
        self._waiting: Deque[Tuple[int, Any]] = deque()
        self._bytes = 0

    def add(self, results: Any, size: int) -> List[Any]:
        """Add a batch.

        Args:
            results: Results of the batch, returned when it is due.
            size: Bytes of its inputs and results.

        Returns:
            Results of the oldest batches, for the caller to wait for: none, or half of the queue.
        """
        self._waiting.append((size, results))
        self._bytes += size
        if len(self._waiting) < self._most and self._bytes < QUEUED_BYTES:
            return []
        due = []
        while len(self._waiting) > self._most // 2 or (len(self._waiting) > 1 and self._bytes > QUEUED_BYTES // 2):
            size, results = self._waiting.popleft()
            self._bytes -= size
            due.append(results)
        return due

    def rest(self) -> List[Any]:
        """Results of the batches still in the queue."""
        return [results for _, results in self._waiting]

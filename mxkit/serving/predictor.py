"""A net or a run that many threads ask at once, for servers."""

import concurrent.futures
import math
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple
import weakref

from mxkit.core.arguments import check_number, whole_number
from mxkit.core.arrays import to_host
from mxkit.data.augment_labels import Placed
from mxkit.data.augment_steps import Place
from mxkit.errors import DataError
from mxkit.exporting.sources import find_source
from mxkit.recipe.marks import marks_of
from mxkit.recipe.net_facts import image_reader, is_pillow, read_facts
from mxkit.recipe.predictions import predictions, refuse_pairs
from mxkit.recipe.run import load_run
from mxkit.serving.batch_graphs import BatchGraphs, Sample, SampleForm, form_of, sizes_up_to
from mxkit.serving.dispatching import Compute, Dispatcher
import numpy as np

# Arrays for the net, and where an image lies in them, for a net that marks places.
_Request = Tuple[Sample, Optional[Placed]]


class Predictor:
    """Answers the requests of many threads with one net, in batches.

    Threads call it with one sample each. A thread of its own collects the samples, pads them to a batch of 1, 2, 4 ...
    `max_batch` and calls MXNet; all sizes are computed once at the start, so that traffic waits for no graph. Where
    more than a quarter would be padding, two batches are computed. Files are decoded and prepared in the threads that
    ask. A call costs less than `submit`, whose futures may call code of yours.

    The net does not change. Static graphs of its own compute, which read the net's weights at each batch: weights that
    you change later count, attributes that its Python code reads do not. A net that Gluon cannot hybridize, or whose
    graph computes something else, is called as it is; `repr` says so. Do not call or train the net in another thread
    meanwhile: MXNet's blocks are not made for it (T200).

    Args:
        source: A net, or a run's folder, a file of `save_net` or files of a graph, as for `export`. A run brings its
            preprocessing and its classes.
        sample: One sample, as a request has it, to begin with. None takes the run's shapes, for other sources the
            first request, which then waits until all sizes are computed.
        which: For a run: "last" for the newest checkpoint, or "best"; None takes that of its final scores.
        max_batch: Most samples of a batch.
        max_wait_ms: How long the oldest request waits for others, in milliseconds. It waits only for as many as the
            last batch had, so a single client waits for none.
        max_queue: Most requests that wait; others are refused.
        score: Least score of a detector's boxes, of a run's folder.

    Raises:
        DataError: `sample` cannot be computed, or an answer depends on the other samples of the batch.
        ForwardError: A block of the net raised.
        MxkitError, OSError, ValueError: `source` cannot be read, as for `export`; or a number is out of range.

    Side effects:
        Starts a thread, and computes some batches. `close`, or leaving `with`, ends the thread; so do the garbage
        collector and the end of the program. The collector stops all threads for some 50 ms to look at what MXNet has
        loaded: a server calls `gc.freeze()` once it is ready.

    >>> net = mxkit.models.mlp(3, hidden=[8]); mxkit.initialize(net, devices="cpu", sample=mx.nd.ones((1, 4)))
    >>> with Predictor(net, sample=np.ones(4), max_batch=4) as predictor:
    ...     predictor(np.ones(4)).shape, predictor.submit([1, 2, 3, 4]).result().dtype.name
    ((3,), 'float32')
    """

    def __init__(
        self,
        source: Any,
        *,
        sample: Any = None,
        which: Optional[str] = None,
        max_batch: int = 32,
        max_wait_ms: float = 2.0,
        max_queue: int = 256,
        score: float = 0.5,
    ) -> None:
        for name, number in (("max_batch", max_batch), ("max_queue", max_queue)):
            whole_number(number, f"Predictor: {name}")
        check_number("Predictor: max_wait_ms", max_wait_ms)
        self._most = int(max_batch)
        self._dispatcher = Dispatcher(sizes_up_to(self._most), max_wait_ms / 1e3, int(max_queue))
        weakref.finalize(self, self._dispatcher.close).atexit = False
        self._net, self._forms, self._read, self._convert = _opened(source, which, score)
        self._graphs: List[BatchGraphs] = []  # one, which the thread makes
        if sample is not None:
            self._start(self._read_request(sample)[0])
        elif self._forms:
            self._start(tuple(np.zeros(form.shape, form.dtype) for form in self._forms))

    def __call__(self, x: Any, *, timeout: Optional[float] = None) -> Any:
        """Wait for the answer to one sample.

        Args:
            x: For a run: the content of an image file as bytes, its path, its pixels (uint8 of shape (height, width,
                channels)), or an image of Pillow in the mode RGB or L. For a net, and for a run without images: an
                array of numbers without the axis of the batch, or a tuple of them for several inputs.
            timeout: Most seconds to wait; None waits for ever.

        Returns:
            For a run what `mxkit predict` prints, as a dict: `{"class": "7", "probability": 0.98}`; for several labels
            `{"probabilities": {...}}`; without probabilities "score" and "scores"; otherwise `{"values": [...]}`.
            Boxes, areas and points stand in pixels of the image; of an array, which the net takes as it is, in pixels
            of the net's input. For a net a NumPy array without the axis of the batch, or a tuple of them.

        Raises:
            DataError: The sample has another shape or dtype, holds NaN or infinity, or is a damaged image.
            BusyError: Too many requests wait.
            TimeoutError: There is no answer in time. The request is dropped, unless it is being computed.
            ForwardError: A block of the net raised. The other samples of the batch have their answers.
            ValueError: `timeout` is no number of seconds.
            RuntimeError: It is closed, or was made before a fork; or the caller is a callback of a future.
        """
        if self._dispatcher.is_current():
            raise RuntimeError(
                "Predictor: a callback of a future runs in its thread and cannot wait for it: use submit"
            )
        if timeout is not None and timeout != math.inf:
            check_number("Predictor: timeout", timeout)
        return self._dispatcher.ask(self._request(x), timeout)

    def submit(self, x: Any) -> "concurrent.futures.Future[Any]":
        """Accept one sample; its future has the answer later.

        A cancelled future costs nothing. Callbacks of the future run in the Predictor's thread: keep them short.

        Args:
            x: As for a call.

        Raises:
            DataError, BusyError, RuntimeError: As for a call; other errors are in the future.
        """
        return self._dispatcher.submit(self._request(x))

    def stats(self) -> Dict[str, Any]:
        """Counters since the start.

        Returns:
            `requests` accepted, `batches` computed, `samples_per_batch`, requests `refused` because the queue was full
            and `failed` with an error, `queue` (how many wait now), and the latency of the last 4,096 answers, `p50_ms`
            and `p99_ms`, from submit to answer. None is for what there is none of.
        """
        return self._dispatcher.stats()

    def close(self) -> None:
        """Answer all accepted requests, refuse new ones, and end the thread. The second call does nothing."""
        self._dispatcher.close()

    def __enter__(self) -> "Predictor":
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()

    def __repr__(self) -> str:
        way = "not started"
        for graphs in self._graphs:
            inputs = ", ".join(map(str, graphs.forms))
            way = f"{inputs}, {f'called as it is: {graphs.reason}' if graphs.reason else 'static graphs'}"
        return f"Predictor({type(self._net).__name__}, batches up to {self._most}, {way})"

    def _start(self, sample: Sample) -> None:
        """Start the thread, and compute all sizes of batches in it."""
        forms = self._forms or tuple(map(form_of, sample))
        net, convert, most, made = self._net, self._convert, self._most, self._graphs  # the thread must not hold `self`

        def prepare() -> Tuple[Compute, bool]:
            graphs = BatchGraphs(net, forms, _fitted(sample, forms), most)

            def compute(requests: Sequence[_Request]) -> Callable[[], Sequence[Any]]:
                outputs = graphs.begin([arrays for arrays, _ in requests])
                return lambda: convert(outputs(), graphs.several, [placed for _, placed in requests])

            compute([(_fitted(sample, forms), None)])()
            made.append(graphs)
            return compute, not graphs.reason

        self._dispatcher.start(prepare)

    def _request(self, x: Any) -> _Request:
        arrays, placed = self._read_request(x)
        if not self._graphs:
            self._start(arrays)
        return _fitted(arrays, self._graphs[0].forms), placed

    def _read_request(self, x: Any) -> _Request:
        """A request as arrays; images are read."""
        x = bytes(x) if isinstance(x, (bytearray, memoryview)) else x
        image = isinstance(x, (bytes, str, Path)) or is_pillow(x)
        pixels = isinstance(x, np.ndarray) and x.dtype == np.uint8 and x.ndim == 3
        if pixels and not x.size:
            raise DataError(f"Predictor: expected an image with pixels, received shape {x.shape}")
        if self._read is not None and (image or pixels):
            read = self._read(x)
            return ((read[0],), read[1]) if isinstance(read, tuple) else ((read,), None)
        if image:
            raise DataError(
                f"Predictor: received {type(x).__name__}, and {type(self._net).__name__} was not read from a run that "
                "was trained on images: pass an array as the net takes it, or the folder of such a run as the source"
            )
        try:
            arrays = tuple(to_host(one) for one in (x if isinstance(x, tuple) else (x,)))
        except ValueError as error:  # a list of arrays of several shapes
            raise DataError(f"Predictor: {error}. Several inputs are a tuple") from error
        if any(one.dtype.kind in "OSU" for one in arrays):
            raise DataError(f"Predictor: expected an array of numbers, or a tuple of them; received {type(x).__name__}")
        return tuple(_single(one) if one.dtype == np.float64 else one for one in arrays), None


def _single(array: "np.ndarray") -> "np.ndarray":
    with np.errstate(over="ignore"):  # what becomes infinite is refused later
        return array.astype(np.float32)


def _fitted(arrays: Sample, forms: Sequence[SampleForm]) -> Sample:
    """Copies of arrays, which their owner may change meanwhile, in the dtypes of `forms`."""
    pixels = [one for one, form in zip(arrays, forms) if one.dtype == np.uint8 and form.dtype.kind == "f"]
    if pixels:
        raise DataError(
            f"Predictor: received {pixels[0].shape} uint8, expected {forms[0].shape} {forms[0].dtype}: convert pixels "
            "as the training's were, like x.astype('float32') / 255, other bytes by x.astype('float32'). A run takes "
            "pixels as (height, width, channels)"
        )
    fits = len(arrays) == len(forms) and all(
        one.shape == form.shape and (one.dtype == form.dtype or np.can_cast(one.dtype, form.dtype, "same_kind"))
        for one, form in zip(arrays, forms)
    )
    if not fits:
        batch = bool(arrays) and arrays[0].shape[1:] == forms[0].shape
        hint = ". One call takes one sample, without the axis of the batch" if batch else ""
        expected, received = (", ".join(f"{one.shape} {one.dtype}" for one in many) for many in (forms, arrays))
        raise DataError(f"Predictor: expected a sample of {expected}; received {received}{hint}")
    copies = tuple(np.array(one, form.dtype) for one, form in zip(arrays, forms))
    for one, copy in zip(arrays, copies):
        if one.dtype.kind in "iu" and not np.array_equal(one, copy):
            raise DataError(
                f"Predictor: the sample holds a number from {one.min()} to {one.max()} that {copy.dtype} cannot hold"
            )
    if not all(np.isfinite(one).all() for one in copies if one.dtype.kind == "f"):
        raise DataError("Predictor: the sample holds NaN or infinity, which ReLU and max pooling hide (T25)")
    return copies


def _opened(
    source: Any, which: Optional[str], score: float
) -> Tuple[Any, Tuple[SampleForm, ...], Optional[Callable[[Any], Any]], Callable[..., Sequence[Any]]]:
    """The net of a source, the forms of its inputs if they are known, how images are read, and what answers are."""
    if not isinstance(source, (str, Path)) or not (Path(source).expanduser() / "recipe.yaml").is_file():
        return find_source(source, which).net, (), None, _arrays_of
    folder = Path(source).expanduser()
    recipe, net = load_run(folder, which)
    refuse_pairs(recipe)
    facts, moves = read_facts(folder), recipe.loss.made.moves
    read = None if facts.images is None else image_reader(recipe, facts.images, placed=moves is not None)
    forms = tuple(SampleForm(tuple(one.shape[1:]), np.dtype(one.dtype)) for one in facts.inputs)

    def answers(outputs: Sequence["np.ndarray"], several: bool, placed: Sequence[Optional[Placed]]) -> Sequence[Any]:
        if moves is None:
            return predictions(recipe, facts.classes, tuple(outputs) if several else outputs[0])
        height, width = forms[0].shape[1:]
        places = [one or Placed(Place(), (height, width), (height, width)) for one in placed]
        return [answer for answer, _ in marks_of(moves, outputs, places, facts.classes, score)]

    return net, forms, read, answers


def _arrays_of(outputs: Sequence["np.ndarray"], several: bool, _: Any) -> Sequence[Any]:
    rows = [tuple(row.copy() for row in column) for column in zip(*outputs)]  # a view would keep the whole batch alive
    return rows if several else [row[0] for row in rows]

"""Why results differ, or names are not called."""

from fnmatch import fnmatchcase

INTRODUCTION = """# Every public name

`tests/api/api_table.py` calls every public name of MXNet and GluonCV with generated inputs, ragged ones too, and with
the calls of `tests/api/calls/`. This page is what it found. Compared are three interpreters: MXNet alone, without mxkit,
on Python {plain[python]} with NumPy {plain[numpy]}; mxkit on the same pair; mxkit on Python {newest[python]} with NumPy
{newest[numpy]}. Each function and method of arrays gets the same sets of arguments, graphs of `mx.sym` run with the inputs
of `mx.nd`, classes are built and used: a layer runs forward and backward, a metric gets two batches, an optimizer updates.

Equal means: objects of the same kind, types and shapes; numbers within 1e-5 (float32), 1e-8 (float64) or 2e-3 (float16) of
each other; and what one interpreter refuses, the other refuses, in whatever words. Random numbers are drawn from the same
seed and compared like others.

```console
python tests/api/api_table.py call plain.json.gz --plain    # Python 3.8, NumPy 1.17
python tests/api/api_table.py call oldest.json.gz           # the same
python tests/api/api_table.py call newest.json.gz           # the newest pair
python tests/api/api_table.py page plain.json.gz oldest.json.gz newest.json.gz
```

A call of everything takes some ten minutes. `make test` checks that this page has every name, and that a sample gives the
results of MXNet alone (`tests/api/test_api_table.py`)."""

#: A reason, patterns of names, kinds of differences (none: all), and words of which the comparison or the text has one
#: (none: all).
REASONS = [
    (
        "only the display differs: since NumPy 2 the `repr` of a NumPy scalar is `np.float64(0.5)`, also inside of texts "
        "that MXNet builds",
        ["*"],
        ["display"],
        [],
    ),
    ("T139: the gradient of SELU", ["gluon.nn.SELU"], [], ["alone"]),
    ("T88: NumPy reads MXNet's arrays as numbers, not as objects", ["gluoncv.nn.coder.SigmoidClassEncoder"], [], ["alone"]),
    (
        "T88: NumPy reads MXNet's arrays as numbers, not as objects",
        ["mx.nd.array", "mx.nd.sparse.*"],
        ["error"],
        ["TypeError"],
    ),
    (
        "T107: sums of metrics are read as np.float64, which is a Python float too",
        ["mx.metric.*", "gluoncv.utils.metrics.*"],
        ["kind"],
        ["float64"],
    ),
    (
        "a NumPy scalar as argument keeps its type since NumPy 2 (NEP 50): beside float32 arrays np.float64 and np.int64 give "
        "float64, and np.float32 beside Python numbers stays float32",
        [
            *("mx.metric.CrossEntropy", "mx.optimizer.SGD", "gluoncv.utils.bbox.bbox_clip_xyxy"),
            *("gluoncv.utils.lr_scheduler.LRScheduler", "gluoncv.data.transforms.pose.drawGaussian"),
        ],
        [],
        ["newest"],
    ),
    (
        "memory that nobody wrote: the numbers are any",
        ["mx.nd.empty", "mx.np.empty*", "mx.contrib.io.DataLoaderIter", "mx.nd.NDArray.*", "*.empty", "*.empty_like"],
        ["value"],
        [],
    ),
]

#: Names of which no call gives a result anywhere: a reason, and patterns.
NEVER = [
    (
        "raises AttributeError by design: the method of `mx.nd` is a function of `mx.np` or `mx.npx`",
        ["mx.np.ndarray.*"],
    ),
    ("not for symbols: the method exists to say so", ["mx.sym.Symbol.*"]),
]


def reason_of(full, found):
    """The reason of a difference, or None."""
    compared, _, kind, text = found
    for why, patterns, kinds, words in REASONS:
        if any(fnmatchcase(full, one) for one in patterns) and (not kinds or kind in kinds):
            if not words or any(word in compared or word in text for word in words):
                return why
    return None


def never_works(full):
    """Why no call of a name gives a result anywhere."""
    for why, patterns in NEVER:
        if any(fnmatchcase(full, one) for one in patterns):
            return why
    return "no call is written"

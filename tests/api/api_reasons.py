"""Why results differ, or names are not called."""

from fnmatch import fnmatchcase

INTRODUCTION = """# Every public name

`tests/api/api_table.py` calls every public name of MXNet and GluonCV with generated inputs, ragged ones too, and with
the calls of `tests/api/calls/`. This page is what it found. Compared are three interpreters: MXNet without mxkit, on
Python {plain[python]} with NumPy {plain[numpy]}; mxkit on the same pair; mxkit on Python {newest[python]} with NumPy
{newest[numpy]}. Each function and method of arrays gets the same sets of arguments, graphs of `mx.sym` run with
the inputs of `mx.nd`, classes are built and used: a layer runs forward and backward, a metric gets two
batches, an optimizer updates.

Equal means: objects of the same kind, types and shapes; numbers within 1e-5 (float32), 1e-8 (float64) or 2e-3 (float16)
of each other; and what one interpreter refuses, the other refuses, in whatever words. Random numbers are drawn from the
same seed and compared like others. Compared were {calls[0]} calls between MXNet alone and mxkit on the oldest pair,
{calls[1]} between the oldest and the newest pair, and {calls[2]} between functions and their graphs.

```console
python tests/api/api_table.py call plain.json.gz --plain    # Python 3.8, NumPy 1.17
python tests/api/api_table.py call oldest.json.gz           # the same
python tests/api/api_table.py call newest.json.gz           # the newest pair
python tests/api/api_table.py page plain.json.gz oldest.json.gz newest.json.gz
```

A call of everything takes some ten minutes. `make test` checks that this page has every name, and that a sample gives
the results of MXNet alone (`tests/api/test_api_table.py`)."""

SIZES = """Each row is one name, what was compared, and a kind of difference. It shows the call with the largest one,
the two results there, and of numbers the difference as a part of the larger number."""

_LEFT_TO_NUMPY = """
argpartition argwhere array_equal corrcoef count_nonzero cov divmod frexp histogram2d histogramdd i0 lexsort nanargmax
nanargmin nanpercentile nanquantile partition polydiv polyval select setxor1d size take_along_axis trim_zeros union1d
unwrap linalg.matrix_rank linalg.qr heaviside float_power min_scalar_type result_type
"""
_SCALARS = """
mx.metric.CrossEntropy mx.optimizer.SGD gluoncv.utils.bbox.bbox_clip_xyxy gluoncv.utils.lr_scheduler.LRScheduler
gluoncv.data.transforms.pose.drawGaussian
"""
_WHOLE = "var std arctan2 copysign hypot ldexp"
_ROUNDED, _BINARY = ("ceil", "floor", "trunc", "fix"), "add maximum minimum mod multiply power remainder subtract"

#: A reason, patterns of names, kinds of differences (none: all), and words of which the comparison or the text has one
#: (none: all).
REASONS = [
    (
        "only the display differs: since NumPy 2 the `repr` of a NumPy scalar is `np.float64(0.5)`, also "
        "inside texts that "
        "MXNet builds",
        ["*"],
        ["display"],
        [],
    ),
    (
        "MXNet leaves the function to NumPy (`mxnet/numpy/fallback.py`), whose own result changed between "
        "1.17 and 2.5: named "
        "tuples of `qr`, float32 that stays float32, more arguments and shapes accepted, others refused",
        [f"mx.np.{name}" for name in _LEFT_TO_NUMPY.split()],
        [],
        ["newest"],
    ),
    (
        "since NumPy 2.1 the whole part of a Python integer is an integer; arrays are not concerned",
        [f"{space}.{name}" for space in ("mx.np", "mx.sym.np") for name in _ROUNDED],
        ["dtype"],
        ["newest"],
    ),
    (
        "a NumPy scalar as argument keeps its type since NumPy 2 (NEP 50): beside float32 arrays np.float64 "
        "and np.int64 give "
        "float64, and np.float32 beside Python numbers stays float32",
        _SCALARS.split(),
        [],
        ["newest"],
    ),
    (
        "newer NumPy refuses an array in place of a type or of the text `order`",
        [*("mx.nd.cast", "mx.nd.Cast", "mx.nd.amp_cast", "mx.nd.NDArray.*", "mx.np.ravel", "mx.sym.np.ravel")],
        ["error"],
        ["newest"],
    ),
    (
        "`mx.nd.histogram` without a range is NumPy's, which rounds edges of float16 in another way now",
        ["mx.nd.histogram"],
        ["value"],
        ["newest"],
    ),
    (
        "an array as shape: Python 3.10 asks for `__index__` where Python 3.8 took `__int__`",
        ["mx.np.empty"],
        ["error"],
        ["newest"],
    ),
    (
        "memory that nobody wrote: new arrays, the padding of a short batch, steps that a loop did not run, "
        "and `where` of "
        "arrays of several shapes, which reads past the smaller one",
        [
            *("mx.nd.empty", "mx.np.empty*", "mx.sym.np.empty*", "mx.nd.sparse.empty", "mx.contrib.io.DataLoaderIter"),
            *("*.while_loop", "mx.sym.where"),
        ],
        ["value"],
        [],
    ),
    (
        "T88: NumPy reads MXNet's arrays as numbers, not as objects",
        ["gluoncv.nn.coder.SigmoidClassEncoder", "mx.nd.array", "mx.nd.sparse.*", "mx.nd.NDArray.__array__"],
        [],
        ["alone"],
    ),
    (
        "T107: sums of metrics are read as np.float64, which is a Python float too",
        ["mx.metric.*", "gluoncv.utils.metrics.*"],
        ["kind"],
        ["float64"],
    ),
    (
        "T279: NumPy computes what MXNet's functions refuse; an array of NumPy as `out` is returned as it is",
        ["mx.np.*"],
        ["error", "kind"],
        ["alone"],
    ),
    ("T260: augmenters leave the image that they get as it is", ["mx.image.*Aug*"], ["value"], ["alone"]),
    (
        "T252: a reshape to another number of elements is refused",
        ["mx.nd.[Rr]eshape", "mx.sym.[Rr]eshape", "mx.sym.Symbol.reshape"],
        ["error"],
        ["alone"],
    ),
    (
        "T250: MXNet's Concat fails for truth values; a concatenation that may cut a block is that of `mx.np`",
        ["mx.sym.[Cc]oncat", "mx.sym.sparse.concat"],
        ["error"],
        ["alone"],
    ),
    ("a row that is written twice has the numbers of either", ["mx.nd.contrib.index_copy"], ["value"], []),
    (
        "two threads add in another order: MXNet alone takes one on two processors; with two it gives these bits",
        ["gluon.model_zoo.vision.BottleneckV1", "gluoncv.nn.block.DUC"],
        ["value"],
        ["alone"],
    ),
    ("T139: the gradient of SELU, whose output has MXNet's bits", ["gluon.nn.SELU"], [], ["alone"]),
    ("T155: the covariance of normal vectors", ["mx.np.random.multivariate_normal"], [], ["alone"]),
    (
        "T155, which is repaired without a graph only: in a graph MXNet draws in a thread of Python",
        ["mx.sym.np.random.multivariate_normal"],
        [],
        [],
    ),
    (
        "T239: the eigenvectors alone in a graph",
        ["mx.sym.np.linalg.eigh", "mx.sym.moments"],
        [],
        ["alone"],
    ),
    (
        "T240 and T241: fractions beside integers, variance of integers",
        [
            "mx.np.*",
            "mx.np.ndarray.*",
            *(f"mx.sym.np.{one}" for one in ["var", "std", "arctan2", "copysign", "hypot", "ldexp"]),
        ],
        ["dtype", "value", "error"],
        ["alone"],
    ),
    ("T242: the scale of Rayleigh's distribution", ["mx.sym.np.random.rayleigh"], [], ["alone"]),
    (
        "fails in MXNet on every NumPy; repaired",
        [
            *("mx.np.deg2rad", "mx.np.rad2deg", "mx.sym.np.deg2rad", "mx.sym.np.rad2deg", "mx.np.ndarray.sort"),
            *("mx.sym.np.random.choice", "mx.np.ndarray.__array*", "mx.np.linalg.norm", "mx.np.matmul", "mx.np.mean"),
        ],
        ["error"],
        ["alone"],
    ),
    (
        "a graph: a whole number before an array of integers gives float64 there, and int32 without a graph",
        [f"mx.sym.np.{name}" for name in _BINARY.split()],
        ["dtype"],
        ["graph"],
    ),
    (
        "a graph gives one array, or a plain list, where the function gives a tuple",
        [
            *(
                "mx.sym.np.diag_indices_from",
                "mx.sym.np.unravel_index",
                "mx.sym.np.linalg.*",
                "mx.sym.random.multinomial",
            ),
            *("mx.sym.np.may_share_memory", "mx.sym.np.shares_memory", "mx.sym.np.unique", "mx.sym.sample_multinomial"),
        ],
        ["kind", "value"],
        ["graph"],
    ),
    (
        "a graph: it draws other random numbers for each output",
        ["mx.sym.contrib.rand_zipfian"],
        ["value"],
        ["graph"],
    ),
    (
        "a graph: an Executor has arrays of fixed shapes, and leaves out what has a shape that depends on "
        "numbers; a hybridized "
        "net gives it",
        [
            "mx.sym.np.bincount",
            "mx.sym.np.delete",
            "mx.sym.np.unique",
            "mx.sym.npx.nonzero",
            "mx.sym.contrib.boolean_mask",
        ],
        ["shape", "length"],
        ["graph"],
    ),
    (
        "T88, but NumPy 1.17 does not read a list of MXNet's arrays as numbers, and later ones do",
        ["mx.nd.array", "mx.nd.sparse.*"],
        ["error"],
        ["TypeError"],
    ),
    ("a graph: symbols are loaded, not arrays", ["mx.sym.load"], [], ["graph"]),
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
        named = any(fnmatchcase(full, one) for one in patterns) and (not kinds or kind in kinds)
        if named and (not words or any(word in compared or word in text for word in words)):
            return why
    return None


def never_works(full):
    """Why no call of a name gives a result anywhere."""
    for why, patterns in NEVER:
        if any(fnmatchcase(full, one) for one in patterns):
            return why
    return "no call is written"

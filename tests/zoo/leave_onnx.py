"""Which nets leave to ONNX, and how exactly: `python tests/zoo/leave_onnx.py [NAMES] [--gluoncv] [--write FILE]`.

Each net has random weights and is converted and compared in a process of its own, at batch 1 and 4, with every output
of every operator. All nets take about an hour on two cores and up to 6 GB of memory.
"""

import argparse
import json
from pathlib import Path
import subprocess
import sys
import time
import warnings

import mxkit
from mxkit.errors import MxkitError
from mxkit.export.net_graph import graph_of
from mxkit.export.to_onnx.onnx_model import onnx_model
from mxkit.export.to_onnx.onnx_proof import compare_onnx
from mxkit.models.registry import get_model
from mxkit.nets.architecture.zoos import zoo_names
import mxnet as mx
import numpy as np

SECONDS = 600
TOLERANCE = 1e-4
OWN = [
    "alexnet",
    "vgg11",
    "nin",
    "googlenet",
    "densenet121",
    "lenet",
    "lenet5",
    "mlp",
    "softmax_regression",
    "linear_regression",
    "resnet18",
]
DETECTORS = [
    "ssd_300_vgg16_atrous_voc",
    "ssd_512_resnet50_v1_voc",
    "ssd_512_mobilenet1.0_voc",
    "yolo3_mobilenet1.0_voc",
]
SEGMENTERS = [
    "fcn_resnet50_voc",
    "psp_resnet50_ade",
    "deeplab_resnet50_ade",
    "deeplab_resnest50_ade",
    "icnet_resnet50_citys",
]
POSES = ["simple_pose_resnet18_v1b", "mobile_pose_mobilenet1.0", "alpha_pose_resnet101_v1b_coco"]
OTHERS = ["yolo3_darknet53_voc", "fastscnn_citys", "danet_resnet50_citys", "center_net_resnet18_v1b_voc"]
# gluoncv's nets of other tasks; all others of an image are classifiers
NOT_CLASSIFIERS = (
    *(
        "ssd",
        "yolo",
        "faster",
        "mask",
        "custom",
        "double",
        "fcn",
        "psp",
        "deeplab",
        "icnet",
        "danet",
        "fastscnn",
    ),
    *(
        "simple_pose",
        "mobile_pose",
        "alpha_pose",
        "center_net",
        "monodepth",
        "siamrpn",
        "i3d",
        "c3d",
        "p3d",
        "r2plus1d",
    ),
    *("slowfast", "doublehead"),
)


class Xavier(mx.init.Xavier):
    """Xavier, also for vectors: gluoncv makes parameters from symbols, without an initializer of their own."""

    def _init_weight(self, name, arr):
        if arr.ndim > 1:
            super()._init_weight(name, arr)
        else:
            arr[:] = 0 if name.endswith(("beta", "bias", "mean")) else 1


def side_of(name):
    """A small side of an image on which every layer of a net has something to do."""
    bare = name.partition(":")[2] or name
    if "inception" in bare or "nasnet" in bare or bare.startswith("xception"):
        return 299
    if name.startswith("zoo:") and not bare.startswith(("alexnet", "densenet", "squeezenet")):
        return 64
    if "300" in bare and "ssd" in bare:
        return 300
    if bare.startswith(("resne", "se_resne", "cifar", "mobilenet", "shufflenet", "darknet", "dla", "senet")):
        return 64 if "cifar" not in bare else 32
    return 224


def recurrent(name):
    """A net of two recurrent layers, and the shape of its input."""
    nn, rnn = mx.gluon.nn, mx.gluon.rnn
    net = nn.HybridSequential()
    net.add({"lstm": rnn.LSTM, "gru": rnn.GRU}[name](16, num_layers=2, layout="NTC"), nn.Dense(5))
    return net, (2, 7, 8)


def built(name):
    """A net, initialized, and the shape of its input."""
    mxkit.seed_all(0)
    if name in ("lstm", "gru"):
        net, shape = recurrent(name)
    else:
        side = side_of(name)
        options = {} if ":" in name else {"input_size": side}
        if name.startswith("gluoncv:"):
            options = {"pretrained_base": False} if name.partition(":")[2].startswith(NOT_CLASSIFIERS) else {}
            options.update({"classes": ["a", "b"]} if "custom" in name else {})
            if "_ade" in name or "_citys" in name or "_voc" in name and "fcn" in name:
                options["crop_size"] = side
        shape = (2, 3, side, side)
        if name in ("mlp", "softmax_regression", "lenet", "lenet5", "linear_regression"):
            shape = (2, 12) if name == "linear_regression" else (2, 1, 28, 28)
            options = {}
        net = get_model(name, **options)
    net.initialize(Xavier(magnitude=3))
    return net, shape


def compared(name):
    """Convert and compare a net; returns a row of the table."""
    warnings.simplefilter("ignore")  # of gluoncv's imports
    try:
        net, shape = built(name)
    except (ValueError, TypeError, mx.MXNetError) as error:
        return {"net": name, "state": "not built", "why": str(error).splitlines()[0][:160]}
    try:
        graph = graph_of(net, [shape])
        model = onnx_model(graph, [shape], ["float32"], {}).SerializeToString()
    except MxkitError as error:
        return {"net": name, "state": "refused", "why": " ".join(str(error).split())[:300]}
    random = np.random.RandomState(0)
    batches = [{graph.inputs[0]: random.uniform(-1, 1, (n, *shape[1:])).astype("float32")} for n in (1, 4)]
    made = compare_onnx(graph, model, batches)
    worst = max(made.rows, key=lambda row: row.relative)
    row = {"net": name, "state": "goes" if worst.relative <= TOLERANCE else "DIFFERS", "arrays": len(made.rows)}
    return {
        **row,
        "largest": worst.relative,
        "at": f"{worst.name} ({worst.operator})",
        "missing": len(made.not_compared),
    }


def in_own_process(name):
    """Compare a net in a fresh interpreter, whose crash or memory ends with it."""
    started = time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", __file__, "--one", name],
            check=False,
            timeout=SECONDS,
            capture_output=True,
            encoding="utf-8",
        )
    except subprocess.TimeoutExpired:
        return {"net": name, "state": "slow", "why": f"longer than {SECONDS} s"}
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        last = (done.stderr.strip().splitlines() or [""])[-1]
        return {"net": name, "state": "FAILED", "why": f"exit {done.returncode}: {last[:300]}"}
    return {**json.loads(lines[-1]), "seconds": round(time.monotonic() - started)}


def line_of(row):
    """A line of the table."""
    if "largest" not in row:
        return f"{row['net']:48} {row['state']:9} {row['why']}"
    missing = f", {row['missing']} not compared" if row["missing"] else ""
    figures = f"{row['largest']:.1e} {row['arrays']:5} arrays{missing}, {row['seconds']} s"
    return f"{row['net']:48} {row['state']:9} {figures}; {row['at']}"


def names_of(arguments):
    if arguments.names:
        return arguments.names
    names = ["lstm", "gru", *OWN, *(f"zoo:{name}" for name in zoo_names("zoo"))]
    names += [f"gluoncv:{name}" for name in (*DETECTORS, *SEGMENTERS, *POSES, *OTHERS)]
    if arguments.gluoncv:
        classifiers = (name for name in zoo_names("gluoncv") if not name.startswith(NOT_CLASSIFIERS))
        names += [f"gluoncv:{name}" for name in classifiers if not name.endswith(("int8", "kinetics400", "ucf101"))]
    return names


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="nets; none are all")
    parser.add_argument("--gluoncv", action="store_true", help="all classifiers of gluoncv too")
    parser.add_argument("--one", help="one net, in this process")
    parser.add_argument("--write", type=Path, help="file for the table as JSON")
    arguments = parser.parse_args()
    if arguments.one:
        sys.stdout.write(json.dumps(compared(arguments.one)) + "\n")
        return
    rows = []
    for name in names_of(arguments):
        rows.append(in_own_process(name))
        sys.stdout.write(line_of(rows[-1]) + "\n")
        sys.stdout.flush()
        if arguments.write:
            arguments.write.write_text(json.dumps(rows, indent=1))
    sys.exit(1 if any(row["state"] in ("DIFFERS", "FAILED", "slow") for row in rows) else 0)


if __name__ == "__main__":
    main()

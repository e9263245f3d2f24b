"""Which nets leave MXNet, and how exactly: `python tests/zoo/leave.py [NAMES] [--gluoncv]`.

Each net has random weights and goes through `mxkit.export` in a process of its own: to ONNX and, where torch is
installed, to PyTorch with a training step; with batches of 1 and 4 and every output of every operator. What was found
is kept in leaving.json and shown in docs/leave-table.md. All nets take hours on two cores, and up to 6 GB.
"""

import argparse
from importlib.util import find_spec
import json
from pathlib import Path
import subprocess
import sys
import tempfile
import time
import warnings

from check_features import Tame
import mxkit
from mxkit.errors import ExportError
from mxkit.models.registry import get_model
from mxkit.nets.architecture.catalog import zoo_names
import mxnet as mx

ROOT = Path(__file__).parents[2]
RESULTS, PAGE = Path(__file__).with_name("leaving.json"), ROOT / "docs" / "leave-table.md"
SECONDS = 1800
_OWN = "alexnet vgg11 nin googlenet densenet121 lenet lenet5 mlp softmax_regression linear_regression resnet18"
_OTHERS = """
ssd_300_vgg16_atrous_voc ssd_512_resnet50_v1_voc ssd_512_mobilenet1.0_voc yolo3_mobilenet1.0_voc yolo3_darknet53_voc
fcn_resnet50_voc psp_resnet50_ade deeplab_resnet50_ade deeplab_resnest50_ade icnet_resnet50_citys fastscnn_citys
danet_resnet50_citys simple_pose_resnet18_v1b mobile_pose_mobilenet1.0 alpha_pose_resnet101_v1b_coco
center_net_resnet18_v1b_voc faster_rcnn_resnet50_v1b_voc faster_rcnn_fpn_resnet50_v1b_coco
"""
OWN, OTHERS = _OWN.split(), _OTHERS.split()
# With BatchNorm's initial statistics their numbers grow from layer to layer, and rounding errors with them.
GROWING = ("gluoncv:center_net_resnet18_v1b_voc", "gluoncv:cifar_residualattentionnet452")
# So many layers with Xavier's weights that rounding errors grow nevertheless.
DEEP = tuple(f"gluoncv:residualattentionnet{layers}" for layers in (200, 236, 452))
# gluoncv's nets of other tasks; all others of an image are classifiers
_TASKS = """
ssd yolo faster mask custom double fcn psp deeplab icnet danet fastscnn simple_pose mobile_pose alpha_pose center_net
monodepth siamrpn i3d c3d p3d r2plus1d slowfast
"""
NOT_CLASSIFIERS = tuple(_TASKS.split())


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
    net.initialize(Tame(magnitude=0.01 if name in GROWING else 3))
    if name in GROWING:
        images = mx.nd.random.uniform(shape=(4, *shape[1:]))
        mxkit.training.recalibrate_batch_norm(net, [images])
    if name in DEEP:
        like_trained(net, shape)
    return net, shape


def like_trained(net, shape):
    """Let residual branches add little, as in trained nets of hundreds of layers, and BatchNorm know its inputs."""
    images = mx.nd.random.uniform(-1, 1, shape=(8, *shape[1:]))  # as `export` draws them
    net(images[:1])
    for path, parameter in mxkit.parameters(net).items():
        if path.endswith("conv3.weight"):  # the last one of a branch
            parameter.set_data(parameter.data() * 0.1)
    mxkit.training.recalibrate_batch_norm(net, [images])


def exported(name, format):
    """Export a net; returns what the table shows."""
    warnings.simplefilter("ignore")  # of gluoncv's imports
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        try:
            net, shape = built(name)
            arguments = {"format": format, "input_shape": shape, "train": format == "torch" and trains(name)}
            proof = mxkit.export(net, f"{folder}/net", **arguments).proof
        except (ExportError, ValueError, TypeError, mx.MXNetError) as error:
            known = {"nothing was written": "refused", "cannot be traced": "refused", "relative": "differs"}
            state = next((word for text, word in known.items() if text in str(error)), "error")
            return {"state": state, "why": " ".join(str(error).split())[:300]}
    seconds = round(time.monotonic() - started)
    return {"state": "goes", "largest": proof.worst.relative, "arrays": len(proof.rows), "seconds": seconds}


def trains(name):
    """Whether a training step is compared: of nets whose loss is of their output."""
    return not name.startswith("gluoncv:") and name not in ("lstm", "gru")


def in_own_process(name, format):
    """Export a net in a fresh interpreter, whose crash or memory ends with it."""
    command = [sys.executable, "-W", "ignore", __file__, "--one", name, "--format", format]
    try:
        done = subprocess.run(command, check=False, timeout=SECONDS, capture_output=True, encoding="utf-8")
    except subprocess.TimeoutExpired:
        return {"state": "slow", "why": f"longer than {SECONDS} s"}
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        return {"state": "error", "why": (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1][:300]}
    return json.loads(lines[-1])


def page_of(results):
    """The page with the table."""
    lines = [
        "# Nets that were converted",
        "",
        "`python tests/zoo/leave.py` makes this table with random weights and batches of 1 and 4, of Faster R-CNN 1.",
        "A cell shows the largest relative difference of all operators' outputs, and how many arrays were compared.",
        "For PyTorch, and nets other than gluoncv's, the arrays include those of a training step. The page",
        "[What cannot leave](cannot-leave.md) explains refusals. The weights are Xavier's, and BatchNorm's statistics",
        "the initial ones, except for nets in which rounding errors would grow from layer to layer.",
        f"Statistics from a batch and smaller weights (magnitude 0.01): {listed(GROWING)}.",
        "Statistics from a batch, and the last convolution of each residual branch at a tenth of Xavier's weights:",
        f"{listed(DEEP)}.",
        "",
        "| net | ONNX | PyTorch |",
        "|---|---|---|",
    ]
    return "\n".join([*lines, *(row_of(name, found) for name, found in sorted(results.items()))]) + "\n"


def listed(names):
    return ", ".join(f"`{name}`" for name in names)


def row_of(name, found):
    cells = []
    for format in ("onnx", "torch"):
        one = found.get(format)
        goes = one and one["state"] == "goes"
        cells.append("not run" if not one else f"{one['largest']:.1e} ({one['arrays']})" if goes else one["state"])
    return f"| `{name}` | {' | '.join(cells)} |"


def names_of(arguments):
    if arguments.names:
        return arguments.names
    gluoncv = OTHERS
    if arguments.gluoncv:
        left_out = "int8", "kinetics400", "ucf101", "hmdb51", "sthsthv2"
        names = (name for name in zoo_names("gluoncv") if not name.startswith(NOT_CLASSIFIERS))
        gluoncv = [*OTHERS, *(name for name in names if not name.endswith(left_out))]
    zoo = [f"zoo:{name}" for name in zoo_names("zoo")]
    return ["lstm", "gru", *OWN, *zoo, *(f"gluoncv:{name}" for name in gluoncv)]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="nets; none are all")
    parser.add_argument("--gluoncv", action="store_true", help="all classifiers of gluoncv too")
    parser.add_argument("--format", choices=("onnx", "torch"), help="one format; both by default")
    parser.add_argument("--one", help="one net, in this process")
    arguments = parser.parse_args()
    if arguments.one:
        sys.stdout.write(json.dumps(exported(arguments.one, arguments.format)) + "\n")
        return
    formats = [arguments.format] if arguments.format else ["onnx", *(["torch"] if find_spec("torch") else [])]
    wrong = []
    for name in names_of(arguments):
        for format in formats:
            found = in_own_process(name, format)
            wrong += [f"{name} ({format})"] * (found["state"] in ("differs", "error", "slow"))
            sys.stdout.write(f"{name:40} {format:6} {json.dumps(found)}\n")
            sys.stdout.flush()
            results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
            results.setdefault(name, {})[format] = {key: value for key, value in found.items() if key != "seconds"}
            RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
    PAGE.write_text(page_of(json.loads(RESULTS.read_text())))
    sys.exit(f"not right: {', '.join(wrong)}" if wrong else 0)


if __name__ == "__main__":
    main()

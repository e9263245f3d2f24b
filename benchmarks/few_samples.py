"""What nets know of classes that they saw little or nothing of, on real digits of 28x28.

`python -m benchmarks.few_samples [finetune] [siamese] [--seeds 5]`; both without a name.

- finetune: a net is trained on the digits 0 to 4, and gets 10 samples of each of 5 to 9. The same net from new first
  values gets the same samples, as many updates, the same rates. Accuracy on the test part's 5 to 9.
- siamese: nets are trained on eight digits, and tell whether two images are of one class, for the two digits that they
  never saw: 1,000 pairs of the test part, half of them alike. The threshold is searched on pairs of the validation
  part's eight. Averaged over five choices of the two. Beside it what the best threshold would have given.

How they learn what is worth keeping: each digit turned and mirrored in eight ways counts as eight classes, and every
batch is distorted.
"""

import argparse
import statistics
import sys
import time

import mxkit  # before mxnet
from mxkit.data import ArrayLoader, PairLoader
import mxnet as mx
from mxnet.gluon import nn
import numpy as np

DIGITS = mxkit.data.digits(28)
SHOTS = 10
HELD_OUT = [(0, 1), (2, 3), (4, 5), (6, 7), (8, 9)]


class Distorted:
    """Batches of another loader, every image stretched, sheared, turned and moved a little."""

    def __init__(self, loader, most=0.2):
        self.loader, self.most = loader, most

    def __iter__(self):
        for x, y in self.loader:
            change = mx.nd.random.uniform(-self.most, self.most, (len(x), 6)) * mx.nd.array([[1, 1, 0.5, 1, 1, 0.5]])
            grid = mx.nd.GridGenerator(change + mx.nd.array([[1, 0, 0, 0, 1, 0]]), "affine", target_shape=x.shape[2:])
            yield mx.nd.BilinearSampler(x, grid), y


def part(name, chosen):
    """Images and labels of the chosen digits of a part of the data."""
    split = getattr(DIGITS, name)
    rows = np.isin(split.y, chosen)
    return split.x[rows], split.y[rows]


def turned(x, y):
    """Eight classes of each: turned by quarters, and mirrored before."""
    ways = [np.rot90(one, turns, (2, 3)) for one in (x, x[..., ::-1]) for turns in range(4)]
    labels = np.concatenate([y + 10 * number for number in range(8)])
    return np.concatenate(ways).astype("float32"), np.unique(labels, return_inverse=True)[1].astype("int32")


def branch():
    """Convolutions of LeNet with BatchNorm, and 64 numbers of length 1."""
    net = nn.HybridSequential()
    for channels in (20, 50):
        net.add(nn.Conv2D(channels, 5), nn.BatchNorm(), nn.Activation("relu"), nn.MaxPool2D(2, 2))
    net.add(nn.Flatten(), nn.Dense(64), nn.HybridLambda("L2Normalization"))
    return net


def classifier(classes, seed):
    """The branch, made longer, and a dense layer; initialized."""
    mxkit.seed_all(seed)
    net = nn.HybridSequential()
    net.add(branch(), nn.HybridLambda(lambda _, x: 12 * x), nn.Dense(classes))
    return ready(net)


def ready(net):
    mxkit.initialize(net, "xavier", devices="cpu")
    net.hybridize(static_alloc=True)
    return net


def train(net, data, updates, seed, loss="softmax_ce", rate=1e-3):
    trainer = ("adam", {"learning_rate": rate})
    mxkit.fit(net, data, loss=loss, trainer=trainer, epochs=f"{updates} updates", seed=seed, progress=False)
    return net


def trained_on(digits, seed, updates=400):
    """A classifier of these digits, turned and mirrored."""
    x, y = turned(*part("train", digits))
    return train(
        classifier(y.max() + 1, seed), Distorted(ArrayLoader(x, y, 96, shuffle=True, seed=seed)), updates, seed
    )


def finetuning(seeds):
    """Accuracy on 5 to 9 by way, rate and number of updates; a row a way."""
    found = {}
    for seed in range(seeds):
        base = trained_on(range(5), seed)
        x, y = part("train", range(5, 10))
        draws = np.random.RandomState(seed)
        rows = np.concatenate([draws.permutation(np.flatnonzero(y == digit))[:SHOTS] for digit in range(5, 10)])
        few = ArrayLoader(x[rows], y[rows] - 5, 25, shuffle=True, seed=seed)
        test_x, test_y = part("test", range(5, 10))
        test = ArrayLoader(test_x, test_y - 5, 256)
        for updates in (20, 200):
            for rate in (1e-3, 3e-3):
                nets = {
                    "from scratch": classifier(5, 1000 + seed),
                    "finetune, all but the head frozen": mxkit.finetune(base, 5, head="2"),
                    "finetune, nothing frozen": mxkit.finetune(base, 5, head="2", freeze=None),
                }
                for way, net in nets.items():
                    train(net, few, updates, seed, rate=rate)
                    score = mxkit.evaluate(net, test, metrics=["accuracy"])["accuracy"]
                    found.setdefault((updates, rate, way), []).append(score)
    print(
        f"{SHOTS} samples of each of the digits 5 to 9, {len(test_y)} for testing, {seeds} seeds: accuracy, worst, best"
    )
    for (updates, rate, way), scores in found.items():
        line = f"{statistics.mean(scores):.3f}  {min(scores):.3f}  {max(scores):.3f}"
        print(f"  {updates:4} updates of 25, Adam {rate:g}  {way:34} {line}")


def of_contrast(digits, seed):
    x, y = part("train", digits)
    net, data = mxkit.models.Siamese(branch()), PairLoader(x, y, 64, seed=seed)
    return train(ready(net), data, 400, seed, mxkit.losses.ContrastiveLoss())


def of_triplets(digits, seed):
    net, data = branch(), Distorted(ArrayLoader(*part("train", digits), 64, shuffle=True, seed=seed))
    return mxkit.models.Siamese(train(ready(net), data, 400, seed, mxkit.losses.TripletLoss(0.3)))


def of_classes(digits, seed):
    return mxkit.models.Siamese(trained_on(digits, seed)[0])


def of_pixels(digits, seed):
    return ready(mxkit.models.Siamese(nn.Flatten()))


def agreement(net, name, digits, threshold=None):
    """Accuracy and threshold over 1,000 pairs of these digits, half of them alike."""
    pairs = PairLoader(*part(name, digits), 250, length=1000, shuffle=False, seed=0)
    first, second, same = [], [], []
    for (a, b), alike in pairs:
        embedded = net(a, b)
        first.append(embedded[0].asnumpy())
        second.append(embedded[1].asnumpy())
        same.append(alike.asnumpy())
    arrays = (np.concatenate(one) for one in (first, second, same))
    return mxkit.losses.pair_accuracy(*arrays, threshold=threshold)


def siamese(seeds):
    """Pair accuracy on digits that were never seen, by way; the seeds are those of the first values."""
    ways = {
        "distance of the pixels": of_pixels,
        "ContrastiveLoss, pairs": of_contrast,
        "TripletLoss, batch hard": of_triplets,
        "64 classes, turned and mirrored": of_classes,
    }
    print(f"two digits never seen, of {HELD_OUT}, {seeds} seeds each: pair accuracy, worst, best")
    for way, learn in ways.items():
        begun, seen, unseen, best = time.perf_counter(), [], [], []
        for held_out in HELD_OUT:
            digits = [digit for digit in range(10) if digit not in held_out]
            for seed in range(seeds):
                net = learn(digits, seed)
                searched = agreement(net, "valid", digits)
                seen.append(agreement(net, "test", digits, searched.threshold).accuracy)
                unseen.append(agreement(net, "test", held_out, searched.threshold).accuracy)
                best.append(agreement(net, "test", held_out).accuracy)
        line = f"{statistics.mean(unseen):.3f}  {min(unseen):.3f}  {max(unseen):.3f}"
        rest = f"best threshold {statistics.mean(best):.3f}, the eight digits {statistics.mean(seen):.3f}"
        print(f"  {way:32} {line}  ({rest}; {time.perf_counter() - begun:.0f} s)")
        sys.stdout.flush()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help="finetune or siamese; none are both")
    parser.add_argument("--seeds", type=int, help="5 for finetune, 1 for each of siamese's choices")
    arguments = parser.parse_args()
    if set(arguments.parts) - {"finetune", "siamese"}:
        parser.error(f"expected finetune or siamese; received {' '.join(arguments.parts)}")
    if "finetune" in (arguments.parts or ["finetune"]):
        finetuning(arguments.seeds or 5)
    if "siamese" in (arguments.parts or ["siamese"]):
        siamese(arguments.seeds or 1)


if __name__ == "__main__":
    main()

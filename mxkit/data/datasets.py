"""Published datasets as `Splits`: URLs, sizes and digests of their files, and the names of their classes."""

import os
from pathlib import Path
from typing import Dict, List, Optional, Sequence, Tuple, Union

from mxkit.core.arguments import whole_number
from mxkit.data.download import Mirror, RemoteFile, dataset_folder, fetch_files, homes, is_right
from mxkit.data.formats import CIFAR10_FILES, CIFAR100_FILES, PUBLISHED, CifarFiles, read_cifar, read_idx
from mxkit.data.splits import Share, Split, Splits, channel_statistics, chosen_part, three_parts
from mxkit.errors import DataError
import numpy as np

Root = Union[str, Path, None]


# MXNet's own host, unless the variable MXNET_GLUON_REPO names another. Gluon's datasets.py lists its SHA-1 digests.
_MXNET = "https://apache-mxnet.s3-accelerate.dualstack.amazonaws.com/"
_CLASSES: Dict[str, List[str]] = PUBLISHED["classes"]
CIFAR100_COARSE, CIFAR100_FINE = _CLASSES["cifar100 coarse"], _CLASSES["cifar100"]


def files_of(dataset: str) -> List[RemoteFile]:
    """Files of `mnist`, `fashion-mnist`, `cifar10` or `cifar100`, as MXNet names these folders."""
    repository = os.environ.get("MXNET_GLUON_REPO") or _MXNET
    last = f"{repository.rstrip('/')}/gluon/dataset/{dataset}/"
    files = []
    for file in PUBLISHED[dataset]["files"]:
        name, size, digest, of_mxnet = file["name"], file["size"], file["digest"], file["of_mxnet"]
        mirrors = [Mirror(place + name, digest, size) for place in PUBLISHED[dataset]["places"]]
        mirrors.append(Mirror(last + name, of_mxnet, size if of_mxnet == digest else None))
        files.append(RemoteFile(name, mirrors))
    return files


def digits(size: int = 8, channels: int = 1) -> Splits:
    """Real handwritten digits: 1,797 scans of 8x8 pixels, the table that scikit-learn ships too.

    The split is fixed and stratified: of each class, in the order of the data, every 6th sample is for testing and
    every 10th of the others for validation, which gives 1,354, 147 and 296 samples.

    Args:
        size: 8 for the scans as they are, or a larger multiple of 4 from 28 on, for nets made for MNIST: each pixel
            becomes a square and a border is added on all sides (28: x3 and 2 pixels).
        channels: Number of copies of the grey channel: 3 for nets made for colour. With a size of 32 the images have
            the shape of CIFAR's.

    Returns:
        Inputs float32 NCHW of shape (N, channels, size, size) in 0 to 1 (the scans' 0 to 16 divided by 16),
        labels int32 of shape (N,).

    Raises:
        ValueError: `size` is not allowed, or `channels` is below 1.

    Source:
        https://archive.ics.uci.edu/dataset/80/optical+recognition+of+handwritten+digits

    >>> digits(28).test.x.shape
    (296, 1, 28, 28)
    >>> digits(32, channels=3).test.x.shape
    (296, 3, 32, 32)
    """
    table = np.loadtxt(str(Path(__file__).parent / "digits.csv.gz"), delimiter=",", dtype=np.int32)
    x = upsample((table[:, :64] / 16).astype(np.float32).reshape(-1, 1, 8, 8), size)
    x = x.repeat(whole_number(channels, "digits: channels"), axis=1)
    y = np.ascontiguousarray(table[:, 64])
    part = _stratified_parts(y)
    train, valid, test = (Split(x[part == i], y[part == i]) for i in range(3))
    return Splits(train, valid, test, _CLASSES["mnist"][:], *channel_statistics(train.x))


def mnist(root: Root = None, *, valid: Share = 5000, offline: Optional[bool] = None) -> Splits:
    """MNIST: 70,000 handwritten digits, 28x28 pixels, in grey.

    Args:
        root: Folder of the four files, gzipped or not, or the folder to download them to. Files there are used as
            they are, if their format is right. None is the cache, `datasets/mnist` in `$MXNET_HOME` or `~/.mxnet`,
            which MXNet uses too; there only the genuine files count.
        valid: Number of the 60,000 training samples for the validation part, or a fraction. They are chosen at random,
            but always the same ones, from each class its share; the order of the others does not change.
        offline: Do not use the network. None reads the environment variable `MXKIT_OFFLINE`.

    Returns:
        Inputs uint8 NCHW of shape (N, 1, 28, 28), 0 to 255, which `ArrayLoader` divides by 255; labels int32.
        55,000, 5,000 and 10,000 samples; the last are the genuine test set.

    Raises:
        DownloadError: Files are missing and cannot be downloaded; the text lists them.
        DataError: A file is damaged or belongs to another dataset.

    Source:
        http://yann.lecun.com/exdb/mnist
    """
    return _idx_splits("mnist", root, valid, offline)


def fashion_mnist(root: Root = None, *, valid: Share = 5000, offline: Optional[bool] = None) -> Splits:
    """Fashion-MNIST: 70,000 images of clothes; arguments and results as for `mnist`, cache `datasets/fashion-mnist`.

    Source:
        https://github.com/zalandoresearch/fashion-mnist
    """
    return _idx_splits("fashion-mnist", root, valid, offline)


def cifar10(root: Root = None, *, valid: Share = 5000, offline: Optional[bool] = None) -> Splits:
    """CIFAR-10: 60,000 colour images of 32x32 pixels.

    Args:
        root: The archive `cifar-10-binary.tar.gz`, a folder with it or with its unpacked files, or the folder to
            download the archive to. None is the cache, `datasets/cifar10`.
        valid: As for `mnist`, of 50,000.
        offline: As for `mnist`.

    Returns:
        Inputs uint8 NCHW of shape (N, 3, 32, 32), RGB, 0 to 255; labels int32. 45,000, 5,000 and 10,000 samples.

    Raises:
        DownloadError: Files are missing and cannot be downloaded; the text lists them.
        DataError: A file is damaged or belongs to another dataset.

    Source:
        https://www.cs.toronto.edu/~kriz/cifar.html
    """
    return _cifar_splits("cifar10", CIFAR10_FILES, root, valid, offline, 0, _CLASSES["cifar10"])


def cifar100(root: Root = None, *, coarse: bool = False, valid: Share = 5000, offline: Optional[bool] = None) -> Splits:
    """CIFAR-100: as `cifar10`, with 100 classes; cache `datasets/cifar100`.

    Args:
        root: As for `cifar10`.
        coarse: Use the 20 superclasses as labels, which is the default of MXNet's own dataset.
        valid: As for `mnist`, of 50,000.
        offline: As for `mnist`.
    """
    names = CIFAR100_COARSE if coarse else CIFAR100_FINE
    return _cifar_splits("cifar100", CIFAR100_FILES, root, valid, offline, 0 if coarse else 1, names)


def _idx_splits(name: str, root: Root, valid: Share, offline: Optional[bool]) -> Splits:
    train_x, train_y, test_x, test_y = _idx_files(name, root, offline)
    parts = []
    for images, labels in ((train_x, train_y), (test_x, test_y)):
        x, y = read_idx(images), read_idx(labels)
        if x.ndim != 3 or x.dtype != np.uint8 or y.shape != x.shape[:1]:
            found = f"{x.shape} of {x.dtype} and {y.shape}"
            raise DataError(f"{images}: expected images (N, height, width) of uint8 and N labels; received {found}")
        parts.append(Split(x[:, None], y.astype(np.int32)))
    sizes = (60000, 10000) if root is None else None
    return _splits(parts[0], parts[1], _CLASSES[name], valid, train_x.parent, sizes)


def _idx_files(name: str, root: Root, offline: Optional[bool]) -> List[Path]:
    files = files_of(name)
    target = dataset_folder(name) if root is None else Path(root).expanduser()
    inner = ("", name, "raw", "MNIST/raw", "FashionMNIST/raw")
    for folder in [home / "datasets" / name for home in homes()] if root is None else [target / one for one in inner]:
        for paths in ([folder / file.name for file in files], [folder / file.name[:-3] for file in files]):
            genuine = root is not None or paths[0].suffix != ".gz" or all(map(is_right, paths, files))
            if genuine and all(path.is_file() for path in paths):
                return paths
    # what is in a folder of the user's own is not replaced
    missing = [file for file in files if root is None or not (target / file.name).is_file()]
    fetch_files(missing, target, offline=offline)
    return [target / file.name for file in files]


def _cifar_splits(
    name: str, files: CifarFiles, root: Root, valid: Share, offline: Optional[bool], column: int, classes: Sequence[str]
) -> Splits:
    place = _cifar_place(name, files, root, offline)
    parts = []
    for names in (files.train, files.test):
        x, y = read_cifar(place, names, files)
        parts.append(Split(x, np.ascontiguousarray(y[:, column])))
    return _splits(parts[0], parts[1], classes, valid, place, (50000, 10000) if root is None else None)


def _cifar_place(name: str, files: CifarFiles, root: Root, offline: Optional[bool]) -> Path:
    """The folder or archive of the files."""
    target = dataset_folder(name) if root is None else Path(root).expanduser()
    if target.is_file():
        return target
    for folder in [home / "datasets" / name for home in homes()] if root is None else [target, target / name]:
        for place in (folder, folder / files.folder):
            if all((place / one).is_file() for one in files.train + files.test):
                return place
        archive = folder / files.archive
        if archive.is_file() and (root is not None or is_right(archive, files_of(name)[0])):
            return archive
    return fetch_files(files_of(name), target, offline=offline)[0]


def _splits(
    train: Split, test: Split, classes: Sequence[str], valid: Share, place: Path, sizes: Optional[Tuple[int, int]]
) -> Splits:
    if sizes not in (None, (len(train.y), len(test.y))):
        found = (len(train.y), len(test.y))
        raise DataError(f"{place}: expected the {sizes} samples of MXNet's; received {found}. Pass root= for your own")
    labels = np.concatenate([train.y, test.y])
    if len(labels) and not 0 <= labels.min() <= labels.max() < len(classes):
        raise DataError(f"{place}: labels {labels.min()} to {labels.max()}; expected 0 to {len(classes) - 1}")
    chosen = chosen_part(train.y, len(train.y), valid, "valid")
    rest, part = (Split(train.x[rows], train.y[rows]) for rows in (~chosen, chosen))
    return Splits(rest, part, test, list(classes), *channel_statistics(rest.x))


def upsample(x: "np.ndarray", size: int) -> "np.ndarray":
    """Enlarge images by a whole factor and pad them evenly with zeros to `size`.

    Args:
        x: Shape (N, C, side, side).
        size: The new side; `side` itself or more, and an even number of pixels more than a multiple of it.

    Returns:
        Shape (N, C, size, size).

    Raises:
        ValueError: `size` is smaller, or the border would not be even.
    """
    side = x.shape[-1]
    factor, rest = divmod(size, side)
    if factor < 1 or rest % 2:
        raise ValueError(f"size: expected {side}, or a number with an even rest of division by {side}; received {size}")
    border = rest // 2
    enlarged = x.repeat(factor, axis=2).repeat(factor, axis=3)
    return np.pad(enlarged, ((0, 0), (0, 0), (border, border), (border, border)))


def _stratified_parts(y: "np.ndarray") -> "np.ndarray":
    """The part of each sample: 0 for training, 1 for validation, 2 for testing."""
    part = np.zeros(len(y), np.int8)
    for label in np.unique(y):
        rows = np.flatnonzero(y == label)
        part[rows[5::6]] = 2
        part[np.delete(rows, slice(5, None, 6))[9::10]] = 1
    return part


def made_linear(
    samples: int = 1000,
    weights: Sequence[float] = (2.0, -3.4),
    bias: float = 4.2,
    *,
    noise: float = 0.01,
    valid: Share = 0.1,
    test: Share = 0.1,
    seed: int = 0,
) -> Splits:
    """Random data for linear regression, as in the tutorials: `y = weights * x + bias`, with noise.

    Args:
        samples: Number of samples, at least 3.
        weights: One weight for each feature.
        bias: Added to every y.
        noise: Standard deviation of the normal noise in y.
        valid: Share or number of the samples for validation.
        test: Share or number of the samples for testing.
        seed: Integer that determines the data.

    Returns:
        x float32 of shape (N, len(weights)), normal with standard deviation 1; y float32 of shape (N,). No classes.

    Raises:
        ValueError: There are fewer than 3 samples, or the parts leave no training data.

    >>> data = made_linear(100, noise=0)
    >>> float(abs(data.test.x @ np.array([2, -3.4]) + 4.2 - data.test.y).max()) < 1e-5
    True
    """
    whole_number(samples, "made_linear: samples", least=3)
    draws = np.random.RandomState(seed)
    x = draws.standard_normal((samples, len(weights)))
    y = x @ np.asarray(weights, np.float64) + bias + noise * draws.standard_normal(samples)
    x, y = x.astype(np.float32), y.astype(np.float32)
    train, validated, tested = (Split(x[rows], y[rows]) for rows in three_parts(None, samples, valid, test, seed))
    return Splits(train, validated, tested, [], *channel_statistics(train.x))

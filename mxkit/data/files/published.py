"""Published datasets: URLs, sizes and digests of their files, and the names of their classes."""

import os
from typing import Dict, List, NamedTuple, Sequence, Tuple

from mxkit.data.files.download import Mirror, RemoteFile

# MXNet's own host, unless the variable MXNET_GLUON_REPO names another. Gluon's datasets.py lists its SHA-1 digests.
_MXNET = "https://apache-mxnet.s3-accelerate.dualstack.amazonaws.com/"
_IDX_NAMES = [f"{part}-{content}-ubyte.gz" for part in ("train", "t10k") for content in ("images-idx3", "labels-idx1")]


class _Published(NamedTuple):
    """Files of a dataset: their names, base URLs, sizes and digests, and the digests of MXNet's copies."""

    names: Sequence[str]
    places: Sequence[str]
    known: Sequence[Tuple[int, str]]
    of_mxnet: Sequence[str]


def _cifar(name: str, size: int, digest: str, of_mxnet: str) -> _Published:
    return _Published([name], ["https://www.cs.toronto.edu/~kriz/"], [(size, digest)], [of_mxnet])


_MNIST = [
    (9912422, "sha1:6c95f4b05d2bf285e1bfb0e7960c31bd3b3f8a7d"),
    (28881, "sha1:2a80914081dc54586dbdf242f9805a6b8d2a15fc"),
    (1648877, "sha1:c3a25af1f52dad7f726cce8cacb138654b760d48"),
    (4542, "sha1:763e7fa3757d93b0cdec073cef058b2004252c17"),
]
_PUBLISHED: Dict[str, _Published] = {
    "mnist": _Published(
        _IDX_NAMES,
        ["https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"],
        _MNIST,
        [digest for _, digest in _MNIST],
    ),
    "fashion-mnist": _Published(
        _IDX_NAMES,
        [
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        ],
        [
            (26421880, "sha256:3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"),
            (29515, "sha256:a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"),
            (4422102, "sha256:346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"),
            (5148, "sha256:67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"),
        ],
        [
            "sha1:0cf37b0d40ed5169c6b3aba31069a9770ac9043d",
            "sha1:236021d52f1e40852b06a4c3008d8de8aef1e40b",
            "sha1:626ed6a7c06dd17c0eec72fa3be1740f146a2863",
            "sha1:17f9ab60e7257a1620f4ad76bbbaf857c3920701",
        ],
    ),
    "cifar10": _cifar(
        "cifar-10-binary.tar.gz",
        170052171,
        "sha256:c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
        "sha1:fab780a1e191a7eda0f345501ccd62d20f7ed891",
    ),
    "cifar100": _cifar(
        "cifar-100-binary.tar.gz",
        168513733,
        "sha256:58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
        "sha1:a0bb982c76b83111308126cc779a992fa506b90b",
    ),
}


def files_of(dataset: str) -> List[RemoteFile]:
    """Files of `mnist`, `fashion-mnist`, `cifar10` or `cifar100`, as MXNet names these folders."""
    names, places, known, of_mxnet = _PUBLISHED[dataset]
    repository = os.environ.get("MXNET_GLUON_REPO") or _MXNET
    last = f"{repository.rstrip('/')}/gluon/dataset/{dataset}/"
    files = []
    for name, (size, digest), mxnets in zip(names, known, of_mxnet):
        mirrors = [Mirror(place + name, digest, size) for place in places]
        mirrors.append(Mirror(last + name, mxnets, size if mxnets == digest else None))
        files.append(RemoteFile(name, mirrors))
    return files


_CLOTHES = "T-shirt/top, Trouser, Pullover, Dress, Coat, Sandal, Shirt, Sneaker, Bag, Ankle boot"
FASHION = tuple(_CLOTHES.split(", "))
CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

# Both lists of CIFAR-100 are in alphabetical order.
_COARSE = """
aquatic_mammals fish flowers food_containers fruit_and_vegetables household_electrical_devices household_furniture
insects large_carnivores large_man-made_outdoor_things large_natural_outdoor_scenes large_omnivores_and_herbivores
medium_mammals non-insect_invertebrates people reptiles small_mammals trees vehicles_1 vehicles_2
"""
_FINE = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant
flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree
motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate
poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider
squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle
wardrobe whale willow_tree wolf woman worm
"""
CIFAR100_COARSE = tuple(_COARSE.split())
CIFAR100_FINE = tuple(_FINE.split())

"""ImageNet as its files are laid out."""

import functools
from pathlib import Path
import re
from typing import Any, Dict, List, Optional, Tuple, Union

from mxkit.data.augmentation.presets import IMAGENET_MEAN, IMAGENET_STD
from mxkit.data.files.cache import dataset_folder
from mxkit.data.files.image_files import SUFFIXES, ImageFiles, scan
from mxkit.data.files.image_records import image_records
from mxkit.data.splits import Splits
from mxkit.errors import DataError

_WORDNET = re.compile(r"\bn\d{8}\b")
_IMAGE = re.compile(r"\bILSVRC\d+_val_\d+")
_LABEL_FILES = ("LOC_val_solution.csv", "imagenet_2012_validation_synset_labels.txt", "val.txt")


def imagenet(root: Union[str, Path, None] = None, *, val_labels: Union[str, Path, None] = None) -> Splits:
    """ImageNet (ILSVRC 2012), which you must have fetched yourself.

    Args:
        root: Folder with `train/n01440764/*.JPEG` and `val`, the latter with folders of classes or flat; also with
            `ILSVRC/Data/CLS-LOC` between, as Kaggle packs it; or with `train.rec` and `val.rec`. None is the cache,
            `datasets/imagenet`, where gluoncv looks too.
        val_labels: For a flat `val`: a text file that tells the WordNet id of each image: lines with the image's
            name and the id, or with the image's name and the number of the class from 0 on, or ids alone in the
            order of the images. None looks for the files that Kaggle, TensorFlow and Caffe have named so.

    Returns:
        `.train` and `.valid`, which is ImageNet's validation set; `.test` is empty, as the labels of the test set
        were never published. Classes are WordNet ids, sorted, as all pretrained nets number them; `class_names`
        tells the words. A subset of the classes is read too. Mean and std are the usual ones.

    Raises:
        DataError: The folder is laid out otherwise, or an image has no label.

    Source:
        https://www.image-net.org/challenges/LSVRC/2012
    """
    top = dataset_folder("imagenet") if root is None else Path(root).expanduser()
    for place in (top, top / "rec"):
        if (place / "train.rec").is_file():
            found = image_records(place, classes=_all_ids(), valid=0)
            return found._replace(mean=IMAGENET_MEAN, std=IMAGENET_STD)
    root = next((place for place in (top, top / "ILSVRC/Data/CLS-LOC") if (place / "train").is_dir()), None)
    if root is None:
        raise DataError(
            f"imagenet: {top} has neither a folder train/ with folders like n01440764, nor train.rec. ImageNet is "
            "given out to registered users only: https://www.image-net.org/download.php"
        )
    train = scan(root / "train", check_sizes=False)
    wrong = [name for name in train.classes if not _WORDNET.fullmatch(name)]
    if wrong:
        raise DataError(f"{root / 'train'}: expected folders like n01440764; there is {wrong[0]!r}")
    names, labels = _validation(root / "val", train.classes, [top, root, root / "val"], val_labels)
    return Splits(
        ImageFiles(root / "train", train.names, train.labels, train.classes),
        ImageFiles(root / "val", names, labels, train.classes),
        ImageFiles(root / "test", [], [], train.classes),
        train.classes,
        IMAGENET_MEAN,
        IMAGENET_STD,
    )


def class_names(ids: List[str]) -> List[str]:
    """The first word of ImageNet's classes, like 'tench', for their WordNet ids; from gluoncv's table.

    Raises:
        KeyError: An id is none of the 1,000.
    """
    table = _attributes()
    names = dict(zip(table.synset, table.classes))
    return [names[one] for one in ids]


@functools.lru_cache(maxsize=1)
def _all_ids() -> List[str]:
    return list(_attributes().synset)


def _attributes() -> Any:
    from gluoncv.data.imagenet.classification import ImageNet1kAttr  # gluoncv costs seconds to import

    return ImageNet1kAttr()


def _validation(
    val: Path, classes: List[str], places: List[Path], val_labels: Union[str, Path, None]
) -> Tuple[List[str], List[int]]:
    if not val.is_dir():
        return [], []
    if any(path.is_dir() and not path.name.startswith(".") for path in val.iterdir()):
        found = scan(val, classes, check_sizes=False)
        return found.names, found.labels
    names = sorted(path.name for path in val.iterdir() if path.suffix.lower() in SUFFIXES)
    file = Path(val_labels).expanduser() if val_labels is not None else _label_file(places)
    if file is None:
        raise DataError(
            f"{val}: its images are in no folders of classes, and there is no file of labels. Pass val_labels=, a "
            f"text file with a WordNet id for each image; looked for {', '.join(_LABEL_FILES)} in {places[0]}"
        )
    ids = _labels_in(file, names)
    numbers = {name: number for number, name in enumerate(classes)}
    known = [name for name in names if ids.get(name.rpartition(".")[0]) in numbers]
    lost = [name for name in names if name.rpartition(".")[0] not in ids]
    if lost:
        raise DataError(f"{file}: it has no label for {len(lost)} images of {val}, like {lost[0]}")
    # images of classes that the training part does not have are left out: a subset of the classes is trained on
    return known, [numbers[ids[name.rpartition(".")[0]]] for name in known]


def _label_file(places: List[Path]) -> Optional[Path]:
    return next((place / name for place in places for name in _LABEL_FILES if (place / name).is_file()), None)


def _labels_in(file: Path, names: List[str]) -> Dict[str, str]:
    """WordNet id of each image, by its name without the suffix."""
    found: Dict[str, str] = {}
    bare: List[str] = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        image, wordnet = _IMAGE.search(line), _WORDNET.search(line)
        if image and wordnet:
            found[image.group()] = wordnet.group()
        elif wordnet:
            bare.append(wordnet.group())
        elif image:
            label = line.split()[-1]
            if not label.isdigit() or int(label) >= 1000:
                raise DataError(f"{file}, line {number}: expected a class from 0 to 999: {line!r}")
            found[image.group()] = _all_ids()[int(label)]
        elif line.strip().isdigit():
            raise DataError(
                f"{file}, line {number}: a number alone. ILSVRC2012_validation_ground_truth.txt counts the classes in "
                "an order of its own; pass a file with WordNet ids"
            )
    if bare and not found:
        if len(bare) != len(names):
            raise DataError(f"{file}: {len(bare)} labels for {len(names)} images")
        return {name.rpartition(".")[0]: one for name, one in zip(names, bare)}
    return found

"""ImageNet in the usual layouts of its files."""

import functools
from pathlib import Path
import re
from typing import Dict, List, Tuple, Union

from mxkit.data.augmentation.presets import IMAGENET_MEAN, IMAGENET_STD
from mxkit.data.files.cache import dataset_folder
from mxkit.data.files.image_files import SUFFIXES, ImageFiles, scan
from mxkit.data.files.record_images import image_records
from mxkit.data.splits import Splits
from mxkit.errors import DataError

_WORDNET = re.compile(r"\bn\d{8}\b")
_IMAGE = re.compile(r"\bILSVRC\d+_val_\d+")
_LABEL_FILES = ("LOC_val_solution.csv", "imagenet_2012_validation_synset_labels.txt", "val.txt")


def imagenet(root: Union[str, Path, None] = None, *, val_labels: Union[str, Path, None] = None) -> Splits:
    """Read ImageNet (ILSVRC 2012), which you must download yourself.

    Args:
        root: Folder with `train/n01440764/*.JPEG` and `val`, with or without class folders; or with
            `ILSVRC/Data/CLS-LOC` in between, as in Kaggle's archive; or with `train.rec` and `val.rec`. None is
            `datasets/imagenet` in the cache, which gluoncv reads too.
        val_labels: If `val` has no class folders: a text file with the label of each image. A line has the image's name
            and its WordNet id; or its name and class number from 0; or only the id, in the order of the images. None
            looks for the files of Kaggle, TensorFlow and Caffe.

    Returns:
        `.train`, and ImageNet's validation set as `.valid`; `.test` is empty, because its labels were never published.
        Classes are sorted WordNet ids, numbered as in all pretrained nets. A subset of the classes can be read too.
        Mean and std are the usual ones.

    Raises:
        DataError: The folder has another layout, or an image has no label.

    Source:
        https://www.image-net.org/challenges/LSVRC/2012
    """
    top = dataset_folder("imagenet") if root is None else Path(root).expanduser()
    for place in (top, top / "rec"):
        if (place / "train.rec").is_file():
            splits = image_records(place, classes=_all_ids(), valid=0)
            return splits._replace(mean=IMAGENET_MEAN, std=IMAGENET_STD)
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


@functools.lru_cache(maxsize=1)
def _all_ids() -> List[str]:
    from gluoncv.data.imagenet.classification import ImageNet1kAttr  # gluoncv takes seconds to import

    return list(ImageNet1kAttr().synset)


def _validation(
    val: Path, classes: List[str], places: List[Path], val_labels: Union[str, Path, None]
) -> Tuple[List[str], List[int]]:
    """Names and labels of the validation images, in class folders or by a file of labels."""
    if not val.is_dir():
        return [], []
    if any(path.is_dir() and not path.name.startswith(".") for path in val.iterdir()):
        images = scan(val, classes, check_sizes=False)
        return images.names, images.labels
    stems = {path.stem: path.name for path in sorted(val.iterdir()) if path.suffix.lower() in SUFFIXES}
    candidates = [place / name for place in places for name in _LABEL_FILES]
    file = next(filter(Path.is_file, candidates), None) if val_labels is None else Path(val_labels).expanduser()
    if file is None:
        raise DataError(
            f"{val}: its images are in no folders of classes, and there is no file of labels. Pass val_labels=, a "
            f"text file with a WordNet id for each image; looked for {', '.join(_LABEL_FILES)} in {places[0]}"
        )
    ids = _labels_in(file, list(stems))
    missing = [name for stem, name in stems.items() if stem not in ids]
    if missing:
        raise DataError(f"{file}: it has no label for {len(missing)} images of {val}, like {missing[0]}")
    # leaves out images of classes that the training part lacks, for training on a subset of the classes
    numbers = {name: number for number, name in enumerate(classes)}
    known = [stem for stem in stems if ids[stem] in numbers]
    return [stems[stem] for stem in known], [numbers[ids[stem]] for stem in known]


def _labels_in(file: Path, stems: List[str]) -> Dict[str, str]:
    """WordNet id of each image, by its name without the suffix."""
    by_name: Dict[str, str] = {}
    bare: List[str] = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        image, wordnet = _IMAGE.search(line), _WORDNET.search(line)
        if image and wordnet:
            by_name[image.group()] = wordnet.group()
        elif wordnet:
            bare.append(wordnet.group())
        elif image:
            label = line.split()[-1]
            if not label.isdigit() or int(label) >= 1000:
                raise DataError(f"{file}, line {number}: expected a class from 0 to 999: {line!r}")
            by_name[image.group()] = _all_ids()[int(label)]
        elif line.strip().isdigit():
            raise DataError(
                f"{file}, line {number}: a number alone. ILSVRC2012_validation_ground_truth.txt has its own order of "
                "classes; pass a file with WordNet ids"
            )
    if bare and not by_name:
        if len(bare) != len(stems):
            raise DataError(f"{file}: {len(bare)} labels for {len(stems)} images")
        return dict(zip(stems, bare))
    return by_name

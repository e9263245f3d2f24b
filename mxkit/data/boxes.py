"""Boxes around objects in the formats of VOC, COCO, YOLO, CSV and im2rec, checked before the first epoch."""

import csv as csv_files
import json
import math
from pathlib import Path
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple, Union
import warnings
from xml.parsers import expat

from mxkit.core.arguments import is_finite_number
from mxkit.data.annotated import SIDES, Annotated, Box, Mistakes, PathLike, box_splits, divided, voc_list
from mxkit.data.image_files import FOLDERS, ImageRecords, find_images
from mxkit.data.splits import Splits
from mxkit.errors import DataError, TrapWarning
import numpy as np


def voc_boxes(
    root: PathLike,
    *,
    train: Union[str, Sequence[str]] = "trainval",
    valid: Union[str, Sequence[str]] = "test",
    test: Union[None, str, Sequence[str]] = None,
    classes: Optional[Sequence[str]] = None,
    share: float = 0.1,
    seed: int = 0,
) -> Splits:
    """Read boxes in Pascal VOC's layout: `Annotations/**/*.xml`, `JPEGImages` and `ImageSets/Main/*.txt`.

    Sides are VOC's minus 1, as in gluoncv's `VOCDetection`, because VOC counts pixels from 1. Class names are in lower
    case there; here they stay as written.

    Args:
        root: The folder with `Annotations`, or the folder of several such folders.
        train: List in `ImageSets/Main` without its ending, or several: `["VOC2007/trainval", "VOC2012/trainval"]`.
        valid: List for validation. Without the folder `ImageSets`, a hash of each image's name decides its part.
        test: List for the test part; None leaves it empty.
        classes: Names of the classes, in the order of their numbers. None takes the names of the training part, sorted.
        share: Without `ImageSets`, the share of images for validation, and the same for testing.
        seed: Seed of that division.

    Returns:
        Parts of type `AnnotatedImages`.

    Raises:
        DataError: A folder, list, image or annotation is missing or damaged; all mistakes are in one error, each with
            its file and line.
    """
    root, mistakes = Path(root).expanduser(), Mistakes("voc_boxes")
    if not root.is_dir():
        raise DataError(f"voc_boxes: there is no folder {root}")
    parts: Dict[str, List[Annotated]] = {part: [] for part in FOLDERS}
    if (root / "Annotations").is_dir() and not (root / "ImageSets").is_dir():
        stems = _stems(root / "Annotations", ".xml")
        lone = set(_stems(root / "JPEGImages", ".*")) - set(stems)
        if lone:
            text = f"{len(lone)} images have no annotation and are left out, like {min(lone)}"
            warnings.warn(f"voc_boxes: {text}", TrapWarning, stacklevel=2)
        for part, chosen in divided(stems, share, share, seed).items():
            parts[part] = [_voc_image(root, stem, mistakes) for stem in chosen]
    else:
        for part, names in zip(FOLDERS, (train, valid, test or ())):
            for name in [names] if isinstance(names, str) else names:
                folder, stems = _voc_list(root, name, mistakes)
                parts[part] += [_voc_image(folder, stem, mistakes) for stem in stems]
    return box_splits(root, parts, classes, mistakes)


def _stems(folder: Path, ending: str) -> List[str]:
    """Files of a folder and those in it, by their paths without endings."""
    return sorted(str(path.relative_to(folder).with_suffix("")) for path in folder.rglob(f"*{ending}"))


def _voc_list(root: Path, name: str, mistakes: Mistakes) -> Tuple[Path, List[str]]:
    folder, _, name = name.rpartition("/")
    path = root / folder / "ImageSets" / "Main" / f"{name}.txt"
    stems = []
    for number, line in enumerate(voc_list(path, "voc_boxes").splitlines(), 1):
        words = line.split()
        if len(words) > 2 or (len(words) == 2 and words[1] not in ("-1", "0", "1")):
            mistakes.add(f"{path}, line {number}", f"expected the name of an image; received {line!r:.80}")
        elif words and words[1:] != ["-1"]:  # -1: the list of one class, and the image has none of it
            stems.append(words[0])
    return root / folder, stems


def _voc_image(root: Path, stem: str, mistakes: Mistakes) -> Annotated:
    path = root / "Annotations" / f"{stem}.xml"
    image = next((root / "JPEGImages").glob(f"{stem}.*"), root / "JPEGImages" / f"{stem}.jpg")
    boxes = []
    for line, fields in _voc_objects(path, mistakes):
        where, name = f"{path}, line {line}", fields.get("name")
        if not name:
            mistakes.add(where, "object: it has no <name>")
            continue
        sides = [
            mistakes.number(fields.get(f"bndbox/{key}"), where, f"{name}: <{key}>")
            for key in ("xmin", "ymin", "xmax", "ymax")
        ]
        difficult = fields.get("difficult") or "0"
        if difficult not in ("0", "1"):
            mistakes.add(where, f"{name}: <difficult>: expected 0 or 1; received {difficult!r:.40}")
        if None not in sides:
            left, top, right, bottom = (side - 1 for side in sides)  # type: ignore[operator]
            boxes.append(Box((left, top, right, bottom), name, difficult == "1", f"{where}, {name}"))
    return Annotated(image, boxes)


def _voc_objects(path: Path, mistakes: Mistakes) -> List[Tuple[int, Dict[str, str]]]:
    """Line and fields of each `<object>`; a field in a field is named `bndbox/xmin`."""
    try:
        content = path.read_bytes()
    except OSError as error:
        mistakes.add(str(path), f"it cannot be read: {error.strerror}")
        return []
    objects: List[Tuple[int, Dict[str, str]]] = []
    place: List[str] = []
    parser = expat.ParserCreate()

    def start(tag: str, _: Any) -> None:
        place.append(tag)
        if place[1:] == ["object"]:
            objects.append((parser.CurrentLineNumber, {}))

    def text(value: str) -> None:
        if place[1:2] == ["object"] and value.strip() and "part" not in place:
            fields, key = objects[-1][1], "/".join(place[2:])
            fields[key] = fields.get(key, "") + value.strip()

    def refuse(*_: Any) -> None:
        raise DataError("it declares an entity")

    parser.StartElementHandler, parser.EndElementHandler = start, lambda tag: place.pop()
    parser.CharacterDataHandler, parser.EntityDeclHandler = text, refuse
    parser.buffer_text = True
    try:
        parser.Parse(content, True)
    except (expat.ExpatError, DataError) as error:
        mistakes.add(f"{path}, line {parser.CurrentLineNumber}", f"it is no XML of VOC: {error}")
        return []
    return objects


def coco_boxes(
    root: PathLike,
    *,
    train: str = "instances_train2017",
    valid: Optional[str] = "instances_val2017",
    test: Optional[str] = None,
    images: Optional[str] = None,
    classes: Optional[Sequence[str]] = None,
) -> Splits:
    """Read boxes of COCO's JSON files in `annotations/`.

    Right and bottom are `x + width - 1` and `y + height - 1`, cut off at the image, as in gluoncv's `COCODetection`.
    A crowd (`iscrowd`) counts as difficult. Images without an object stay.

    Args:
        root: The folder with `annotations`.
        train: The JSON file of the training part, without its ending.
        valid: That of the validation part, or None.
        test: That of the test part, or None.
        images: Folder of the images; `{}` in it stands for the last word of the JSON's name. None looks for
            `train2017/` beside `annotations` for `instances_train2017`, then for the images in `root` itself.
        classes: Names of the classes, in the order of their numbers. None takes the training part's categories, in the
            order of their ids, as gluoncv does.

    Returns:
        Parts of type `AnnotatedImages`.

    Raises:
        DataError: As for `voc_boxes`; each mistake has the file and the field, like `annotations[12].bbox`.
    """
    root, mistakes = Path(root).expanduser(), Mistakes("coco_boxes")
    parts: Dict[str, List[Annotated]] = {part: [] for part in FOLDERS}
    for part, name in zip(FOLDERS, (train, valid, test)):
        if name is not None:
            path = root / "annotations" / f"{name}.json"
            content, categories = coco_content(path, mistakes)
            classes = categories if classes is None else classes
            parts[part] = _coco_images(path, content, coco_folder(root, name, images), mistakes)
    return box_splits(root, parts, classes, mistakes)


def coco_folder(root: Path, name: str, images: Optional[str]) -> Path:
    word = name.rpartition("_")[2]
    if images is not None:
        return root / images.format(word)
    found = [root / word, root / "images" / word, root / "images", root]
    return next(one for one in found if one.is_dir() or one == root)


def coco_content(path: Path, mistakes: Mistakes) -> Tuple[Dict[str, List[Dict[str, Any]]], List[str]]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"{mistakes.what}: {path}: it cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{mistakes.what}: {path}: it is no JSON: {error}") from error
    lists = {}
    for key in ("images", "annotations", "categories"):
        value = content.get(key) if isinstance(content, dict) else None
        if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
            raise DataError(f"{mistakes.what}: {path}: {key}: expected a list of objects, as in COCO")
        lists[key] = value
    names = {}
    for number, one in enumerate(lists["categories"]):
        if type(one.get("id")) is not int or not isinstance(one.get("name"), str) or one["id"] in names:
            mistakes.add(f"{path}, categories[{number}]", "expected a name, and an id that no other category has")
        else:
            names[one["id"]] = one["name"]
    return lists, [names[key] for key in sorted(names)]


def coco_ids(root: Path, names: Iterable[Optional[str]], images: Optional[str]) -> Tuple[Dict[Path, int], List[Any]]:
    """Ids of images by path, and the categories, of those JSON files in `annotations/` that are there.

    Raises:
        DataError: A file is damaged.
    """
    ids: Dict[Path, int] = {}
    categories: List[Any] = []
    for name in filter(None, names):
        path = root / "annotations" / f"{name}.json"
        if path.is_file():
            content, _ = coco_content(path, Mistakes("coco_boxes"))
            folder, categories = coco_folder(root, name, images), content["categories"]
            ids.update({(folder / str(one.get("file_name"))).resolve(): one["id"] for one in content["images"]})
    return ids, categories


def _coco_images(path: Path, content: Mapping[str, Any], folder: Path, mistakes: Mistakes) -> List[Annotated]:
    images: Dict[Any, Annotated] = {}
    small = []
    names = {one.get("id"): one.get("name") for one in content["categories"]}
    for number, one in enumerate(content["images"]):
        where, key = f"{path}, images[{number}]", one.get("id")
        if type(key) not in (int, str) or key in images:
            mistakes.add(where, f"id: expected one that no other image has; received {key!r:.40}")
        elif not isinstance(one.get("file_name"), str) or not one["file_name"]:
            mistakes.add(where, f"file_name: expected a path; received {one.get('file_name')!r:.40}")
        else:
            images[key] = Annotated(folder / one["file_name"], [])
    for number, one in enumerate(content["annotations"]):
        where = f"{path}, annotations[{number}]"
        sides, crowd = one.get("bbox"), one.get("iscrowd", 0)
        if one.get("ignore", 0) == 1:
            continue
        if one.get("image_id") not in images:
            mistakes.add(where, f"image_id: there is no image {one.get('image_id')!r:.40}")
        elif one.get("category_id") not in names:
            mistakes.add(where, f"category_id: there is no category {one.get('category_id')!r:.40}")
        elif crowd not in (0, 1):
            mistakes.add(where, f"iscrowd: expected 0 or 1; received {crowd!r:.40}")
        elif not isinstance(sides, list) or len(sides) != 4 or not all(map(is_finite_number, sides)):
            mistakes.add(where, f"bbox: expected [x, y, width, height]; received {sides!r:.60}")
        elif sides[2] < 0 or sides[3] < 0:
            mistakes.add(where, f"bbox: width and height must be above 0; received {sides!r:.60}")
        elif sides[2] <= 1 or sides[3] <= 1:
            small.append(where)  # COCO's own files have such, and gluoncv leaves them out
        else:
            x, y, width, height = map(float, sides)
            box = (x, y, x + width - 1, y + height - 1)
            own = images[one["image_id"]].boxes
            own.append(Box(box, names[one["category_id"]], bool(crowd), f"{where}.bbox {sides}"))
    if small:
        text = f"{len(small)} boxes of at most one pixel are left out, as gluoncv does, like {small[0]}"
        warnings.warn(f"coco_boxes: {text}", TrapWarning, stacklevel=3)
    return list(images.values())


def yolo_boxes(root: PathLike, *, share: float = 0.1, seed: int = 0) -> Splits:
    """Read boxes in YOLO's layout: beside each image folder `images` a folder `labels` with a `.txt` for each image.

    A line is `class x y width height`: the class number, and the box's centre and size as shares of the image. An image
    without a file, or with an empty one, has no object; a warning counts images without a file.

    Args:
        root: The folder, with `data.yaml` of ultralytics, which names the parts and the classes, or with the folders
            `images/train`, `images/val` and `images/test`, or `train/images` and so on; or with `images` alone, which a
            hash of each image's name divides. Class names stand in `data.yaml` (`names`), `classes.txt` or
            `obj.names`; without all three they are the numbers.
        share: In a folder without parts, the share of images for validation, and the same for testing.
        seed: Seed of that division.

    Returns:
        Parts of type `AnnotatedImages`.

    Raises:
        DataError: As for `voc_boxes`.

    Warns:
        TrapWarning: Images have no file of boxes.
    """
    root, mistakes = Path(root).expanduser(), Mistakes("yolo_boxes")
    if not root.is_dir():
        raise DataError(f"yolo_boxes: there is no folder {root}")
    described = _yolo_description(root)
    names = described.get("names") or _lines_of(root, ("classes.txt", "obj.names"))
    if isinstance(names, dict):
        names = [names[key] for key in sorted(names)]
    paths = _yolo_parts(root, described, share, seed)
    lacking: List[Path] = []
    parts = {part: [_yolo_image(path, names, mistakes, lacking) for path in found] for part, found in paths.items()}
    if lacking:
        warnings.warn(
            f"yolo_boxes: {len(lacking)} images have no file of boxes and count as images without an object, like "
            f"{lacking[0]}, whose file would be {_yolo_label(lacking[0])}",
            TrapWarning,
            stacklevel=2,
        )
    if names is None:
        names = _numbers(parts)
        parts = _named(parts, names)
    return box_splits(root, parts, [str(name) for name in names], mistakes)


def _numbers(parts: Mapping[str, Sequence[Annotated]]) -> List[str]:
    """Class numbers as names, up to the largest one."""
    most = max((box.name for images in parts.values() for image in images for box in image.boxes), default=-1)
    return [str(number) for number in range(most + 1)]


def _named(parts: Mapping[str, Sequence[Annotated]], names: Sequence[str]) -> Dict[str, List[Annotated]]:
    """Class numbers become names."""
    return {
        part: [image._replace(boxes=[box._replace(name=names[box.name]) for box in image.boxes]) for image in images]
        for part, images in parts.items()
    }


def _yolo_description(root: Path) -> Dict[str, Any]:
    import yaml

    found = sorted([*root.glob("*.yaml"), *root.glob("*.yml")])
    if not found:
        return {}
    try:
        content = yaml.safe_load(found[0].read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise DataError(f"yolo_boxes: {found[0]}: it is no YAML: {error}") from error
    names = content.get("names") if isinstance(content, dict) else None
    numbered = isinstance(names, dict) and sorted(names) == list(range(len(names)))
    if not isinstance(content, dict) or not (numbered or isinstance(names, list)) or not names:
        raise DataError(f"yolo_boxes: {found[0]}: names: expected a list of class names, or {{0: name, 1: name}}")
    return content


def _lines_of(root: Path, names: Iterable[str]) -> Optional[List[str]]:
    path = next((root / name for name in names if (root / name).is_file()), None)
    return None if path is None else [line.strip() for line in path.read_text("utf-8").splitlines() if line.strip()]


def _yolo_parts(root: Path, described: Mapping[str, Any], share: float, seed: int) -> Dict[str, List[Path]]:
    base = root / str(described.get("path") or ".")
    base = base if base.is_dir() else root
    folders: Dict[str, List[Path]] = {}
    for part, words in FOLDERS.items():
        named = [described[word] for word in words if described.get(word)]
        given = named[0] if named and isinstance(named[0], list) else named[:1]
        # Roboflow writes ../train/images for a folder beside data.yaml
        named = [one if (base / one).exists() else one.replace("../", "", 1) for one in map(str, given)]
        usual = (place for word in words for place in (base / "images" / word, base / word / "images"))
        places = [base / one for one in named] or [place for place in usual if place.is_dir()]
        missing = [place for place in places if not place.exists()]
        if missing:
            raise DataError(f"yolo_boxes: {part}: there is no {missing[0]}")
        folders[part] = places
    if folders["train"]:
        return {part: [path for place in places for path in _listed(place)] for part, places in folders.items()}
    images = base / "images" if (base / "images").is_dir() else base
    return divided([Path(name) for name in find_images([images])], share, share, seed, images)


def _listed(place: Path) -> List[Path]:
    """Images of a folder, or those that a `.txt` file lists."""
    if place.is_file():
        lines = [line.strip() for line in place.read_text("utf-8").splitlines() if line.strip()]
        return [path if path.is_absolute() else place.parent / path for path in map(Path, lines)]
    return [Path(name) for name in find_images([place])]


def _yolo_label(image: Path) -> Path:
    """`a/images/b.jpg` has `a/labels/b.txt`, as in ultralytics: the last `images` of the path changes."""
    parts = list(image.parts)
    places = [number for number, part in enumerate(parts[:-1]) if part == "images"]
    if places:
        parts[places[-1]] = "labels"
    return Path(*parts).with_suffix(".txt")


def _yolo_image(image: Path, names: Optional[Sequence[str]], mistakes: Mistakes, lacking: List[Path]) -> Annotated:
    path, boxes = _yolo_label(image), []
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except FileNotFoundError:
        lacking.append(image)
        return Annotated(image, [])
    except (OSError, UnicodeDecodeError) as error:
        mistakes.add(str(path), f"it cannot be read: {error}")
        return Annotated(image, [])
    for number, line in enumerate(lines, 1):
        words, where = line.split(), f"{path}, line {number}"
        if not words:
            continue
        if len(words) != 5:
            what = "a polygon; only boxes are read" if len(words) > 6 else repr(line[:60])
            mistakes.add(where, f"expected class x y width height; received {what}")
            continue
        if not words[0].isdigit() or (names is not None and int(words[0]) >= len(names)):
            most = f" from 0 to {len(names) - 1}" if names is not None else ""
            mistakes.add(where, f"class: expected a whole number{most}; received {words[0]!r:.40}")
            continue
        values = [mistakes.number(word, where, field) for field, word in zip(("x", "y", "width", "height"), words[1:])]
        if None not in values:
            x, y, width, height = values
            sides = (x - width / 2, y - height / 2, x + width / 2, y + height / 2)  # type: ignore[operator]
            name = names[int(words[0])] if names is not None else int(words[0])
            boxes.append(Box(sides, name, False, where))
    return Annotated(image, boxes, shares=True)


_CSV_COLUMNS = {
    "image": ("image", "filename", "file", "path", "image_path", "image_id"),
    "class": ("class", "label", "name", "category"),
    "left": ("xmin", "left", "x1"),
    "top": ("ymin", "top", "y1"),
    "right": ("xmax", "right", "x2"),
    "bottom": ("ymax", "bottom", "y2"),
    "difficult": ("difficult",),
}


def boxes_csv(
    path: PathLike,
    images: Optional[PathLike] = None,
    *,
    classes: Optional[Sequence[str]] = None,
    valid: float = 0.1,
    test: float = 0.1,
    seed: int = 0,
) -> Splits:
    """Read boxes from a CSV file with a header and a row for each box.

    Args:
        path: The file. Columns: `image`, `xmin`, `ymin`, `xmax`, `ymax` in pixels and `class`, or names that other
            tools write, like `filename` and `label`; `difficult` (0 or 1) may be there, others are ignored. A row with
            empty sides and an empty class names an image without an object.
        images: Folder of the images; None is the folder of the file.
        classes: Names of the classes, in the order of their numbers. None takes the names of the training part, sorted.
        valid: Share of images for validation; a hash of the image's name decides.
        test: Share of images for testing.
        seed: Seed of that division.

    Returns:
        Parts of type `AnnotatedImages`.

    Raises:
        DataError: As for `voc_boxes`.
    """
    path, mistakes = Path(path).expanduser(), Mistakes("boxes_csv")
    folder = path.parent if images is None else Path(images).expanduser()
    found: Dict[str, List[Box]] = {}
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            for number, row in _csv_rows(path, file, mistakes):
                _add_csv_box(f"{path}, line {number}", row, found, mistakes)
    except (OSError, UnicodeDecodeError, csv_files.Error) as error:
        raise DataError(f"boxes_csv: {path}: it cannot be read: {error}") from error
    names = divided(sorted(found), valid, test, seed)
    parts = {part: [Annotated(folder / name, found[name]) for name in own] for part, own in names.items()}
    return box_splits(path, parts, classes, mistakes)


def _csv_rows(path: Path, file: Any, mistakes: Mistakes) -> Iterator[Tuple[int, Dict[str, str]]]:
    reader = csv_files.reader(file)
    header = [name.strip().lower() for name in next(reader, [])]
    places = {
        field: next((header.index(name) for name in names if name in header), None)
        for field, names in _CSV_COLUMNS.items()
    }
    lacking = [_CSV_COLUMNS[field][0] for field, place in places.items() if place is None and field != "difficult"]
    if lacking:
        raise DataError(f"boxes_csv: {path}, line 1: expected columns {', '.join(lacking)}; received {header}")
    for row in reader:
        if len(row) != len(header):
            if row:
                mistakes.add(f"{path}, line {reader.line_num}", f"{len(row)} fields; the header has {len(header)}")
            continue
        yield reader.line_num, {field: row[place].strip() for field, place in places.items() if place is not None}


def _add_csv_box(where: str, row: Mapping[str, str], found: Dict[str, List[Box]], mistakes: Mistakes) -> None:
    if not row["image"]:
        mistakes.add(where, "image: it is empty")
        return
    boxes = found.setdefault(row["image"], [])
    if not any(row[field] for field in (*SIDES, "class")):
        return
    sides = [mistakes.number(row[field], where, field) for field in SIDES]
    difficult = row.get("difficult", "0") or "0"
    if not row["class"]:
        mistakes.add(where, "class: it is empty")
    elif difficult not in ("0", "1"):
        mistakes.add(where, f"difficult: expected 0 or 1; received {difficult!r:.40}")
    elif None not in sides:
        boxes.append(Box(tuple(sides), row["class"], difficult == "1", where))  # type: ignore[arg-type]


def box_records(
    train: PathLike,
    valid: Optional[PathLike] = None,
    test: Optional[PathLike] = None,
    *,
    classes: Optional[Sequence[str]] = None,
) -> Splits:
    """Read boxes from `.rec` files that `im2rec --pack-label` wrote for `ImageDetIter`.

    A record's label is the length of its header, the numbers of an object, the rest of the header, then for each object
    its class, left, top, right and bottom as shares of the image, and perhaps 1 if it is difficult.

    Args:
        train: The `.rec` file of the training part.
        valid: That of the validation part, or None.
        test: That of the test part, or None.
        classes: Names of the classes; None takes the numbers.

    Returns:
        Parts of type `AnnotatedImages`.

    Raises:
        DataError: As for `voc_boxes`; each mistake has the record's number.
    """
    mistakes, records = Mistakes("box_records"), {}
    parts: Dict[str, List[Annotated]] = {part: [] for part in FOLDERS}
    for part, path in zip(FOLDERS, (train, valid, test)):
        if path is not None:
            records[part] = ImageRecords(path, classes=())
            labels = enumerate(records[part].each_label())
            parts[part] = [_record_image(f"{path}, record {number}", label, mistakes) for number, label in labels]
    numbers = _numbers(parts)
    names = numbers if classes is None else list(classes)
    if len(numbers) > len(names):
        mistakes.add(str(train), f"class {numbers[-1]}: there are {len(names)} classes")
        mistakes.check()
    return box_splits(Path(train), _named(parts, names), names, mistakes, records)


def _record_image(where: str, label: "np.ndarray", mistakes: Mistakes) -> Annotated:
    head, width = (int(number) if math.isfinite(number) else -1 for number in (*label[:2], -1, -1)[:2])
    if len(label) < 2 or head < 2 or width < 5 or head > len(label) or (len(label) - head) % width:
        mistakes.add(
            where,
            f"label: expected a header of 2 or more numbers, then 5 or more for each object; received {len(label)} "
            f"numbers, {np.array2string(label[:8], precision=3)}. im2rec needs --pack-label",
        )
        return Annotated(None, [], shares=True)
    boxes = []
    for number, row in enumerate(label[head:].reshape(-1, width)):
        place = f"{where}, object {number}"
        if not np.isfinite(row[:5]).all() or row[0] != int(row[0]) or row[0] < 0:
            mistakes.add(place, f"expected a class number and four sides; received {row.tolist()}")
        else:
            sides = tuple(float(side) for side in row[1:5])
            boxes.append(Box(sides, int(row[0]), width > 5 and row[5] == 1, place))  # type: ignore[arg-type]
    return Annotated(None, boxes, shares=True)

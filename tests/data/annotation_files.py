"""Writes small images with boxes, masks and points in the formats that annotation tools write."""

import json
from pathlib import Path
from typing import Any, List, Sequence, Tuple

from mxnet import recordio
import numpy as np
from PIL import Image

NAMES = ["cat", "dog", "hen"]
Sample = Tuple[np.ndarray, np.ndarray]


def drawn(count: int, seed: int = 0) -> List[Sample]:
    """Images of different sizes and their boxes (M, 6) in whole pixels; some have none."""
    samples = []
    for number in range(count):
        rng = np.random.default_rng([seed, number])
        width, height = (int(side) for side in rng.integers(40, 70, 2))
        rows = []
        for place in range(number % 4):
            left, top = rng.integers(1, 15, 2)
            right, bottom = left + rng.integers(4, 20), top + rng.integers(4, 20)
            rows.append([left, top, right, bottom, (number + place) % 3, rng.integers(2)])
        image = rng.integers(0, 256, (height, width, 3)).astype(np.uint8)
        samples.append((image, np.array(rows, np.float32).reshape(-1, 6)))
    return samples


def _save(path: Path, image: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image).save(path)


def write_voc(root: Path, samples: Sequence[Sample], valid: int) -> Path:
    """Pascal VOC: one XML file an image; the last `valid` images are the list `test`."""
    folder = root / "VOC2007"
    for number, (image, boxes) in enumerate(samples):
        _save(folder / f"JPEGImages/{number:03}.jpg", image)
        height, width = image.shape[:2]
        text = f"<annotation>\n<size><width>{width}</width><height>{height}</height><depth>3</depth></size>\n"
        for left, top, right, bottom, kind, difficult in boxes.astype(int):
            sides = zip(("xmin", "ymin", "xmax", "ymax"), (left + 1, top + 1, right + 1, bottom + 1))
            box = "".join(f"<{key}>{value}</{key}>" for key, value in sides)
            text += (
                f"<object>\n<name>{NAMES[kind]}</name>\n<difficult>{difficult}</difficult>\n<bndbox>{box}</bndbox>\n"
            )
            text += "<part><name>head</name><bndbox><xmin>1</xmin></bndbox></part>\n</object>\n"
        path = folder / f"Annotations/{number:03}.xml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text + "</annotation>\n", "utf-8")
    lists = folder / "ImageSets" / "Main"
    lists.mkdir(parents=True)
    stems = [f"{number:03}" for number in range(len(samples))]
    lists.joinpath("trainval.txt").write_text("\n".join(stems[:-valid]), "utf-8")
    lists.joinpath("test.txt").write_text("\n".join(stems[-valid:]) + "\n", "utf-8")
    return folder


def write_coco(root: Path, samples: Sequence[Sample], points: int = 0) -> Path:
    """COCO: one JSON file of all images; with `points` also `keypoints` inside each box."""
    content: Any = {"images": [], "annotations": [], "categories": []}
    for number, name in enumerate(NAMES):
        content["categories"].append({"id": number + 5, "name": name})
    if points:
        names = [f"{side}_{number}" for number in range(points // 2) for side in ("left", "right")]
        content["categories"] = [{"id": 5, "name": "person", "keypoints": names}]
    for number, (image, boxes) in enumerate(samples):
        _save(root / f"train2017/{number}.png", image)
        size = {"height": image.shape[0], "width": image.shape[1]}
        content["images"].append(
            {"id": number + 100, "file_name": f"{number}.png", "coco_url": f"train2017/{number}.png", **size}
        )
        for row in boxes:
            left, top, right, bottom, kind, crowd = (float(value) for value in row)
            own = {"id": len(content["annotations"]) + 1, "image_id": number + 100, "iscrowd": int(crowd)}
            own.update(category_id=5 if points else int(kind) + 5, bbox=[left, top, right - left, bottom - top])
            own["area"] = own["bbox"][2] * own["bbox"][3]
            if points:
                places = [(left + place, top + 1, 2) for place in range(points)]
                own.update(keypoints=[value for place in places for value in place], num_keypoints=points, iscrowd=0)
            content["annotations"].append(own)
    name = "person_keypoints_train2017" if points else "instances_train2017"
    path = root / "annotations" / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), "utf-8")
    return path


def write_yolo(root: Path, samples: Sequence[Sample], valid: int) -> Path:
    """YOLO: one text file an image, and `data.yaml`; images without a box have an empty file."""
    for number, (image, boxes) in enumerate(samples):
        part = "train" if number < len(samples) - valid else "val"
        _save(root / f"images/{part}/{number}.png", image)
        height, width = image.shape[:2]
        lines = []
        for left, top, right, bottom, kind, _ in boxes.tolist():
            shares = ((left + right) / 2 / width, (top + bottom) / 2 / height)
            lines.append(
                f"{kind:.0f} {shares[0]!r} {shares[1]!r} {(right - left) / width!r} {(bottom - top) / height!r}"
            )
        path = root / f"labels/{part}/{number}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines), "utf-8")
    (root / "data.yaml").write_text("path: .\ntrain: images/train\nval: images/val\nnames: [cat, dog, hen]\n", "utf-8")
    return root


def write_csv(root: Path, samples: Sequence[Sample]) -> Path:
    """A table with a row for each box; an image without one has a row of empty cells."""
    lines = ["filename,xmin,ymin,xmax,ymax,class,difficult"]
    for number, (image, boxes) in enumerate(samples):
        _save(root / f"{number}.png", image)
        for row in boxes.tolist():
            lines.append(f"{number}.png,{row[0]},{row[1]},{row[2]},{row[3]},{NAMES[int(row[4])]},{row[5]:.0f}")
        if not len(boxes):
            lines.append(f"{number}.png,,,,,,")
    path = root / "boxes.csv"
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return path


def write_records(root: Path, samples: Sequence[Sample]) -> Path:
    """A `.rec` file as `im2rec --pack-label` writes it."""
    root.mkdir(parents=True, exist_ok=True)
    path = root / "boxes.rec"
    writer = recordio.MXIndexedRecordIO(str(path.with_suffix(".idx")), str(path), "w")
    for number, (image, boxes) in enumerate(samples):
        height, width = image.shape[:2]
        label = [2.0, 6.0]
        for left, top, right, bottom, kind, difficult in boxes.tolist():
            label += [kind, left / width, top / height, right / width, bottom / height, difficult]
        header = recordio.IRHeader(0, label, number, 0)
        writer.write_idx(number, recordio.pack_img(header, image[:, :, ::-1], quality=3, img_fmt=".png"))
    writer.close()
    return path

"""What a run's net takes: `net.json` in its folder, and image files in the form of its inputs."""

from io import BytesIO
import json
from pathlib import Path
import sys
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple, Union
import warnings

from mxkit.core.system import write_json
from mxkit.data.image_bytes import decode, is_turned
from mxkit.data.source import source_of
from mxkit.data.splits import Split, Splits
from mxkit.errors import DataError, RecipeError, TrapWarning
from mxkit.nets.layer_table import LayerTable, layers
from mxkit.recipe.building import SPLITS, execute, first_inputs, is_pretrained, model_calls, value_calls
from mxkit.recipe.run_code import RunCode, keep_code
from mxkit.recipe.schema import InitializerComponent, ModelComponent, Recipe, augment_of, under_switches
from mxkit.version import __version__
import mxnet as mx
import numpy as np
from pydantic import TypeAdapter


class ImageForm(NamedTuple):
    """The images that a net was trained on.

    Attributes:
        channels: 1 for grey, 3 for RGB.
        size: Height and width of images in arrays; None for files, because `data.eval_augment` resizes them.
        border: Mean brightness of the training images' borders, from 0 to 1; None for files.
    """

    channels: int
    size: Optional[Tuple[int, int]] = None
    border: Optional[float] = None


def image_form(data: Splits) -> Optional[ImageForm]:
    """How image files become inputs of a net that is trained on `data`; None if the data has no images."""
    if not isinstance(data.train, Split):
        channels = getattr(data.train, "channels", 0)
        return ImageForm(int(channels)) if channels in (1, 3) else None
    x = data.train.x
    if getattr(x, "ndim", 0) != 4 or x.shape[1] not in (1, 3):
        return None
    channels, height, width = map(int, x.shape[1:])
    few = np.asarray(x[:256])
    return ImageForm(channels, (height, width), float(_border(few).mean() / (255 if few.dtype == np.uint8 else 1)))


def image_reader(
    recipe: Recipe, form: Optional[ImageForm], *, invert: bool = False, placed: bool = False
) -> Callable[[Any], Any]:
    """Return the function that prepares one image like the evaluated images of a run; threads may share it.

    Args:
        recipe: Recipe of the run.
        form: Form of the training images; None if the net was not trained on images.
        invert: Swap dark and bright.
        placed: Return `(image, Placed)`, which says where the file lies in the image.

    Returns:
        A function of an image file, its content, its pixels (uint8 of shape (height, width, C)), or an image of
        Pillow. It returns
        float32 of shape (C, H, W), after `data.eval_augment`, and raises a DataError for a file that is no image.

    Raises:
        DataError: The net was not trained on images.
    """
    augment: Any = augment_of(recipe.data.eval_augment)
    if form is None or (form.size is None and augment is None):
        raise DataError(
            f"images need a net trained on images; data {recipe.data.name!r} has none, or no eval_augment. Ask a net "
            "of other inputs from Python, with x as a batch of training has it:\n"
            "  import mxkit\n"
            '  recipe, net = mxkit.recipe.load_run("RUN")\n'
            "  print(mxkit.predict(net, x))"
        )
    known = form

    def read(image: Any) -> "np.ndarray":
        where = str(image) if isinstance(image, (str, Path)) else "the image"
        picture = (_decoded if isinstance(image, (str, Path, bytes)) else _pixels)(image, where, known.channels)
        if known.size is None:
            shown = 255 - picture if invert else picture
            return augment.with_place(shown) if placed else np.asarray(augment(shown))
        fitted = _fitted(where, picture, known, invert)
        return fitted if augment is None else np.asarray(augment.batch(fitted[None])[0][0])

    return read


def is_pillow(image: Any) -> bool:
    """Whether it is an image of Pillow, which is imported if there is one."""
    pillow = sys.modules.get("PIL.Image")
    return pillow is not None and isinstance(image, pillow.Image)


def _pixels(image: Any, where: str, channels: int) -> "np.ndarray":
    """Pixels, from an image of Pillow, too; they have all `channels`."""
    if is_pillow(image):
        mode = "RGB" if channels == 3 else "L"
        if image.mode not in ("RGB", "L"):
            raise DataError(f"{where} of Pillow has the mode {image.mode}: convert it: image.convert({mode!r})")
        image = np.asarray(image.convert(mode)).reshape(*reversed(image.size), channels)
    if image.shape[2:] != (channels,):
        raise DataError(f"{where}: expected pixels of shape (height, width, {channels}), received {image.shape}")
    return image  # type: ignore[no-any-return]


def _decoded(image: Union[str, Path, bytes], where: str, channels: int) -> "np.ndarray":
    try:
        content = image if isinstance(image, bytes) else Path(image).read_bytes()
    except OSError as error:
        raise DataError(f"{where} cannot be read as an image: {error}") from error
    picture = decode(content, where, channels)
    if b"Exif\0\0" in content[:4096]:
        from PIL import Image

        if is_turned(Image.open(BytesIO(content))):
            warnings.warn(
                "images that are turned by their EXIF orientation are read as stored, as in training: store them "
                "upright with ImageOps.exif_transpose of Pillow",
                TrapWarning,
                stacklevel=3,
            )
    if content[:4] == b"\x89PNG" and content[25] in (4, 6) and (picture == picture[0, 0]).all():
        from PIL import Image

        if len(set(Image.open(BytesIO(content)).getchannel("A").getextrema())) > 1:
            raise DataError(
                f"{where}: all pixels have one colour, and the picture is in their transparency (alpha), which is not "
                "read (T243). Paint it on a background before, as a canvas does with fillRect"
            )
    return picture


def _fitted(where: str, picture: "np.ndarray", form: ImageForm, invert: bool) -> "np.ndarray":
    """A picture in the form of training images that were arrays: float32 (C, H, W) of their size, divided by 255.

    Warns:
        UserWarning: Its border is bright and that of the training images dark, or the reverse.
    """
    from PIL import Image  # it averages all pixels when it shrinks an image; OpenCV's bilinear resize skips most

    (height, width), usual = form.size or (0, 0), form.border or 0.0
    whole = Image.fromarray(picture if form.channels == 3 else picture[:, :, 0])
    resized = np.asarray(whole.resize((width, height), Image.Resampling.BILINEAR), dtype=np.float32)
    pixels = resized.reshape(height, width, form.channels).transpose(2, 0, 1) / 255
    pixels = 1 - pixels if invert else pixels
    if abs(_border(pixels[None]).mean() - usual) > 0.5:
        warnings.warn(
            f"{where}: its border is {'bright' if usual < 0.5 else 'dark'}, that of the training images "
            f"{'dark' if usual < 0.5 else 'bright'}; --invert swaps them",
            stacklevel=3,
        )
    return pixels


def _border(images: "np.ndarray") -> "np.ndarray":
    edges = [images[:, :, 0], images[:, :, -1], images[:, :, :, 0], images[:, :, :, -1]]
    return np.concatenate([edge.reshape(len(images), -1) for edge in edges], axis=1)


FACTS = "net.json"
FORMAT = 1


class InputForm(NamedTuple):
    """Shape of one input of the net for one sample, (1, ...), and its dtype."""

    shape: Tuple[int, ...]
    dtype: str


class NetFacts(NamedTuple):
    """Facts about a run's net.

    Attributes:
        inputs: Shapes and dtypes for one sample; empty if the data can be read only once.
        classes: Name of each class; empty if the data has no names.
        images: How image files become inputs; None for a net that was not trained on images.
        code: The recipe's own modules.
        digests: What `Source.digest` says of each part of the data; None for a part that is not held in arrays.
    """

    inputs: List[InputForm]
    classes: List[str]
    images: Optional[ImageForm]
    code: RunCode
    digests: Dict[str, Optional[str]]

    def sample(self) -> Tuple[Any, ...]:
        """Inputs of zeros for one sample.

        Raises:
            RecipeError: The shapes are unknown.
        """
        return tuple(mx.nd.zeros(one.shape, dtype=one.dtype) for one in self.known_inputs())

    def known_inputs(self) -> List[InputForm]:
        """`inputs`, which must not be empty.

        Raises:
            RecipeError: The shapes are unknown.
        """
        if not self.inputs:
            raise RecipeError(
                "the shapes of the net's inputs are not known: the run's data could be read only once. Give the recipe "
                "a dataset or a loader that can be read several times"
            )
        return self.inputs


@under_switches
def facts_of(recipe: Recipe, data: Splits, code: Optional[RunCode] = None) -> NetFacts:
    """Read the facts about a recipe's net from its data.

    Args:
        recipe: A recipe.
        data: Data of the recipe.
        code: The recipe's own modules, or None.
    """
    inputs = () if source_of(getattr(data, recipe.evaluate.split)).is_one_shot else first_inputs(recipe, data)
    forms = [InputForm(tuple(map(int, one.shape)), np.dtype(one.dtype).name) for one in inputs]
    digests = {part: source_of(getattr(data, part)).digest for part in SPLITS}
    return NetFacts(forms, list(map(str, data.classes or [])), image_form(data), code or RunCode({}, {}), digests)


def record_facts(folder: Path, recipe: Recipe, data: Splits) -> None:
    """Write `net.json`, and copy the recipe's own modules.

    Args:
        folder: Folder of the run.
        recipe: A recipe with loaded `imports`.
        data: Data of the recipe.
    """
    facts = facts_of(recipe, data, keep_code(folder, recipe.imports))
    write_json(folder / FACTS, {"format": FORMAT, "mxkit": __version__, **facts._asdict()})


def read_facts(folder: Union[str, Path]) -> NetFacts:
    """Read `net.json` of a run.

    Raises:
        RecipeError: The file is missing or damaged, or a newer mxkit wrote it.
    """
    file = Path(folder) / FACTS
    if not file.is_file():
        raise RecipeError(f"{file} is missing: the run had not begun to train, or the file was not copied with it")
    try:
        content: Dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        if content["format"] != FORMAT:
            raise ValueError(
                f"format {content['format']!r}; this mxkit {__version__} reads {FORMAT}. Use a newer mxkit"
            )
        return TypeAdapter(NetFacts).validate_python({key: content[key] for key in NetFacts._fields})
    except (ValueError, TypeError, KeyError, AttributeError, OSError) as error:
        raise RecipeError(f"{file} cannot be read: {type(error).__name__}: {error}") from error


def warn_of_other_data(folder: Union[str, Path], data: Splits, part: str) -> None:
    """Warn if a part of the data, held in arrays, is not what it was when the run was trained.

    Raises:
        RecipeError: As for `read_facts`.
    """
    before, now = read_facts(folder).digests.get(part), source_of(getattr(data, part)).digest
    if before is not None and now is not None and before != now:
        warnings.warn(
            f"{part} holds other samples than when {folder} was trained: a file of its data was changed, or a relative "
            "path of the recipe leads to another file from this folder",
            stacklevel=2,
        )


@under_switches
def empty_net(recipe: Recipe, sample: Optional[Tuple[Any, ...]]) -> Any:
    """The net of a recipe with zeros as values, for a checkpoint to be loaded; no file is read or downloaded.

    Args:
        recipe: A recipe.
        sample: Inputs of one sample, from which `finetune` infers all shapes; otherwise None.

    Raises:
        RecipeError: The net refuses an argument.
    """
    model = recipe.model.model_copy(update={"weights": None})
    if is_pretrained(recipe.model):
        model = ModelComponent.model_validate({**model.model_dump(), "pretrained": False})
    recipe = recipe.model_copy(update={"model": model, "initializer": InitializerComponent.model_validate("zeros")})
    calls = [*model_calls(recipe), *(value_calls(recipe) if model.finetune is not None else [])]
    return execute(calls, {"sample": sample}, recipe.name)["net"]


@under_switches  # a net without values has no kind
def layer_table(recipe: Recipe, facts: NetFacts, depth: Optional[int] = None) -> LayerTable:
    """The table of layers of a recipe's net.

    Raises:
        RecipeError: As for `NetFacts.sample` and `empty_net`.
    """
    return layers(empty_net(recipe, facts.sample()), *[one.shape for one in facts.known_inputs()], depth=depth)

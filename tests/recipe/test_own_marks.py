"""The recipes `finetune_boxes` and `finetune_masks` on folders of one's own, from files of weights."""

from built_nets import ready
import mxkit
from mxkit.recipe.run import load_run
import mxnet as mx
import numpy as np
from PIL import Image
import pytest
from sharing import long

SIZE = 64
# Net of the recipe, its arguments, and the part that is frozen.
NETS = {
    "finetune_boxes": ("ssd_300_mobilenet0.25_voc", {}, "features.*"),
    "finetune_masks": ("fastscnn_citys", {"crop_size": SIZE}, "learning_to_downsample.*"),
    "yolo3": ("yolo3_mobilenet0.25_voc", {}, "stages.*"),
    "fcn": ("fcn_resnet50_voc", {"crop_size": SIZE}, "layer*"),
}


@pytest.fixture
def folder(tmp_path):
    """12 pictures with a box and a mask each; the classes are `person`, of VOC too, and `kite`."""
    for number in range(12):
        (x, y), side = np.random.RandomState(number).randint(2, 30, 2), 24 + number
        pixels, mask = np.full((80, 80, 3), 30, np.uint8), np.zeros((80, 80), np.uint8)
        pixels[y : y + side, x : x + side], mask[y : y + side, x : x + side] = 200, 1
        for name, array in (("images", pixels), ("masks", mask)):
            (tmp_path / name).mkdir(exist_ok=True)
            Image.fromarray(array).save(tmp_path / name / f"{number}.png")
        (tmp_path / "labels").mkdir(exist_ok=True)
        row = [number % 2, (x + side / 2) / 80, (y + side / 2) / 80, side / 80, side / 80]
        (tmp_path / "labels" / f"{number}.txt").write_text(" ".join(map(str, row)))
    (tmp_path / "classes.txt").write_text("person\nkite\n")
    return tmp_path


@pytest.mark.filterwarnings("ignore:.*Cannot decide type")  # of MXNet, for a symbol in a block
@pytest.mark.parametrize("name", [name if name == "finetune_boxes" else long(name) for name in NETS])
def test_a_folder_of_ones_own_from_a_file_of_weights(name, folder):
    model, arguments, frozen = NETS[name]
    base = ready(mxkit.models.get_model(f"gluoncv:{model}", **arguments), devices="cpu", sample=(1, 3, SIZE, SIZE))
    base.save_parameters(str(folder / "base.params"))
    boxes = name in ("finetune_boxes", "yolo3")
    data = ["name=yolo_boxes", "share=0.2"] if boxes else ["name=mask_folder", "classes=[ground, kite]", "test=0.2"]
    overrides = [f"data.{one}" for one in [*data, f"root={folder}", "batch_size=4"]]
    overrides += [f"model.weights={folder / 'base.params'}", f"model.finetune.freeze={frozen}", "updates=2"]
    overrides += [f"variables.size={SIZE}", f"model.name=gluoncv:{model}"]
    overrides += [f"model.finetune.classes={'[person, kite]' if boxes else 2}", *["loss=yolo3"] * (name == "yolo3")]
    recipe = f"finetune_{'boxes' if boxes else 'masks'}"
    run = mxkit.run_recipe(recipe, overrides=overrides, output=folder / "runs", progress=False)
    _, net, *_ = load_run(run.folder)
    before, after = mxkit.parameters(base), mxkit.parameters(net)
    start = frozen.rstrip("*")
    held = [path for path in after if path.startswith(start)]
    assert held
    assert all((after[path].data() == before[path].data()).asnumpy().all() for path in held)
    assert any(after[path].shape != before[path].shape for path in after)
    assert any((after[path].data() != before[path].data()).asnumpy().any()
               for path in set(after) - set(held) if after[path].shape == before[path].shape)  # fmt: skip
    output = net(mx.nd.zeros((1, 3, SIZE, SIZE)))
    if boxes:
        assert list(net.classes) == ["person", "kite"]
        assert output[0].max().asscalar() <= 1
    else:
        assert output[0].shape == (1, 2, SIZE, SIZE)


def test_wrong_weights_are_named(folder):
    base = ready(mxkit.models.get_model("small_fcn"), devices="cpu", sample=(1, 3, SIZE, SIZE))
    base.save_parameters(str(folder / "other.params"))
    for file, text in (
        ("other.params", r"(?s)model.weights: .*other.params.*in a recipe model.classes and model.finetune.classes"),
        ("none.params", "there is no file"),
    ):
        overrides = ["data.images=10", f"model.weights={folder / file}", "updates=1"]
        with pytest.raises(mxkit.errors.RecipeError, match=text):
            mxkit.run_recipe("finetune_boxes", overrides=overrides, output=folder / "runs", progress=False)

"""What a recipe may say, format 1."""

import re
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator
from typing_extensions import Annotated, Literal, get_args, get_origin

# 3 is no "3", and true is no 1: what pydantic would turn into another type is refused.
Whole = Annotated[int, Field(strict=True)]
Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Yes = Annotated[bool, Field(strict=True)]


def _yes_or_stop(value: Any) -> Any:
    if value is not True and value is not False and value != "stop":
        raise ValueError("expected true, false or stop")
    return value


# Marks a key of a recipe that is a keyword of `fit`.
_OfFit = "of fit"
Name = r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$"
DEVICES = r"^(auto|cpu(:\d+)?|gpu(:\d+(,\d+)*)?)$"


class Section(BaseModel):
    """A part of a recipe; a key that is not listed here is an error."""

    model_config = ConfigDict(extra="forbid")


class Component(BaseModel):
    """Something chosen by name, and the arguments it is built with.

    `loss: l2` is short for `loss: {name: l2}`.

    Attributes:
        name: As the registry of its kind knows it.
    """

    model_config = ConfigDict(extra="allow")

    name: str

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @property
    def arguments(self) -> Dict[str, Any]:
        """All keys that are not this class's own."""
        return dict(self.model_extra or {})

    @property
    def spec(self) -> Tuple[str, Dict[str, Any]]:
        """The component as the public calls take it: a name, and its arguments."""
        return self.name, self.arguments


def exact(value: Any) -> Any:
    """A value that equals a literal only where it is of its type, as true and 1.0 are no 1."""
    return value if type(value) in (int, str) else repr(value)


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, (str, dict)) else value


def _workers(value: Any) -> Any:
    whole = isinstance(value, int) and not isinstance(value, bool)
    if (whole and value == 0) or (isinstance(value, str) and re.fullmatch(r"(thread|process):[1-9]\d*", value)):
        return value
    raise ValueError("expected 0, 'thread:4' or 'process:4'")


Steps = Annotated[Optional[List[Component]], BeforeValidator(_listed)]
Workers = Annotated[
    Union[int, str],
    BeforeValidator(_workers),
    WithJsonSchema({"anyOf": [{"const": 0}, {"type": "string", "pattern": r"^(thread|process):[1-9]\d*$"}]}),
]


class PairSection(Section):
    """Pairs or triplets of samples in place of samples, for siamese nets; as for `mxkit.data.PairLoader`.

    Attributes:
        kind: "pairs" or "triplets".
        same: Share of pairs of one class.
        balanced: Each class gives equally many anchors.
        length: Pairs a training epoch, or null for as many as there are samples.
    """

    kind: Literal["pairs", "triplets"] = "pairs"
    same: Number = Field(0.5, ge=0, le=1)
    balanced: Yes = False
    length: Optional[Whole] = Field(None, ge=1)


class DataComponent(Component):
    """A dataset and how it is cut into batches.

    Attributes:
        batch_size: Samples a training batch.
        eval_batch_size: Samples a batch in evaluation; no result of mxkit's metrics depends on it (T16).
        workers: Who reads image files: 0, "thread:4" or "process:4"; as for `mxkit.data.DatasetLoader`.
        drop_last: Leave out a last training batch that is short.
        augment: Steps for training images, or the name of a preset; as for `mxkit.data.Augment`. Null takes
            `eval_augment`.
        eval_augment: The same for validation, test and prediction.
        pairs: Pairs or triplets in place of samples, or null.
    """

    batch_size: Whole = Field(64, ge=1)
    eval_batch_size: Whole = Field(256, ge=1)
    workers: Workers = 0
    drop_last: Yes = False
    augment: Steps = None
    eval_augment: Steps = None
    pairs: Optional[PairSection] = None


class FinetuneSection(Section):
    """Another last layer for other classes; as for `mxkit.finetune`.

    Attributes:
        classes: Outputs of the new layer.
        freeze: "features" for all but the head, a glob over paths, or null.
        head_multiplier: The new layer learns this many times as fast.
        head: Path of the last layer, or null for the zoos' names.
        initializer: Of the new layer.
    """

    classes: Whole = Field(ge=1)
    freeze: Optional[str] = "features"
    head_multiplier: Number = Field(10.0, ge=0)
    head: Optional[str] = None
    initializer: Component = Component(name="xavier")


class ModelComponent(Component):
    """A net.

    Attributes:
        weights: What the net begins with, as for `mxkit.models.get_model`: a parameter file, a run's folder, a
            checkpoint, or "pretrained", which is what a zoo published; or null.
        finetune: The net gets another last layer then, or null.
    """

    weights: Optional[str] = None
    finetune: Optional[FinetuneSection] = None


class MultiplierSection(Section):
    """What multiplies the learning rate and the weight decay of some parameters; null leaves it.

    Attributes:
        lr: Of the learning rate.
        wd: Of the weight decay.
    """

    lr: Optional[Number] = Field(None, ge=0)
    wd: Optional[Number] = Field(None, ge=0)


class OptimizerComponent(Component):
    """An optimizer, and what it does to some parameters only.

    Attributes:
        multipliers: By globs over paths; as for `mxkit.nets.set_multipliers`.
        no_weight_decay: Biases and norms do not decay; as `mxkit.nets.no_weight_decay`.
    """

    multipliers: Dict[str, MultiplierSection] = Field(default_factory=dict)
    no_weight_decay: Yes = False


class CheckpointSection(Section):
    """When checkpoints are written, and which are kept; as for `mxkit.Checkpoints`.

    Attributes:
        every: "1 epoch", "50 updates" or "5 minutes"; where something draws random numbers, a checkpoint inside an
            epoch waits for its next update that 16 divides.
        keep_last: Newest ones that are kept.
        keep_best: A column of the history and "min" or "max", or null.
        keep_every: "10 epochs" or "1000 updates", or null.
    """

    every: str = "1 epoch"
    keep_last: Whole = Field(3, ge=1)
    keep_best: Optional[Tuple[str, Literal["min", "max"]]] = None
    keep_every: Optional[str] = None


class EvaluateSection(Section):
    """What is reported when training has ended.

    Attributes:
        split: Part of the data.
        which: The net as training left it, "last", or of the checkpoint that `keep_best` keeps, "best".
        metrics: In place of the recipe's, or null.
    """

    split: Literal["train", "valid", "test"] = "test"
    which: Literal["last", "best"] = "last"
    metrics: Optional[List[Component]] = None


class Recipe(Section):
    """A whole run: data, model, training, evaluation.

    Attributes:
        format: Version of this vocabulary.
        name: Begins the name of the run's folder; the file's name by default.
        description: For people.
        imports: Modules whose `@mxkit.register` makes own names known.
        import_path: Where they are looked for before Python's own path; the recipe's folder by default.
        seed: Decides first values, order and dropout.
        devices: As for `mxkit.devices`.
        data: Dataset, with a training, a validation and a test part.
        model: As for `mxkit.models.get_model`.
        initializer: Of MXNet's registry.
        hybridize: Run the net as a graph where it is a HybridBlock.
        freeze: Globs over paths of parameters that are not trained; as for `mxkit.freeze`.
        loss: As for `mxkit.fit`.
        optimizer: Of MXNet's registry.
        schedule: Of the learning rate, as for `mxkit.callbacks.LearningRate` and `mxkit.training.schedule`; or null.
        epochs: Times the training part is read.
        updates: In their place: optimizer updates.
        accumulate: Batches per update.
        accumulate_samples: In its place: samples per update, at least.
        clip_norm: Largest norm of the averaged gradient, or null.
        clip_value: Largest absolute value of its elements, or null.
        amp: "bfloat16" (on CPUs) or "float16", or null.
        limit_batches: Batches that an epoch reads of each part, or null for all.
        validate_every: Epochs between two validations.
        check_finite: Fail where a loss or a weight is NaN or infinite; `stop` ends the run there.
        callbacks: Called in their order, after the schedule's. Files of theirs lie in the run's folder.
        checkpoints: When they are written, and which are kept.
        metrics: Reported for the training, validation and test part.
        evaluate: What is reported when training has ended.
    """

    format: Annotated[Literal[1], BeforeValidator(exact)] = 1
    name: str = Field("recipe", pattern=Name)
    description: str = ""
    imports: List[Annotated[str, Field(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$")]] = []
    import_path: Optional[str] = None
    seed: Annotated[Whole, _OfFit] = 0
    devices: str = Field("auto", pattern=DEVICES)
    data: DataComponent
    model: ModelComponent
    initializer: Component = Component(name="xavier")
    hybridize: Yes = True
    freeze: List[str] = []
    loss: Component
    optimizer: OptimizerComponent
    schedule: Optional[Component] = None
    epochs: Annotated[Optional[Whole], _OfFit] = Field(None, ge=1)
    updates: Annotated[Optional[Whole], _OfFit] = Field(None, ge=1)
    accumulate: Annotated[Whole, _OfFit] = Field(1, ge=1)
    accumulate_samples: Annotated[Optional[Whole], _OfFit] = Field(None, ge=1)
    clip_norm: Annotated[Optional[Number], _OfFit] = Field(None, gt=0)
    clip_value: Annotated[Optional[Number], _OfFit] = Field(None, gt=0)
    amp: Annotated[Optional[Literal["bfloat16", "float16"]], _OfFit] = None
    limit_batches: Annotated[Optional[Whole], _OfFit] = Field(None, ge=1)
    validate_every: Annotated[Whole, _OfFit] = Field(1, ge=1)
    check_finite: Annotated[Union[Yes, Literal["stop"]], BeforeValidator(_yes_or_stop), _OfFit] = True
    callbacks: List[Component] = []
    checkpoints: CheckpointSection = Field(default_factory=lambda: CheckpointSection.model_validate({}))
    metrics: List[Component] = []
    evaluate: EvaluateSection = Field(default_factory=lambda: EvaluateSection.model_validate({}))

    @property
    def scored_metrics(self) -> List[Component]:
        """Those of the final scores."""
        return self.metrics if self.evaluate.metrics is None else self.evaluate.metrics


# In the order in which scripts say them.
FIT_KEYS = tuple(name for name, field in Recipe.model_fields.items() if _OfFit in field.metadata)

# Keys of a file that are worked in before it is checked, and are not part of the resolved recipe.
FILE_KEYS = ("base", "variables")


def fields_at(location: Sequence[Any]) -> List[str]:
    """Keys that the section at a place of a recipe may have; of a component its own ones.

    >>> fields_at(["optimizer", "multipliers", "*.bias"]), fields_at(["metrics", 0])
    (['lr', 'wd'], ['name'])
    """
    found: Any = Recipe
    for key in location:
        if isinstance(found, type) and issubclass(found, BaseModel):
            field = found.model_fields.get(key)
            found = None if field is None else field.annotation
        else:  # a number in a list, or a key that is free
            found = next((one for one in get_args(found) if get_args(one) or _is_section(one)), None)
        found = _without_none(found)
    keys = list(found.model_fields) if _is_section(found) else []
    return keys if location else [*keys, *FILE_KEYS]


def _is_section(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _without_none(annotation: Any) -> Any:
    """What is inside of Annotated and Optional."""
    while get_origin(annotation) in (Annotated, Union):
        annotation = next((one for one in get_args(annotation) if one is not type(None)), None)
    return annotation

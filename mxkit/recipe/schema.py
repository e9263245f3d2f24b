"""The keys of a recipe, format 1."""

from contextlib import contextmanager
from functools import wraps
import re
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple, TypeVar, Union

from mxkit.core.arrays import switches, switches_here
from mxnet.util import set_np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator
from typing_extensions import Annotated, Literal, get_args, get_origin

# Strict: pydantic would otherwise convert "3" to 3 and true to 1.
Whole = Annotated[int, Field(strict=True)]
Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Yes = Annotated[bool, Field(strict=True)]
_Function = TypeVar("_Function", bound=Callable[..., Any])


def _yes_or_stop(value: Any) -> Any:
    if value is not True and value is not False and value != "stop":
        raise ValueError("expected true, false or stop")
    return value


# Marks the keys of a recipe that are keywords of `fit`.
_OfFit = "of fit"
Name = r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$"
DEVICES = r"^(auto|cpu(:\d+)?|gpu(:\d+(,\d+)*)?)$"


class Section(BaseModel):
    """A part of a recipe; an unknown key is an error."""

    model_config = ConfigDict(extra="forbid")


class Component(BaseModel):
    """A name, and the arguments of the function or class with this name.

    `loss: l2` is short for `loss: {name: l2}`.

    Attributes:
        name: Name in the registry of its kind.
    """

    model_config = ConfigDict(extra="allow")

    name: str

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @property
    def arguments(self) -> Dict[str, Any]:
        """All keys that are no field of this class."""
        return dict(self.model_extra or {})

    @property
    def spec(self) -> Tuple[str, Dict[str, Any]]:
        """`(name, arguments)`, which the public calls accept."""
        return self.name, self.arguments


def exact(value: Any) -> Any:
    """Let a literal 1 refuse true and 1.0, which equal it in Python."""
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
    """Pairs or triplets of samples for siamese nets; as for `mxkit.data.PairLoader`.

    Attributes:
        kind: "pairs" or "triplets".
        same: Share of pairs with the same class.
        balanced: Each class has equally many anchors.
        length: Pairs per training epoch, or null for the number of samples.
    """

    kind: Literal["pairs", "triplets"] = "pairs"
    same: Number = Field(0.5, ge=0, le=1)
    balanced: Yes = False
    length: Optional[Whole] = Field(None, ge=1)


class DataComponent(Component):
    """A dataset and its batches.

    Attributes:
        batch_size: Samples per training batch.
        eval_batch_size: Samples per batch in evaluation; no result of mxkit's metrics depends on it (T16).
        workers: Threads or processes that read image files: 0, "thread:4" or "process:4"; as for
            `mxkit.data.DatasetLoader`.
        drop_last: Leave out a last training batch that is smaller than the others.
        augment: Steps for training images, or the name of a preset; as for `mxkit.data.Augment`. Null takes
            `eval_augment`.
        eval_augment: Steps for the images of validation, test and prediction, or the name of a preset.
        pairs: Train on pairs or triplets of samples, or null.
    """

    batch_size: Whole = Field(64, ge=1)
    eval_batch_size: Whole = Field(256, ge=1)
    workers: Workers = 0
    drop_last: Yes = False
    augment: Steps = None
    eval_augment: Steps = None
    pairs: Optional[PairSection] = None


class FinetuneSection(Section):
    """A new last layer for other classes; as for `mxkit.finetune`.

    Attributes:
        classes: Outputs of the new layer.
        freeze: "features" for all but the new layer, a glob over paths, or null.
        head_multiplier: Factor of the new layer's learning rate.
        head: Path of the last layer, or null for the names that the zoos use.
        initializer: Initializer of the new layer.
    """

    classes: Whole = Field(ge=1)
    freeze: Optional[str] = "features"
    head_multiplier: Number = Field(10.0, ge=0)
    head: Optional[str] = None
    initializer: Component = Component(name="xavier")


class ModelComponent(Component):
    """A net.

    Attributes:
        weights: First values of the parameters, as for `mxkit.models.get_model`: a parameter file, a run's folder, a
            checkpoint, `hf://owner/name[@revision][/file.safetensors]` on the Hugging Face hub, or "pretrained" for the
            values that a zoo published; or null.
        finetune: A new last layer for other classes, or null.
    """

    weights: Optional[str] = None
    finetune: Optional[FinetuneSection] = None


class MultiplierSection(Section):
    """Factors of the learning rate and the weight decay of some parameters; null changes nothing.

    Attributes:
        lr: Factor of the learning rate.
        wd: Factor of the weight decay.
    """

    lr: Optional[Number] = Field(None, ge=0)
    wd: Optional[Number] = Field(None, ge=0)


class OptimizerComponent(Component):
    """An optimizer, and its settings for some parameters.

    Attributes:
        multipliers: Factors by globs over paths; as for `mxkit.nets.set_multipliers`.
        no_weight_decay: No weight decay for biases and norms; as `mxkit.nets.no_weight_decay`.
    """

    multipliers: Dict[str, MultiplierSection] = Field(default_factory=dict)
    no_weight_decay: Yes = False


class CheckpointSection(Section):
    """When checkpoints are written, and which are kept; as for `mxkit.Checkpoints`.

    Attributes:
        every: "1 epoch", "50 updates" or "5 minutes". If the training draws random numbers, a checkpoint inside an
            epoch waits for the next update whose number is a multiple of 16.
        keep_last: Number of newest checkpoints to keep.
        keep_best: Column of the history and "min" or "max"; the best checkpoint is kept. Or null.
        keep_every: "10 epochs" or "1000 updates"; these checkpoints are kept. Or null.
    """

    every: str = "1 epoch"
    keep_last: Whole = Field(3, ge=1)
    keep_best: Optional[Tuple[str, Literal["min", "max"]]] = None
    keep_every: Optional[str] = None


class EvaluateSection(Section):
    """The final scores after the training.

    Attributes:
        split: Part of the data: "train", "valid" or "test".
        which: "last" for the net at the end of the training, "best" for the checkpoint that `keep_best` keeps.
        metrics: Metrics of the final scores, or null for those of the recipe.
    """

    split: Literal["train", "valid", "test"] = "test"
    which: Literal["last", "best"] = "last"
    metrics: Optional[List[Component]] = None


class CompressionSection(Section):
    """What several workers send of their gradients; as for `mxkit.distributed.set_kvstore`.

    Attributes:
        type: "2bit".
        threshold: What one message changes an element of a worker's mean gradient by.
    """

    type: Literal["2bit"]
    threshold: Number = Field(gt=0)


class Recipe(Section):
    """A whole run: data, model, training, evaluation.

    Attributes:
        format: Version of this format.
        name: Beginning of the name of the run's folder; by default the file's name.
        description: A text for readers.
        imports: Modules that register your own names with `@mxkit.register`.
        import_path: Folder in which Python looks first for these modules; by default the recipe's folder.
        seed: Seed of the first values, the order of the samples, augmentation and dropout.
        devices: As for `mxkit.devices`.
        threads: Most threads of an operator on the CPU, as for `mxkit.threads`; null takes one per core. A number needs
            a process in which MXNet is not loaded yet, like that of `mxkit train`.
        arrays: "nd", or "np" for a net of `mx.np`: the whole run is then under `npx.set_np()`.
        data: Dataset, with a training, a validation and a test part.
        model: As for `mxkit.models.get_model`.
        initializer: An initializer of MXNet.
        hybridize: Run the net as a graph if it is a HybridBlock.
        freeze: Globs over paths of parameters that are not trained; as for `mxkit.freeze`.
        loss: As for `mxkit.fit`.
        optimizer: An optimizer of MXNet.
        schedule: Schedule of the learning rate, as for `mxkit.callbacks.LearningRate` and `mxkit.training.schedule`;
            or null.
        epochs: Number of passes over the training part; or a length like "500 updates".
        updates: Number of optimizer updates, instead of `epochs`.
        accumulate: Batches per update.
        accumulate_samples: Least number of samples per update, instead of `accumulate`.
        clip_norm: Largest norm of the averaged gradient, or null.
        clip_value: Largest absolute value of the averaged gradient's elements, or null.
        amp: "bfloat16" (on CPUs) or "float16", or null.
        limit_batches: Number of batches that an epoch reads of each part, or null for all.
        validate_every: Epochs between two validations.
        check_finite: True fails if a loss or a weight is NaN or infinite; `stop` ends the run.
        kvstore: How several workers add their gradients up.
        compression: What several workers send of their gradients, or null for all.
        callbacks: Callbacks, called in this order after the schedule's. Their files are in the run's folder.
        checkpoints: When checkpoints are written, and which are kept.
        metrics: Metrics of the training, validation and test part.
        evaluate: The final scores after the training.
    """

    format: Annotated[Literal[1], BeforeValidator(exact)] = 1
    name: str = Field("recipe", pattern=Name)
    description: str = ""
    imports: List[Annotated[str, Field(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$")]] = []
    import_path: Optional[str] = None
    seed: Annotated[Whole, _OfFit] = 0
    devices: str = Field("auto", pattern=DEVICES)
    threads: Optional[Whole] = Field(None, ge=1)
    arrays: Literal["nd", "np"] = "nd"
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
    kvstore: Literal["dist_sync", "horovod"] = "dist_sync"
    compression: Optional[CompressionSection] = None
    callbacks: List[Component] = []
    checkpoints: CheckpointSection = Field(default_factory=lambda: CheckpointSection.model_validate({}))
    metrics: List[Component] = []
    evaluate: EvaluateSection = Field(default_factory=lambda: EvaluateSection.model_validate({}))

    @property
    def scored_metrics(self) -> List[Component]:
        """Metrics of the final scores."""
        return self.metrics if self.evaluate.metrics is None else self.evaluate.metrics

    @contextmanager
    def switches(self) -> Iterator[None]:
        """Set MXNet's switches for `arrays` inside `with`; they are restored even if a user's code changes them."""
        before = switches_here()
        try:
            with switches(self.arrays == "np"):
                yield
        finally:
            if switches_here() != before:  # a user's code called npx.set_np() or npx.reset_np()
                set_np(*before)


def under_switches(function: _Function) -> _Function:
    """Let a function run under `switches` of its first argument, a recipe."""

    @wraps(function)
    def called(recipe: Recipe, *args: Any, **kwargs: Any) -> Any:
        with recipe.switches():
            return function(recipe, *args, **kwargs)

    return called  # type: ignore[return-value]


# Kind of each component; a component of the last three kinds is in a list.
KIND_AT = {
    "data": "data",
    "model": "model",
    "initializer": "initializer",
    "loss": "loss",
    "optimizer": "optimizer",
    "schedule": "schedule",
    "model.finetune.initializer": "initializer",
    "data.augment": "augment",
    "data.eval_augment": "augment",
    "callbacks": "callback",
    "metrics": "metric",
    "evaluate.metrics": "metric",
}

# In the order of their arguments in scripts.
FIT_KEYS = tuple(name for name, field in Recipe.model_fields.items() if _OfFit in field.metadata)

# Keys of a file that are resolved before the checks, and are not part of the resolved recipe.
FILE_KEYS = ("base", "variables")


def fields_at(location: Sequence[Any]) -> List[str]:
    """Accepted keys of the section at a location; of a component the keys beside its arguments.

    >>> fields_at(["optimizer", "multipliers", "*.bias"]), fields_at(["metrics", 0])
    (['lr', 'wd'], ['name'])
    """
    kind: Any = Recipe
    for key in location:
        if _is_section(kind):
            field = kind.model_fields.get(key)
            kind = None if field is None else field.annotation
        else:  # a number in a list, or a free key of a mapping
            kind = next((one for one in get_args(kind) if get_args(one) or _is_section(one)), None)
        while get_origin(kind) in (Annotated, Union):
            kind = next((one for one in get_args(kind) if one is not type(None)), None)
    keys = list(kind.model_fields) if _is_section(kind) else []
    return keys if location else [*keys, *FILE_KEYS]


def _is_section(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)

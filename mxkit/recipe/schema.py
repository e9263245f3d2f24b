"""The keys of a recipe, format 1, and the one pass that checks them and makes what they name.

Pydantic walks through a recipe, depth first. A component checks its arguments and is made on the way; what it refuses
is filed under its path, and its siblings go on, so one error lists all mistakes. `fit` gets the objects that were made.
"""

from contextlib import AbstractContextManager
from functools import wraps
import inspect
import re
from typing import Any, Callable, ClassVar, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from mxkit.core.arguments import length
from mxkit.data.augment import PRESETS, Augment
from mxkit.errors import RecipeError, nearest
from mxkit.metrics import get_metrics
from mxkit.recipe.run_code import import_modules, switched
from mxkit.recipe.vocabulary import COMPOSED, KINDS, Argument, Function, accepted_arguments, adapter_of, exact, is_known
from mxkit.storage.hub import check_hub_address, is_hub_address
from mxkit.training.checkpoints import Checkpoints
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError
from typing_extensions import Annotated, Literal

# Strict: pydantic would otherwise convert "3" to 3 and true to 1.
Whole = Annotated[int, Field(strict=True)]
Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Yes = Annotated[bool, Field(strict=True)]
Schema = Dict[str, Any]

# Marks the keys of a recipe that are keywords of `fit`.
_OfFit = "of fit"
Name = r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$"
DEVICES = r"^(auto|cpu(:\d+)?|gpu(:\d+(,\d+)*)?)$"
_MODULE = r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$"
# Keys of a file that are resolved before the checks, and are not part of the resolved recipe.
FILE_KEYS = ("base", "variables")


class Problem(NamedTuple):
    """One mistake of a recipe.

    Attributes:
        path: Dotted path of the key.
        text: The message after the path.
        accepted: Accepted names, if they can be listed.
        name: The received name, for the suggestion of the nearest accepted one.
        cause: The error that revealed the mistake, or None.
    """

    path: str
    text: str
    accepted: Tuple[str, ...] = ()
    name: str = ""
    cause: Optional[BaseException] = None

    @classmethod
    def of(cls, path: str, error: BaseException) -> "Problem":
        """The error of a function, filed under the path of the key that it was called for."""
        kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        return cls(path, f"{kind}{error}", cause=error)

    def __str__(self) -> str:
        own = f"{self.path.rpartition('.')[2]}: "  # many errors begin with the argument's name, where the path ends
        text = self.text[len(own) :] if self.text.startswith(own) else self.text
        hint = nearest(self.name, self.accepted) if self.name else ""
        accepted = f"; accepted: {', '.join(self.accepted)}" if self.accepted else ""
        return f"{self.path}: {text}{accepted}{'; ' + hint if hint else ''}"


def refuse(origin: str, problems: Sequence[Problem]) -> None:
    """Raise one error that lists all problems.

    Args:
        origin: Name of the recipe in messages.
        problems: Mistakes; there may be none.

    Raises:
        RecipeError: There is a problem.
    """
    if problems:
        cause = next((one.cause for one in reversed(problems) if one.cause), None)
        raise RecipeError(f"recipe {origin}:\n  " + "\n  ".join(map(str, problems))) from cause


def _refusal(problems: Sequence[Problem]) -> ValidationError:
    """Pydantic's error for problems whose paths begin here; it adds the keys above."""
    return ValidationError.from_exception_data(
        "recipe",
        [
            InitErrorDetails(
                type=PydanticCustomError("problem", "{text}", {"text": one.text, "problem": one}),
                loc=(one.path,) if one.path else (),
                input=None,
            )
            for one in problems
        ],
    )


def _attempt(make: Callable[[], Any]) -> Any:
    """The result of a function; its error becomes pydantic's."""
    try:
        return make()
    except Exception as error:  # functions of MXNet and of users raise any error
        raise _refusal([Problem.of("", error)]) from error


def _problems_of(
    error: ValidationError, keys: Sequence[str], content: Any, unknown: str = "unknown key"
) -> List[Problem]:
    """What pydantic refuses in a section or among the arguments of a component, in the words of a recipe.

    Args:
        error: Pydantic's error.
        keys: Accepted keys.
        content: What was received in its place.
        unknown: What is said of another key.
    """
    problems: Dict[str, Problem] = {}
    for detail in error.errors(include_url=False):
        kind, context = detail["type"], detail.get("ctx", {})
        path, received = _place(detail["loc"], content)
        text, said = f"{detail['msg'][:1].lower()}{detail['msg'][1:]}", f"; received {received!r}"
        accepted: Tuple[str, ...] = ()
        name = received if isinstance(received, str) else ""
        if kind == "problem":  # a section inside has put it in words already
            path = ".".join(map(str, detail["loc"]))
            problems[path] = context["problem"]._replace(path=path)
            continue
        if kind == "extra_forbidden":
            text, accepted, name = unknown, tuple(keys), path
        elif kind == "missing":
            path = str(detail["loc"][-1])
            misspelt = [one for one in content if path == "name" and nearest(one, ["name"])]
            text, said = "is missing", ""
            if misspelt:
                path, accepted, name = misspelt[0], tuple(keys), misspelt[0]
                text = f"{unknown}; received {content[name]!r}"
        elif kind == "model_type":
            text = f"expected {'a name, or ' if 'name' in keys else ''}keys and values"
        elif kind == "value_error":
            text = str(context["error"])
            said = "" if "; received " in text else said
        elif kind == "literal_error":
            accepted = tuple(re.findall(r"'([^']*)'", context["expected"]))
        elif path == "devices" and kind == "string_pattern_mismatch":
            text, accepted = "expected devices", ("auto", "cpu", "cpu:4", "gpu", "gpu:0,2")
        if path in problems:  # of a union, each of whose types refuses the value
            text = f"{problems[path].text.partition('; received ')[0]} or {text.replace('input should be ', '')}"
            accepted = ()
        problems[path] = Problem(path, text + said, accepted, name if accepted else "")
    return list(problems.values())


def _place(location: Iterable[Any], content: Any) -> Tuple[str, Any]:
    """The path of a pydantic's error in the content, and what stands there; names of a union's types are no keys."""
    path = []
    for key in location:
        is_item = isinstance(content, (list, tuple)) and isinstance(key, int)
        if not is_item and not (isinstance(content, dict) and key in content):
            break
        content = content[key]
        path.append(str(key))
    return ".".join(path), content


class Section(BaseModel):
    """A part of a recipe; an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", validate_default=True)

    @model_validator(mode="wrap")
    @classmethod
    def _resolve(cls, value: Any, handler: Callable[[Any], Any], info: ValidationInfo) -> Any:
        content = value.model_dump() if isinstance(value, BaseModel) else value
        content = {"name": content} if isinstance(content, str) and "name" in cls.model_fields else content
        problems: List[Problem] = []
        try:
            made = handler(content)
        except ValidationError as error:
            problems = _problems_of(error, cls.known_keys(), content)
        if isinstance(content, dict):
            problems += cls.refused_arguments(content, info.context or {})
        if problems:
            raise _refusal(problems)
        _attempt(made.make)
        return made

    @classmethod
    def known_keys(cls) -> List[str]:
        """Accepted keys; of a component those beside its arguments."""
        return list(cls.model_fields)

    @classmethod
    def refused_arguments(cls, content: Mapping[str, Any], context: Mapping[str, Any]) -> List[Problem]:
        """Problems of the name and the arguments of a component."""
        return []

    def make(self) -> None:
        """Make what the section stands for, to refuse values that only its function can check."""


class Component(Section):
    """A name, and the arguments of the function or class with this name.

    `loss: l2` is short for `loss: {name: l2}`.

    Attributes:
        name: Name in the registry of its kind.
    """

    model_config = ConfigDict(extra="allow")
    kind: ClassVar[str]
    _made: Any = PrivateAttr(None)

    def __init_subclass__(cls, kind: str = "", **more: Any) -> None:
        super().__init_subclass__(**more)
        cls.kind = kind or cls.kind

    name: str

    def __repr__(self) -> str:
        return repr(self.short)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.model_dump() == other.model_dump()

    @property
    def arguments(self) -> Dict[str, Any]:
        """All keys that are no field of this class."""
        return dict(self.model_extra or {})

    @property
    def spec(self) -> Tuple[str, Dict[str, Any]]:
        """`(name, arguments)`, which the public calls accept."""
        return self.name, self.arguments

    @property
    def short(self) -> Any:
        """The form of the public calls: the name, or `(name, arguments)`."""
        return self.spec if self.arguments else self.name

    @property
    def made(self) -> Any:
        """The object that was made when the recipe was checked; else `short`, for a function that needs more."""
        return self.short if self._made is None else self._made

    def make(self) -> None:
        """Make the object."""
        maker = KINDS[self.kind].make
        if maker is not None and is_known(self.kind, self.name):  # a module that could not be imported has others
            self._made = maker(self.name, self.arguments)

    @classmethod
    def refused_arguments(cls, content: Mapping[str, Any], context: Mapping[str, Any]) -> List[Problem]:
        name, arguments = content.get("name"), {key: one for key, one in content.items() if key not in cls.model_fields}
        if not isinstance(name, str):
            return []
        if not is_known(cls.kind, name):
            # a module of `imports` that is missing may register the name
            known, text = tuple(sorted(KINDS[cls.kind].names())), f"unknown; received {name!r}"
            return [] if context.get("lacks_modules") else [Problem("name", text, known, name)]
        accepted = accepted_arguments(cls.kind, name)
        if accepted is None:
            return []
        if cls.kind == "model" and name in COMPOSED:
            accepted = dict.fromkeys(accepted, Argument(NetComponent, True))
        own = [key for key in cls.model_fields if key != "name"]
        adapter = adapter_of({key: one for key, one in accepted.items() if key not in own})
        try:
            adapter.validate_python(arguments, context=dict(context))
        except ValidationError as error:
            keys = (*own, *sorted(accepted.keys() - own), "name")
            return _problems_of(error, keys, arguments, f"{name} takes no such argument")
        return []


class AugmentComponent(Component, kind="augment"):
    """A step of an augmentation, or a preset."""


class NetComponent(Component, kind="model"):
    """A net without first values, such as a part of another net."""


class InitializerComponent(Component, kind="initializer"):
    """An initializer of MXNet."""


class LossComponent(Component, kind="loss"):
    """A loss."""


class ScheduleComponent(Component, kind="schedule"):
    """A schedule of the learning rate."""


class CallbackComponent(Component, kind="callback"):
    """A callback."""


class MetricComponent(Component, kind="metric"):
    """A metric."""


class Steps(List[AugmentComponent]):
    """The steps of an augmentation.

    Attributes:
        made: The `Augment`; a list of one preset makes the preset.
    """

    def __init__(self, steps: Iterable[AugmentComponent]) -> None:
        super().__init__(steps)
        preset = len(self) == 1 and self[0].name in PRESETS
        self.made: Augment = self[0].made if preset else _attempt(lambda: Augment([one.made for one in self]))


def augment_of(steps: Optional[List[AugmentComponent]]) -> Optional[Augment]:
    """The augmentation that was made of steps, or None."""
    augment: Optional[Augment] = getattr(steps, "made", None)
    return augment


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, (str, dict)) else value


def _distinct(metrics: List[MetricComponent]) -> List[MetricComponent]:
    _attempt(lambda: get_metrics([one.made for one in metrics]))
    return metrics


def _length(name: str, units: Tuple[str, str], empty: bool) -> Any:
    """Type of a length as `fit` takes it: a number of the first unit, or a text; `empty` allows null."""

    def checked(value: Any) -> Any:
        if value is not None or not empty:
            length(value, name, units, units[0])
        return value

    words = "|".join((*units, *(one.replace("ches", "chs")[:-1] for one in units)))
    texts = {"type": "string", "pattern": rf"^\s*[1-9]\d*\s*({words})\s*$"}
    schema = {"anyOf": [{"type": "integer", "minimum": 1}, texts, *([{"type": "null"}] if empty else [])]}
    return Annotated[Union[int, str, None], BeforeValidator(checked), WithJsonSchema(schema)]


OptionalSteps = Annotated[Optional[Annotated[List[AugmentComponent], AfterValidator(Steps)]], BeforeValidator(_listed)]
Metrics = Annotated[List[MetricComponent], AfterValidator(_distinct)]
Workers = Union[
    Annotated[Literal[0], BeforeValidator(exact)], Annotated[str, Field(pattern=r"^(thread|process):[1-9]\d*$")]
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


class DataComponent(Component, kind="data"):
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
    augment: OptionalSteps = None
    eval_augment: OptionalSteps = None
    pairs: Optional[PairSection] = None

    @field_validator("eval_augment")
    @classmethod
    def _like_training(cls, steps: Optional[Steps], info: ValidationInfo) -> Optional[Steps]:
        """Training and evaluation must normalize images in the same way."""
        train, valid = info.data.get("augment"), None if steps is None else steps.made.normalize
        if train is not None and train.made.normalize != valid:
            raise ValueError(
                f"training normalizes by {train.made.normalize}, evaluation by {valid}; expected the same: end both "
                "with to_tensor and the same normalize"
            )
        return steps


class FinetuneSection(Section):
    """A new last layer for other classes; as for `mxkit.finetune`.

    Attributes:
        classes: Outputs of the new layer, or names of classes: those that the net had before keep their weights.
        freeze: "features" for all but the new layer, a glob over paths, or null.
        head_multiplier: Factor of the new layer's learning rate.
        head: Path of the last layer, or null for the names that the zoos use.
        initializer: Initializer of the new layer.
    """

    classes: Union[Annotated[Whole, Field(ge=1)], List[str]]
    freeze: Optional[str] = "features"
    head_multiplier: Number = Field(10.0, ge=0)
    head: Optional[str] = None
    initializer: InitializerComponent = InitializerComponent.model_construct(name="xavier")


class ModelComponent(NetComponent):
    """A net.

    Attributes:
        weights: First values of the parameters, as for `mxkit.models.get_model`: a parameter file, a run's folder, a
            checkpoint, `hf://owner/name[@revision][/file.safetensors]` on the Hugging Face hub, or "pretrained" for the
            values that a zoo published; or null.
        finetune: A new last layer for other classes, or null.
    """

    weights: Optional[str] = None
    finetune: Optional[FinetuneSection] = None

    @field_validator("weights")
    @classmethod
    def _on_the_hub(cls, weights: Optional[str]) -> Optional[str]:
        if is_hub_address(weights):
            _attempt(lambda: check_hub_address(str(weights)))
        return weights


class MultiplierSection(Section):
    """Factors of the learning rate and the weight decay of some parameters; null changes nothing.

    Attributes:
        lr: Factor of the learning rate.
        wd: Factor of the weight decay.
    """

    lr: Optional[Number] = Field(None, ge=0)
    wd: Optional[Number] = Field(None, ge=0)


class OptimizerComponent(Component, kind="optimizer"):
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

    def make(self) -> None:
        """Refuse what `Checkpoints` refuses."""
        Checkpoints("checkpoints", **self.model_dump())


class EvaluateSection(Section):
    """The final scores after the training.

    Attributes:
        split: Part of the data: "train", "valid" or "test".
        which: "last" for the net at the end of the training, "best" for the checkpoint that `keep_best` keeps.
        metrics: Metrics of the final scores, or null for those of the recipe.
    """

    split: Literal["train", "valid", "test"] = "test"
    which: Literal["last", "best"] = "last"
    metrics: Optional[Metrics] = None


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
        threads: Most threads of an operator on the CPU, as for `mxkit.threads`; null takes one per core, which the
            devices of "cpu:N" share. A number needs a process in which MXNet is not loaded yet, like that of
            `mxkit train`.
        arrays: "nd", or "np" for a net of `mx.np`: the whole run is then under `npx.set_np()`.
        data: Dataset, with a training, a validation and a test part.
        model: As for `mxkit.models.get_model`.
        initializer: An initializer of MXNet.
        hybridize: Run the net as a graph if it is a HybridBlock; "fast" with faster operators, as
            `mxkit.nets.hybridize(net, fast=True)`.
        freeze: Globs over paths of parameters that are not trained; as for `mxkit.freeze`.
        loss: As for `mxkit.fit`.
        optimizer: An optimizer of MXNet.
        schedule: Schedule of the learning rate, as for `mxkit.callbacks.LearningRate` and `mxkit.training.schedule`;
            or null.
        epochs: Number of passes over the training part; or a length like "500 updates".
        updates: Number of optimizer updates, instead of `epochs`.
        accumulate: Batches per update; or a length like "256 samples".
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
    imports: List[Annotated[str, Field(pattern=_MODULE)]] = []
    import_path: Optional[str] = None
    seed: Annotated[Whole, _OfFit] = 0
    devices: str = Field("auto", pattern=DEVICES)
    threads: Optional[Whole] = Field(None, ge=1)
    arrays: Literal["nd", "np"] = "nd"
    data: DataComponent
    model: ModelComponent
    initializer: InitializerComponent = InitializerComponent.model_construct(name="xavier")
    hybridize: Union[Yes, Literal["fast"]] = True
    freeze: List[str] = []
    loss: LossComponent
    optimizer: OptimizerComponent
    schedule: Optional[ScheduleComponent] = None
    epochs: Annotated[_length("epochs", ("epochs", "updates"), empty=True), _OfFit] = None  # type: ignore[valid-type]
    updates: Annotated[Optional[Whole], _OfFit] = Field(None, ge=1)
    accumulate: Annotated[_length("accumulate", ("batches", "samples"), empty=False), _OfFit] = 1  # type: ignore
    accumulate_samples: Annotated[Optional[Whole], _OfFit] = Field(None, ge=1)
    clip_norm: Annotated[Optional[Number], _OfFit] = Field(None, gt=0)
    clip_value: Annotated[Optional[Number], _OfFit] = Field(None, gt=0)
    amp: Annotated[Optional[Literal["bfloat16", "float16"]], _OfFit] = None
    limit_batches: Annotated[Optional[Whole], _OfFit] = Field(None, ge=1)
    validate_every: Annotated[Whole, _OfFit] = Field(1, ge=1)
    check_finite: Annotated[Union[Yes, Literal["stop"]], _OfFit] = True
    kvstore: Literal["dist_sync", "horovod"] = "dist_sync"
    compression: Optional[CompressionSection] = None
    callbacks: List[CallbackComponent] = []
    checkpoints: CheckpointSection = Field(default_factory=lambda: CheckpointSection.model_validate({}))
    metrics: Metrics = []
    evaluate: EvaluateSection = Field(default_factory=lambda: EvaluateSection.model_validate({}))

    @property
    def scored_metrics(self) -> List[MetricComponent]:
        """Metrics of the final scores."""
        return self.metrics if self.evaluate.metrics is None else self.evaluate.metrics

    def switches(self) -> "AbstractContextManager[None]":
        """Set MXNet's switches for `arrays` inside `with`; they are restored even if a user's code changes them."""
        return switched(self.arrays)

    @field_validator("*")
    @classmethod
    def _note(cls, value: Any, info: ValidationInfo) -> Any:
        """Collect the values that are right, for the rules about several keys."""
        if info.context is not None:
            info.context["values"][info.field_name] = value
        return value

    @classmethod
    def known_keys(cls) -> List[str]:
        return [*cls.model_fields, *FILE_KEYS]


def under_switches(function: Function) -> Function:
    """Let a function run under `switches` of its first argument, a recipe."""

    @wraps(function)
    def called(recipe: Recipe, *args: Any, **kwargs: Any) -> Any:
        with recipe.switches():
            return function(recipe, *args, **kwargs)

    return called  # type: ignore[return-value]


# In the order of their arguments in scripts.
FIT_KEYS = tuple(name for name, field in Recipe.model_fields.items() if _OfFit in field.metadata)


def resolve(content: Mapping[str, Any], origin: str, earlier: Sequence[Problem] = ()) -> Recipe:
    """Check a recipe, and make what it names but its data and its net.

    Args:
        content: Keys and values, merged with the bases, without variables.
        origin: Name of the recipe in messages.
        earlier: Problems of earlier checks; what follows from them is not told.

    Raises:
        RecipeError: The recipe has mistakes; all are listed, each with its dotted path.
        Exception: A module of `imports` raised it.

    Side effects:
        Imports the modules of `imports`.
    """
    arrays, names = content.get("arrays", "nd"), content.get("imports") or []
    names = names if isinstance(names, list) else [names]
    modules = [one if isinstance(one, str) and re.match(_MODULE, one) else None for one in names]
    failed = [Problem(*one) for one in import_modules(modules, content.get("import_path"), arrays)]
    values: Dict[str, Any] = {}
    context = {"values": values, "lacks_modules": None in modules or bool(failed)}
    problems = [*earlier, *failed]
    with switched(arrays):
        try:
            recipe = Recipe.model_validate(content, context=context)
        except ValidationError as error:
            problems += [one for one in _problems_of(error, (), content) if not _touches(one, problems)]
        right = {key: one for key, one in values.items() if not _touches(Problem(key, ""), problems)}
        for broken, path, text in _RULES:
            keys = set(inspect.signature(broken).parameters)
            if keys <= set(right) and broken(**{key: right[key] for key in keys}):
                problems.append(Problem(path, text))
        problems += _unknown_columns(right)
    refuse(origin, problems)
    return recipe


def _touches(problem: Problem, others: Iterable[Problem]) -> bool:
    """Whether another problem is at the same path, above it or below it."""
    here = f"{problem.path}."
    return any(here.startswith(f"{one.path}.") or f"{one.path}.".startswith(here) for one in others)


def _unknown_columns(right: Mapping[str, Any]) -> Iterable[Problem]:
    """Monitored columns that the history will not have."""
    metrics, callbacks, checkpoints = (right.get(key) for key in ("metrics", "callbacks", "checkpoints"))
    if metrics is None or callbacks is None or checkpoints is None:
        return
    measured, loss = get_metrics([one.made for one in metrics]), right.get("loss")
    validated = [] if loss is not None and getattr(loss.made, "only_in_training", False) else ["valid_loss"]
    known = (*validated, *(f"valid_{one.name}" for one in measured), "train_loss")
    known += tuple(f"train_{one.name}" for one in measured if one.in_training)
    monitored = {
        f"callbacks.{number}.monitor": one.arguments.get("monitor")
        for number, one in enumerate(callbacks)
        if one.name in ("early_stopping", "plateau")
    }
    if checkpoints.keep_best is not None:
        monitored["checkpoints.keep_best.0"] = checkpoints.keep_best[0]
    for path, column in monitored.items():
        if column not in known:
            yield Problem(path, f"the history has no such column; received {column!r}", known, str(column))


def _beside(other: str) -> str:
    return f"does not go with {other}; leave one of them out"


# Rules about several keys, their parameters: when a rule is broken, the path, and what is wrong. A rule is asked if all
# of its keys are right.
_RULES: Tuple[Tuple[Callable[..., bool], str, str], ...] = (
    (lambda epochs, updates: (epochs is None) == (updates is None), "epochs", "expected either epochs or updates"),
    (
        lambda accumulate, accumulate_samples: accumulate_samples and accumulate != 1,
        "accumulate_samples",
        _beside("accumulate"),
    ),
    (lambda compression, kvstore: compression and kvstore == "horovod", "compression", _beside("kvstore: horovod")),
    (lambda compression, amp: compression and amp == "float16", "compression", _beside("amp: float16")),
    (lambda model: model.weights and model.arguments.get("pretrained"), "model.weights", _beside("pretrained: true")),
    (
        lambda evaluate, checkpoints: evaluate.which == "best" and checkpoints.keep_best is None,
        "evaluate.which",
        "'best' needs checkpoints.keep_best, like [valid_loss, min]; received null",
    ),
    (
        lambda schedule, callbacks: schedule and any(one.name == "plateau" for one in callbacks),
        "schedule",
        _beside("the callback plateau, because it sets the rate of each update"),
    ),
    (lambda data: data.pairs and (data.augment or data.eval_augment), "data.pairs", _beside("an augmentation")),
    (
        lambda data, model: data.pairs and model.finetune,
        "model.finetune",
        _beside("pairs: a siamese net has no classes"),
    ),
)


def differences(one: Recipe, other: Recipe) -> List[str]:
    """Lines `path: one -> other`, one for each difference of two resolved recipes.

    >>> from mxkit.recipe.reading import load_recipe
    >>> first = load_recipe("digits_lenet")
    >>> differences(first, load_recipe(first, ["epochs=3", "optimizer=sgd"]))
    ['optimizer.name: adam -> sgd', 'optimizer.learning_rate: 0.001 -> (not said)', 'epochs: 20 -> 3']
    """
    return changes(flattened(one.model_dump()), flattened(other.model_dump()), "(not said)")


def changes(left: Mapping[str, Any], right: Mapping[str, Any], missing: str) -> List[str]:
    """Lines `key: one -> other`, one for each difference of two mappings.

    >>> changes({"a": 1, "b": 2}, {"b": 2}, "nothing")
    ['a: 1 -> nothing']
    """
    pairs = ((key, left.get(key, missing), right.get(key, missing)) for key in dict.fromkeys([*left, *right]))
    return [f"{key}: {one} -> {other}" for key, one, other in pairs if one != other]


def flattened(value: Any, path: str = "") -> Dict[str, Any]:
    """Values by dotted path; a list of plain values is one value, and so is an empty mapping.

    >>> flattened({"loss": {"name": "l2"}, "freeze": [], "metrics": [{"name": "mse"}]})
    {'loss.name': 'l2', 'freeze': [], 'metrics.0.name': 'mse'}
    """
    nested = isinstance(value, (list, tuple)) and any(isinstance(one, (dict, list, tuple)) for one in value)
    inner: Any = value.items() if isinstance(value, dict) else enumerate(value) if nested else ()
    values: Dict[str, Any] = {}
    for key, one in inner:
        values.update(flattened(one, f"{path}.{key}" if path else str(key)))
    return values or {path: value}


_VARIABLE = {"type": "string", "pattern": r"\$\{[^{}]+\}"}
# MXNet's registries ignore case; gluoncv is not imported for its names
_OTHER_NAMES = {"initializer": "[A-Z]", "optimizer": "[A-Z]", "metric": "[A-Z]", "model": "^gluoncv:"}


def recipe_schema() -> Schema:
    """The JSON Schema of recipe files: every key, the names of every kind, and their arguments.

    No key is required, because a recipe over a `base` may omit any. `${variables}` may replace any value. The
    components of a recipe with `imports` are not checked, because its modules register names.

    >>> recipe_schema()["properties"]["seed"]["anyOf"][0]["type"]
    'integer'
    """
    recipe = Recipe.model_json_schema()
    for name, one in recipe["$defs"].items():
        if name.endswith("Component"):
            recipe["$defs"][name] = _kind(globals()[name].kind, one["properties"])
    recipe["properties"]["base"] = {"type": "string", "description": "The recipe that this one extends."}
    recipe["properties"]["variables"] = {"type": "object", "description": "Values for ${name}."}
    recipe = _as_in_files(recipe)
    chosen = {key: one for key, one in recipe["properties"].items() if "Component" in str(one) or key == "evaluate"}
    recipe["properties"].update(dict.fromkeys(chosen, True))
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "A recipe of mxkit, format 1"}
    return {**head, **recipe, "if": {"required": ["imports"]}, "else": {"properties": chosen}}


def _kind(kind: str, own: Mapping[str, Schema]) -> Schema:
    """A component: its name, its name and arguments, or only arguments, if a base has the name."""
    names = sorted(KINDS[kind].names())
    objects: List[Schema] = []
    for name in names:
        accepted = accepted_arguments(kind, name)
        if kind == "model" and name in COMPOSED:
            arguments: Schema = dict.fromkeys(accepted or (), {"$ref": "#/$defs/ModelComponent"})
        else:
            arguments = adapter_of(accepted or {}).json_schema().get("properties", {})
        keys = {**own, **arguments, "name": {"const": name}}
        objects.append({"type": "object", "properties": keys, "additionalProperties": accepted is None})
    if kind in _OTHER_NAMES:
        other = {"type": "string", "pattern": _OTHER_NAMES[kind]}
        objects += [other, {"type": "object", "properties": {"name": other}}]
    return {"anyOf": [{"enum": names}, *objects]}


def _as_in_files(schema: Any) -> Any:
    """A schema whose keys may be missing or variables, and whose lists of steps may be one step."""
    if not isinstance(schema, dict):
        return [_as_in_files(one) for one in schema] if isinstance(schema, list) else schema
    kept = {key: _as_in_files(one) for key, one in schema.items() if key != "required"}
    for key, one in kept.get("properties", {}).items():
        kept["properties"][key] = one if "const" in one else {"anyOf": [one, _VARIABLE]}
    steps = {"$ref": "#/$defs/AugmentComponent"}
    return {"anyOf": [kept, steps]} if kept.get("items") == steps else kept

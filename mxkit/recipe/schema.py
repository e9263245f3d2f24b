"""What a recipe may say, format 1."""

from typing import Any, Dict, List, Optional, Tuple

from pydantic import BaseModel, ConfigDict, Field, model_validator
from typing_extensions import Literal


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
        """All keys but the name."""
        return dict(self.model_extra or {})


class DataComponent(Component):
    """A dataset and how it is cut into batches.

    Attributes:
        batch_size: Samples a training batch.
        eval_batch_size: Samples a batch in evaluation; no result depends on it.
    """

    batch_size: int = Field(64, ge=1)
    eval_batch_size: int = Field(256, ge=1)


class CheckpointSection(Section):
    """When checkpoints are written, and which are kept; as for `mxkit.Checkpoints`.

    Attributes:
        every: "1 epoch", "50 updates" or "5 minutes".
        keep_last: Newest ones that are kept.
        keep_best: A column of the history and "min" or "max", or null.
        keep_every: "10 epochs" or "1000 updates", or null.
    """

    every: str = "1 epoch"
    keep_last: int = Field(3, ge=1)
    keep_best: Optional[Tuple[str, Literal["min", "max"]]] = None
    keep_every: Optional[str] = None


class Recipe(Section):
    """A whole run: data, model, training, evaluation.

    Attributes:
        format: Version of this vocabulary.
        name: Begins the name of the run's folder; the file's name by default.
        description: For people.
        seed: Decides first values, order and dropout.
        devices: As for `mxkit.devices`.
        data: Dataset, with a training, a validation and a test part.
        model: As for `mxkit.models.get_model`.
        initializer: Of MXNet's registry.
        hybridize: Run the net as a graph where it is a HybridBlock.
        loss: As for `mxkit.fit`.
        optimizer: Of MXNet's registry.
        epochs: Times the training part is read.
        accumulate: Batches per update.
        clip_norm: Largest norm of the averaged gradient, or null.
        checkpoints: When they are written, and which are kept.
        metrics: Reported for the training, validation and test part.
    """

    format: Literal[1] = 1
    name: str = Field("recipe", pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$")
    description: str = ""
    seed: int = 0
    devices: str = "auto"
    data: DataComponent
    model: Component
    initializer: Component = Component(name="xavier")
    hybridize: bool = True
    loss: Component
    optimizer: Component
    epochs: int = Field(ge=1)
    accumulate: int = Field(1, ge=1)
    clip_norm: Optional[float] = Field(None, gt=0)
    checkpoints: CheckpointSection = Field(default_factory=lambda: CheckpointSection.model_validate({}))
    metrics: List[Component] = []

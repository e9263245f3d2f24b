from .inference.inference_figures import InferenceFigures as InferenceFigures
from .inference.inference_figures import InferenceRow as InferenceRow
from .inference.inference_figures import InterruptedMeasurement as InterruptedMeasurement
from .inference.measuring_inference import measure_inference as measure_inference
from .proof import Proof as Proof
from .proof import Row as Row
from .writing import Exported as Exported

__all__ = [
    "Exported",
    "InferenceFigures",
    "InferenceRow",
    "InterruptedMeasurement",
    "Proof",
    "Row",
    "measure_inference",
]

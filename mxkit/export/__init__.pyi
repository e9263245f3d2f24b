from .inference.measuring_inference import InferenceFigures as InferenceFigures
from .inference.measuring_inference import InferenceRow as InferenceRow
from .inference.measuring_inference import measure_inference as measure_inference
from .proof import Proof as Proof
from .proof import Row as Row
from .writing import Exported as Exported

__all__ = ["Exported", "InferenceFigures", "InferenceRow", "Proof", "Row", "measure_inference"]

from .proof import Proof as Proof
from .proof import Row as Row
from .writing import Exported as Exported

from .exported_files import load_exported as load_exported
from .proof import Proof as Proof
from .proof import Row as Row
from .writing import Exported as Exported
from .writing import export as export

__all__ = ["Exported", "Proof", "Row", "export", "load_exported"]

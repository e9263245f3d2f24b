"""The kit that makes Apache MXNet's Gluon pleasant, exact and alive today.

`import mxkit` prepares this process so that `import mxnet` works, and costs no more than that: each public
name is imported when it is first used. `__init__.pyi` is the list of them.
"""

import lazy_loader as _lazy
from mxkit.runtime import install as _install

_install()
__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)

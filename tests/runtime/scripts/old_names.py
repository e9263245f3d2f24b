import mxnet as mx
from mxnet import nd
import numpy as np
from numpy import float as real

import old_helpers
try:
    import old_board
except ImportError:
    pass

mask = np.zeros((2, 3), dtype=np.bool)
mask[0] = True
x = nd.array(np.arange(6, dtype=np.int).reshape(2, 3), dtype=np.float)
print(old_helpers.select(x.asnumpy(), mask), x.dtype, np.object is object, real('1.5'), np.float_(2), np.asscalar(np.ones(1)))
assert isinstance(mx.nd.array(mask).asnumpy().sum(), np.float32)
try:
    import scipy
    import json
    json.np = np
except ImportError:
    pass

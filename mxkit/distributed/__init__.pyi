from .group import all_reduce as all_reduce
from .group import barrier as barrier
from .group import broadcast_parameters as broadcast_parameters
from .group import initialize as initialize
from .group import rank as rank
from .group import shutdown as shutdown
from .group import size as size
from .kvstores import set_kvstore as set_kvstore

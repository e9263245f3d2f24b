"""The logger of mxkit: `logging.getLogger("mxkit")`.

Events are of the level INFO, which Python shows nobody until a program asks for it. Warnings have no handler either, so
that Python writes their text to stderr, unless the program has handlers of its own. A process that must end at once
writes its last words to stderr itself: a handler may hold a lock.
"""

import logging

LOG = logging.getLogger("mxkit")

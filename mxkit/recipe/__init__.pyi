from .run import load_run as load_run
from .run import resume_run as resume_run

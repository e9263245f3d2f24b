from .page import write_report as write_report
from .run_files import list_runs as list_runs

from .page import write_report as write_report
from .run_list import list_runs as list_runs

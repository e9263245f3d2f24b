from .predictions import FilePrediction as FilePrediction
from .predictions import predict_files as predict_files
from .run import load_run as load_run
from .run import resume_run as resume_run

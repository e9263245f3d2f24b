from . import callbacks as callbacks
from .modes import predict_mc_dropout as predict_mc_dropout
from .modes import recalibrate_batch_norm as recalibrate_batch_norm
from .schedules import schedule as schedule

"""Updates one by one, by MXNet alone: mxkit launch -n 4 -- python dist_async.py, on one machine."""

import os
import subprocess
import sys

rank, size = int(os.environ["MXKIT_RANK"]), int(os.environ["MXKIT_SIZE"])
host, port = os.environ["MXKIT_ADDRESS"].split(":")
os.environ.update(DMLC_PS_ROOT_URI=host, DMLC_NODE_HOST=host, DMLC_PS_ROOT_PORT=str(int(port) + 1))
os.environ.update(DMLC_NUM_WORKER=str(size), DMLC_NUM_SERVER="1", DMLC_ROLE="worker")
if rank == 0:
    for role in ("scheduler", "server"):  # the import serves until all workers have ended
        command = [sys.executable, "-W", "ignore", "-c", "import mxkit.runtime, mxnet"]
        subprocess.Popen(command, env={**os.environ, "DMLC_ROLE": role})

import mxkit  # noqa: E402
import mxnet as mx  # noqa: E402
from mxnet import autograd, gluon  # noqa: E402

digits = mxkit.data.digits()
(x, y), (valid_x, valid_y) = digits.train, digits.valid
net = gluon.nn.Dense(10, in_units=x[0].size)
net.initialize()
loss = gluon.loss.SoftmaxCrossEntropyLoss()
trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1}, kvstore="dist_async")
for _ in range(5):
    # Gluon refuses a shorter last batch here
    for batch_x, batch_y in mxkit.data.ArrayLoader(x[rank::size], y[rank::size], 32, shuffle=True, drop_last=True):
        with autograd.record():
            losses = loss(net(batch_x), batch_y)
        losses.backward()
        trainer.step(len(batch_x))
right = net(mx.nd.array(valid_x)).asnumpy().argmax(1) == valid_y
print(f"worker {rank}: accuracy {right.mean():.3f}")  # noqa: T201

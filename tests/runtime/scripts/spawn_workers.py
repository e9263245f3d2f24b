import multiprocessing as mp
import os

import mxnet as mx
import numpy as np


def work(rank, queue):
    mx.random.seed(rank)
    grad = mx.nd.ones((3,)) * (rank + 1)
    queue.put((rank, grad.asnumpy(), os.getpid()))


if __name__ == '__main__':
    mp.set_start_method('spawn')
    queue = mp.Queue()
    workers = [mp.Process(target=work, args=(rank, queue)) for rank in range(2)]
    for worker in workers:
        worker.start()
    results = sorted((queue.get(timeout=120) for _ in workers), key=lambda result: result[0])
    for worker in workers:
        worker.join()
    total = np.sum([grad for _, grad, _ in results], axis=0)
    print(total, [worker.exitcode for worker in workers], len({pid for _, _, pid in results} - {os.getpid()}))
    assert total.tolist() == [3, 3, 3]

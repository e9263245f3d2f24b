import multiprocessing as mp
import os

import mxnet as mx


def work(queue):
    queue.put(((mx.nd.ones((3,)) * 2).asnumpy(), os.getpid()))


if __name__ == '__main__':
    mp.set_start_method('spawn')
    queue = mp.Queue()
    worker = mp.Process(target=work, args=(queue,))
    worker.start()
    grad, pid = queue.get(timeout=120)
    worker.join()
    print(grad, [worker.exitcode], len({pid} - {os.getpid()}))

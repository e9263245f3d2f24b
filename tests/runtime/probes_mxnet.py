"""Hand-written probes of MXNet's training parts (`probes.py` runs them): each returns what is compared."""

import io
import json
import logging
from pathlib import Path

import numpy as np
from probes_shared import _data, _each, _folder, _net


def probe_optimizers(mx):
    def run(name):
        net = mx.gluon.nn.Dense(2, in_units=3)
        net.initialize(mx.init.One())
        arguments = {"learning_rate": np.float32(0.1)} if name not in ("adadelta", "ftml") else {}
        trainer = mx.gluon.Trainer(net.collect_params(), name, arguments)
        for _ in range(3):
            with mx.autograd.record():
                loss = (net(mx.nd.array([[1, 2, 3], [0.5, 0.25, -1]])) ** 2).sum()
            loss.backward()
            trainer.step(2)
        path = str(_folder() / "states")
        trainer.save_states(path)
        trainer.load_states(path)
        return net.weight.data(), trainer.learning_rate

    return _each((name, lambda n=name: run(name=n)) for name in sorted(mx.optimizer.Optimizer.opt_registry))


def probe_optimizers_with_numpy_scalars(mx):
    def run(name, **kwargs):
        weight, grad = mx.nd.ones((2, 2)), mx.nd.array([[0.1, 0.2], [0.3, -0.4]])
        optimizer = mx.optimizer.create(
            name, wd=np.float64(0.01), rescale_grad=np.float32(0.5), clip_gradient=np.float64(0.15), **kwargs
        )
        updater = mx.optimizer.get_updater(optimizer)
        updater(0, grad, weight)
        updater(np.int64(0), grad, weight)
        return weight

    names = ("sgd", "adam", "nag", "rmsprop", "adagrad", "signum", "ftrl", "lamb", "lars", "lbsgd", "adamax", "nadam")
    return _each((name, lambda n=name: run(n)) for name in names)


def probe_schedulers(mx):
    from mxnet import lr_scheduler as lr

    schedulers = {
        "factor": lr.FactorScheduler(np.int64(2), np.float32(0.5), base_lr=np.float64(0.1)),
        "multi": lr.MultiFactorScheduler([np.int64(2), 4], 0.5, base_lr=np.float32(0.1)),
        "poly": lr.PolyScheduler(np.int64(10), np.float32(0.1)),
        "cosine": lr.CosineScheduler(10, np.float32(0.1), warmup_steps=np.int64(2)),
    }
    return _each((name, lambda s=s: [s(n) for n in range(1, 9)]) for name, s in schedulers.items())


def probe_metrics(mx):
    labels, preds = mx.nd.array([0, 1, 1]), mx.nd.array([[0.3, 0.7], [0.2, 0.8], [0.6, 0.4]])

    def run(metric, label, pred):
        metric = mx.metric.create(metric) if isinstance(metric, str) else metric
        for _ in range(3):
            metric.update([label], [pred])
        return metric.get(), metric.get_name_value(), type(metric.sum_metric).__name__

    same = mx.nd.array([0.1, 0.5, 0.9])
    cases = [(name, name, labels, preds) for name in ("acc", "ce", "nll_loss", "f1", "mcc", "pcc")]
    cases += [(name, name, same + 0.1, same) for name in ("mae", "mse", "rmse", "loss", "pearsoncorrelation")]
    cases += [
        ("topk", mx.metric.TopKAccuracy(2), labels, mx.nd.array([[0.1, 0.2, 0.7]] * 3)),
        ("perplexity", mx.metric.Perplexity(np.int64(0)), labels, preds),
        ("np", mx.metric.np(lambda a, b: np.abs(a - b.argmax(1)).mean()), labels, preds),
        ("composite", mx.metric.CompositeEvalMetric(["acc", "ce"]), labels, preds),
        ("multi f1", mx.metric.F1(average="micro"), labels, preds),
    ]  # fmt: skip
    return _each((name, lambda c=case: run(*c)) for name, *case in cases)


def probe_metric_of_many_batches(mx):
    metric = mx.metric.Loss()
    mae = mx.metric.MAE()
    for _ in range(4000):
        metric.update(None, [mx.nd.array([0.1])])
        mae.update([mx.nd.array([1.1])], [mx.nd.array([1.0])])
    return (
        float(f"{metric.get()[1]:.10f}") == float(f"{np.float32(0.1):.10f}"),
        f"{metric.sum_metric:.8f}",
        f"{mae.sum_metric:.8f}",
    )


def probe_initializers(mx):
    def run(init):
        array = mx.nd.zeros((4, 4, 3, 3)) if "Bilinear" not in str(init) else mx.nd.zeros((1, 1, 4, 4))
        init("weight", array)
        return array, init.dumps() if hasattr(init, "dumps") else None

    names = [
        mx.init.Zero(), mx.init.One(), mx.init.Constant(np.float32(0.1)), mx.init.Constant([[0.1]]),
        mx.init.Uniform(np.float64(0.1)), mx.init.Normal(np.float32(0.1)), mx.init.Orthogonal(np.float32(1.5)),
        mx.init.Xavier(magnitude=np.float64(2)), mx.init.MSRAPrelu(slope=np.float32(0.2)), mx.init.Bilinear(),
        mx.init.Mixed([".*"], [mx.init.One()]),
    ]  # fmt: skip
    return _each(
        (f"{i} {type(one).__name__}", lambda o=one: run(mx.init.InitDesc("x") and o)) for i, one in enumerate(names)
    )


def probe_initializers_set_verbosity(mx):
    init = mx.init.Xavier().set_verbosity(True)
    init(mx.init.InitDesc("fc_weight", global_init=init), mx.nd.zeros((2, 2)))
    net = mx.gluon.nn.Dense(2, in_units=2)
    net.initialize(mx.init.Normal(), verbose=True)
    return net.weight.data()


def probe_recurrent(mx):
    rnn = mx.gluon.rnn

    def run(layer, shape=(5, 2, 3)):
        layer.initialize(mx.init.Xavier())
        layer.hybridize()
        return layer(mx.nd.ones(shape))

    def unroll(cell):
        cell.initialize(mx.init.One())
        return cell.unroll(np.int64(3), mx.nd.ones((2, 3, 4)), merge_outputs=True)[0]

    items = [
        ("lstm", lambda: run(rnn.LSTM(np.int64(4), 2, bidirectional=True))), ("gru", lambda: run(rnn.GRU(4))),
        ("rnn", lambda: run(rnn.RNN(4))), ("cell", lambda: unroll(rnn.LSTMCell(4))),
        ("grucell", lambda: unroll(rnn.GRUCell(4))), ("zoneout", lambda: unroll(rnn.ZoneoutCell(rnn.RNNCell(4)))),
        ("bi", lambda: unroll(rnn.BidirectionalCell(rnn.LSTMCell(4), rnn.LSTMCell(4)))),
    ]  # fmt: skip
    return _each(items)


def probe_losses(mx):
    from mxnet.gluon import loss

    a, b = mx.nd.array([[0.1, 0.9], [0.5, 0.25]]), mx.nd.array([[1, 0], [0, 1]])
    names = "L2 L1 SigmoidBinaryCrossEntropy KLDiv Huber Hinge SquaredHinge Logistic PoissonNLL"
    items = [(name, lambda n=name: getattr(loss, f"{n}Loss")(weight=np.float32(0.5))(a, b)) for name in names.split()]
    items += [
        ("softmax", lambda: loss.SoftmaxCrossEntropyLoss(axis=np.int64(-1))(a, mx.nd.array([0, 1]))),
        ("triplet", lambda: loss.TripletLoss(margin=np.float64(1))(a, b, a)),
        ("cosine", lambda: loss.CosineEmbeddingLoss()(a, b, mx.nd.array([1, -1]))),
        ("ctc", lambda: loss.CTCLoss()(mx.nd.ones((2, 20, 4)), mx.nd.array([[1, 0, -1, -1], [2, 1, 1, -1]]))),
        ("sdml", lambda: loss.SDMLLoss()(a, b)),
    ]  # fmt: skip
    return _each(items)


def probe_layers(mx):
    nn = mx.gluon.nn
    three, two = np.int64(3), np.int32(2)
    cases = [
        ("conv", nn.Conv2D(three, (three, 3), strides=(two, 2), padding=two), (1, 2, 8, 8)),
        ("conv1d", nn.Conv1D(three, three), (1, 2, 8)), ("conv3d", nn.Conv3D(2, (two, 2, 2)), (1, 2, 4, 4, 4)),
        ("transpose", nn.Conv2DTranspose(three, 3, output_padding=(np.int64(0), 0)), (1, 2, 5, 5)),
        ("pool", nn.AvgPool2D((two, two)), (1, 2, 4, 4)), ("global", nn.GlobalAvgPool2D(), (1, 2, 4, 4)),
        ("dense", nn.Dense(three, flatten=np.bool_(False)), (2, 3, 4)),
        ("dropout", nn.Dropout(np.float32(0.5)), (2, 3)),
        ("batch", nn.BatchNorm(momentum=np.float32(0.9)), (2, 3, 4)), ("layer", nn.LayerNorm(), (2, 3)),
        ("group", nn.GroupNorm(np.int64(1)), (2, 4, 3)), ("instance", nn.InstanceNorm(), (2, 4, 3)),
        ("embedding", nn.Embedding(np.int64(4), np.int64(2)), (2,)), ("prelu", nn.PReLU(), (2, 3)),
        ("gelu", nn.GELU(), (2, 3)), ("reflection", nn.ReflectionPad2D(np.int64(1)), (1, 1, 3, 3)),
        ("leaky", nn.LeakyReLU(np.float32(0.1)), (2, 3)),
    ]  # fmt: skip

    def run(layer, shape):
        layer.initialize(mx.init.One())
        layer.hybridize()
        return layer(mx.nd.ones(shape)), repr(layer)

    return _each((name, lambda c=case: run(*c)) for name, *case in cases)


def probe_training_export_and_back(mx):
    net = _net(mx)
    x, y = _data(mx)
    trainer = mx.gluon.Trainer(net.collect_params(), "adam")
    loss = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    for _ in range(3):
        with mx.autograd.record():
            out = loss(net(x), y)
        out.backward()
        trainer.step(8)
    folder = _folder()
    net.save_parameters(str(folder / "p"))
    net.load_parameters(str(folder / "p"))
    net.export(str(folder / "m"))
    again = mx.gluon.SymbolBlock.imports(str(folder / "m-symbol.json"), ["data"], str(folder / "m-0000.params"))
    symbol, args, aux = mx.model.load_checkpoint(str(folder / "m"), 0)
    text = io.StringIO()
    mx.gluon.utils.clip_global_norm(
        [p.grad() for p in net.collect_params().values() if p.grad_req != "null"], np.float32(0.1)
    )
    return out, again(x), sorted(args), sorted(aux), text.getvalue()


def probe_summary_and_drawing(mx):
    import contextlib

    net = _net(mx, hybrid=False)
    x, _ = _data(mx)
    net(x)
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        net.summary(x)
        symbol = net(mx.sym.var("data"))
        mx.viz.print_summary(symbol, shape={"data": (np.int64(1), 1, 8, 8)})
    dot = mx.viz.plot_network(symbol, shape={"data": (1, 1, 8, 8)})
    return text.getvalue(), sorted(line.strip() for line in dot.source.splitlines())


def probe_estimator(mx):
    from mxnet.gluon.contrib.estimator import estimator
    from mxnet.gluon.contrib.estimator import event_handler as eh

    x, y = _data(mx, 12)
    loader = mx.gluon.data.DataLoader(mx.gluon.data.ArrayDataset(x, y), 4)
    net = _net(mx)
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    metric = mx.metric.Accuracy()
    est = estimator.Estimator(
        net,
        mx.gluon.loss.SoftmaxCrossEntropyLoss(),
        train_metrics=metric,
        trainer=mx.gluon.Trainer(net.collect_params(), "sgd"),
    )
    est.logger.addHandler(handler)
    folder = str(_folder())
    handlers = [eh.CheckpointHandler(folder, monitor=est.train_metrics[0], save_best=True, mode=m) for m in ("min",)]
    handlers += [eh.EarlyStoppingHandler(est.train_metrics[0], mode="min"), eh.LoggingHandler(metrics=[metric])]
    est.fit(loader, val_data=loader, epochs=2, event_handlers=handlers)
    est.evaluate(loader)
    return metric.get(), handlers[1].best, handlers[0].best, sorted(p.name for p in Path(folder).iterdir())


def probe_module(mx):
    x, y = _data(mx, 12)
    data = mx.sym.var("data")
    out = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(mx.sym.Flatten(data), num_hidden=np.int64(3)), name="softmax")
    module = mx.mod.Module(out)
    iterator = mx.io.NDArrayIter(x, y, 4)
    folder = _folder()
    module.fit(
        iterator,
        iterator,
        num_epoch=2,
        optimizer_params={"learning_rate": np.float32(0.1)},
        eval_metric=["acc", "ce"],
        batch_end_callback=mx.callback.Speedometer(4, 1),
        epoch_end_callback=mx.callback.do_checkpoint(str(folder / "m")),
        monitor=mx.mon.Monitor(1),
    )
    scores = module.score(iterator, "acc")
    module.save_optimizer_states(str(folder / "s"))
    return scores, module.predict(iterator), sorted(p.name for p in folder.iterdir())


def probe_kvstore(mx):
    store = mx.kv.create("local")
    store.init(np.int64(3), mx.nd.ones((2,)))
    store.push(3, [mx.nd.ones((2,)), mx.nd.ones((2,)) * 2])
    out = mx.nd.zeros((2,))
    store.pull(3, out=out)
    store.set_gradient_compression({"type": "2bit", "threshold": np.float32(0.5)})
    x, net = mx.nd.ones((4, 3)), mx.gluon.nn.Dense(2, in_units=3)
    net.initialize(mx.init.One(), ctx=[mx.cpu(0), mx.cpu(1)])
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    with mx.autograd.record():
        losses = [net(part).sum() for part in mx.gluon.utils.split_and_load(x, [mx.cpu(0), mx.cpu(1)])]
    mx.autograd.backward(losses)
    trainer.step(np.int64(4))
    return out, [net.weight.data(c) for c in (mx.cpu(0), mx.cpu(1))]


def probe_amp_and_optimize(mx):
    from mxnet.contrib import amp

    net = _net(mx)
    x, _ = _data(mx)
    before = net(x)
    half = amp.convert_hybrid_block(net, target_dtype="bfloat16", ctx=mx.cpu())
    folder = _folder()
    net.export(str(folder / "m"))
    symbol = mx.sym.load(str(folder / "m-symbol.json"))
    optimized = symbol.optimize_for("MKLDNN")
    return float(abs(half(x).astype("float32") - before).max().asscalar()) < 0.05, len(optimized.list_arguments())


def probe_quantization(mx):
    from mxnet.contrib import quantization

    x, y = _data(mx, 8)
    loader = mx.gluon.data.DataLoader(mx.gluon.data.ArrayDataset(x, y), 4)

    def run(mode):
        net = _net(mx)
        net(x)
        logger = logging.getLogger("quantization")
        quantized = quantization.quantize_net(
            net,
            calib_mode=mode,
            calib_data=loader if mode != "none" else None,
            data_shapes=[(4, 1, 8, 8)] if mode == "none" else None,
            logger=logger,
        )
        return float(abs(quantized(x) - net(x)).max().asscalar()) < 0.1

    return _each((mode, lambda m=mode: run(m)) for mode in ("naive", "entropy", "none"))


def probe_profiler(mx):
    path = str(_folder() / "profile.json")
    mx.profiler.set_config(filename=path, aggregate_stats=True, profile_all=True)
    mx.profiler.set_state("run")
    (mx.nd.ones((3, 3)) * 2).wait_to_read()
    mx.profiler.Counter(mx.profiler.Domain("d"), "c", 1).increment(np.int64(2))
    mx.profiler.set_state("stop")
    table = mx.profiler.dumps()
    mx.profiler.dump()
    return "_mul_scalar" in table, sorted(json.loads(Path(path).read_text()))


def probe_contrib(mx):
    nn, rnn, cnn = mx.gluon.contrib.nn, mx.gluon.contrib.rnn, mx.gluon.contrib.cnn

    def run(layer, shape):
        layer.initialize(mx.init.Xavier())
        return layer(mx.nd.ones(shape))

    def unroll(cell, shape=(2, 3, 4)):
        cell.initialize(mx.init.One())
        return cell.unroll(np.int64(3), mx.nd.ones(shape), merge_outputs=True)[0]

    items = [
        ("shuffle", lambda: run(nn.PixelShuffle2D((np.int64(2), 2)), (1, 8, 2, 2))),
        ("sync", lambda: run(nn.SyncBatchNorm(), (2, 3, 4, 4))),
        ("deformable", lambda: run(cnn.DeformableConvolution(2, kernel_size=(3, 3), in_channels=2), (1, 2, 6, 6))),
        ("concurrent", lambda: run(_concurrent(mx), (2, 3))), ("lstmp", lambda: unroll(rnn.LSTMPCell(4, 2))),
        ("variational", lambda: unroll(rnn.VariationalDropoutCell(mx.gluon.rnn.LSTMCell(4), drop_inputs=0.5))),
        ("convlstm", lambda: unroll(rnn.Conv2DLSTMCell((2, 6, 6), 3, (3, 3), (3, 3), i2h_pad=(1, 1)), (2, 3, 2, 6, 6))),
        ("svrg", lambda: _svrg(mx)), ("onnx", lambda: _onnx(mx)), ("space", lambda: _tensorboard(mx)),
    ]  # fmt: skip
    return _each(items)


def _concurrent(mx):
    net = mx.gluon.contrib.nn.HybridConcurrent(axis=np.int64(-1))
    net.add(mx.gluon.nn.Dense(2), mx.gluon.contrib.nn.Identity())
    return net


def _svrg(mx):
    from mxnet.contrib.svrg_optimization.svrg_module import SVRGModule

    out = mx.sym.LinearRegressionOutput(
        mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=1), mx.sym.var("lin_label")
    )
    module = SVRGModule(out, label_names=["lin_label"], update_freq=2)
    iterator = mx.io.NDArrayIter(
        np.arange(8).reshape(4, 2).astype("float32"), np.arange(4).astype("float32"), 2, label_name="lin_label"
    )
    module.fit(iterator, num_epoch=2, eval_metric="mse", optimizer_params=(("learning_rate", 0.01),))
    return sorted(module.get_params()[0])


def _onnx(mx):
    import mxnet.contrib.onnx

    return sorted(name for name in dir(mxnet.contrib.onnx) if "model" in name)


def _tensorboard(mx):
    from mxnet.contrib import tensorboard

    return tensorboard.LogMetricsCallback.__name__


def probe_model_zoo(mx):
    def run(name):
        net = mx.gluon.model_zoo.get_model(name, classes=np.int64(7))
        net.initialize(mx.init.Xavier())
        return net(
            mx.nd.ones((1, 3, 224 if "inception" not in name else 299, 224 if "inception" not in name else 299))
        ).shape

    return _each(
        (name, lambda n=name: run(n)) for name in ("resnet18_v2", "squeezenet1.1", "mobilenetv2_0.25", "densenet121")
    )

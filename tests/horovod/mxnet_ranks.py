"""What the ranks of tests/horovod/test_hvd_mxnet.py do, under Python 3.8 and without pytest.

Every function whose name begins with `case_` is one test, run by all ranks in this order; a rank writes what it
found wrong to `<folder>/<rank>.json`: {case: traceback or None}.
"""

import json
import os
import sys
import traceback
import zlib

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

import platforms.horovod.mxnet as hvd
from platforms.horovod import arrays
from platforms.horovod.core import HorovodInternalError

BATCH, STEPS = 8, 6  # of one rank
TOLERANCE = 1.2e-7  # one unit in the last place of a float32 near 1


# Collectives


def data_of(rank, dtype, shape=(4, 3)):
    random = np.random.RandomState(17 + rank)
    return (random.randint(0, 9, shape) if np.dtype(dtype).kind in "iu" else random.randn(*shape)).astype(dtype)


def check(found, wanted, tolerance=0.0):
    found, wanted = found.asnumpy(), np.asarray(wanted)
    assert found.dtype == wanted.dtype and found.shape == wanted.shape, (found, wanted)
    np.testing.assert_allclose(found.astype("float64"), wanted.astype("float64"), rtol=tolerance, atol=tolerance)


def refused(call, kind, reason):
    """Check that `call()` raises an error of this kind, whose text has the reason in it."""
    try:
        call()
    except kind as error:
        assert reason in str(error), error
    else:
        raise AssertionError(f"not refused: {reason}")


def case_collectives_are_those_on_numpy_arrays():
    for dtype in ("float32", "float64", "float16", "uint8", "int8", "int32", "int64"):
        rows = data_of(hvd.rank(), dtype, (2 * hvd.size() + 2 * hvd.rank() * hvd.size(), 3))
        same = data_of(hvd.rank(), dtype, (hvd.size() + 1, 3))
        mine, more = mx.nd.array(same, dtype=dtype), mx.nd.array(rows, dtype=dtype)
        for op in (hvd.Sum, hvd.Average, hvd.Min, hvd.Max, hvd.Product):
            both = [mine.copy(), mine.copy()]
            assert hvd.grouped_allreduce_(both, op=op) is both
            for found in (hvd.allreduce(mine, op=op), both[1]):
                check(found, arrays.allreduce(same, op=op))
        check(hvd.allreduce(mine, average=False), arrays.allreduce(same, op=hvd.Sum))
        check(hvd.grouped_allgather([mine, more])[1], arrays.allgather(rows))
        check(hvd.broadcast(mine, hvd.size() - 1), arrays.broadcast(same, hvd.size() - 1))
        check(hvd.alltoall(more), arrays.alltoall(rows))
        splits = [rank + 1 for rank in range(hvd.size())]
        for given in (splits, mx.nd.array(splits, dtype="int32")):
            found, counts = hvd.alltoall(mine.tile((hvd.size(), 1)), given)
            check(found, arrays.alltoall(np.tile(same, (hvd.size(), 1)), splits)[0])
            check(counts, np.full(hvd.size(), hvd.rank() + 1, "int32"))
        scattered = arrays.reducescatter(same, op=hvd.Sum, prescale_factor=0.5, postscale_factor=6.0)
        check(hvd.reducescatter(mine, hvd.Sum, prescale_factor=0.5, postscale_factor=6.0), scattered)
        check(hvd.grouped_reducescatter([mine])[0], arrays.reducescatter(same))
        check(mine, same)
        assert hvd.allreduce_(mine) is mine and hvd.broadcast_(mine, 0) is mine
    assert type(hvd.allreduce(mx.np.array([1.0, 2.0]))) is mx.np.ndarray
    refused(lambda: hvd.allreduce(mine, True, op=hvd.Sum), ValueError, "supersedes average")
    refused(lambda: hvd.alltoall(mine, [1.5] * hvd.size()), HorovodInternalError, "whole numbers")
    refused(lambda: hvd.allreduce(mx.nd.ones((3, 2)).tostype("row_sparse")), TypeError, "row_sparse array")


def case_factors_of_half_precision_are_not_rounded():
    given = data_of(0, "float16", (999,))
    wide, factor = given.astype("float32"), np.float32(0.1915194503788923)
    for options, wanted in (
        ({"prescale_factor": factor}, (wide * factor).astype("float16") * np.float16(hvd.size())),
        ({"postscale_factor": factor}, (wide * np.float32(hvd.size()) * factor).astype("float16")),
    ):
        check(hvd.allreduce(mx.nd.array(given, dtype="float16"), op=hvd.Sum, **options), wanted)


def case_a_mismatch_is_an_error_and_not_a_hang():
    refused(lambda: hvd.allreduce(mx.nd.ones((2 + hvd.rank(),)), name="odd"), HorovodInternalError, "odd")


# Training


class Own(mx.init.Initializer):
    """Values that depend on a seed and on the parameter's name, not on the order of initialization."""

    def __init__(self, seed):
        super().__init__()
        self.seed = seed

    def _init_weight(self, name, array):
        array[:] = np.random.RandomState(zlib.crc32(f"{self.seed} {name}".encode())).uniform(-0.5, 0.5, array.shape)

    _init_bias = _init_weight


def batch(step, start=0, rows=None):
    """Rows of a global batch: (images [rows, 6], labels [rows])."""
    random = np.random.RandomState(100 + step)
    size = BATCH * hvd.size()
    images, labels = random.randn(size, 6).astype("float32"), random.randint(0, 3, size)
    end = start + (rows or size)
    return mx.nd.array(images[start:end]), mx.nd.array(labels[start:end])


def network(seed, known_shapes=False):
    """A gluon network, initialized from a seed; without known_shapes that happens in the first forward."""
    net = gluon.nn.HybridSequential(prefix="net_")
    inputs = {"in_units": 6} if known_shapes else {}
    with net.name_scope():
        net.add(gluon.nn.Dense(16, activation="tanh", **inputs), gluon.nn.Dense(3, in_units=16 if known_shapes else 0))
    net.initialize(Own(seed))
    return net


def train(net, trainer, divisor, start, rows, steps=STEPS):
    """Steps on some rows of each global batch; the outputs of the first forward."""
    loss_of, first = gluon.loss.SoftmaxCrossEntropyLoss(), None
    for step in range(steps):
        images, labels = batch(step, start, rows)
        with autograd.record():
            outputs = net(images)
            loss = loss_of(outputs, labels)
        loss.backward()
        first = outputs.asnumpy() if first is None else first
        trainer.step(divisor)
    return first


def train_my_part(net, trainer, divisor, steps=STEPS):
    return train(net, trainer, divisor, hvd.rank() * BATCH, BATCH, steps)


def weights(net):
    return [value.data().asnumpy() for _, value in sorted(net.collect_params().items())]


def started(known_shapes=False):
    """A network, and its parameters with rank 0's values, whatever this rank's were."""
    net = network(hvd.rank(), known_shapes)
    hvd.broadcast_parameters(net.collect_params(), root_rank=0)
    return net, net.collect_params()


OPTIMIZERS = {"sgd": {"learning_rate": 0.2, "momentum": 0.9, "wd": 1e-3}, "adam": {"learning_rate": 0.01}}


def single(kind, steps=STEPS, start=0, rows=None, seed=0):
    """Plain MXNet in one process, by default on whole global batches: (its weights, outputs of its first forward)."""
    rows = rows or BATCH * hvd.size()
    net = network(seed)
    trainer = gluon.Trainer(net.collect_params(), kind, dict(OPTIMIZERS[kind]), kvstore=None)
    first = train(net, trainer, rows, start, rows, steps)
    return weights(net), first


def difference(found, wanted):
    assert len(found) == len(wanted)
    return max(np.abs(found[i] - wanted[i]).max() for i in range(len(found)))


def assert_as_one_process(found, kind, first=None, tolerance=TOLERANCE):
    """Ranks have the same bits, and what one process has that gets the global batches."""
    everyone_has = hvd.allgather_object([value.tobytes() for value in found])
    assert all(other == everyone_has[0] for other in everyone_has), "ranks differ"
    wanted, wanted_first = single(kind)
    assert difference(found, wanted) <= tolerance, (kind, difference(found, wanted))
    if first is not None:  # the first forward, before any step, already had rank 0's weights
        mine = wanted_first[hvd.rank() * BATCH : (hvd.rank() + 1) * BATCH]
        assert np.allclose(first, mine, rtol=1e-6, atol=1e-6), "the first forward differs"


def case_distributed_trainer():
    for kind, settings in OPTIMIZERS.items():
        for known_shapes in (False, True):
            for options in ({}, {"num_groups": 2}, {"gradient_predivide_factor": 2.0, "prefix": "second"}):
                net, params = started(known_shapes)
                trainer = hvd.DistributedTrainer(params, mx.optimizer.create(kind, **settings), **options)
                first = train_my_part(net, trainer, BATCH)
                assert_as_one_process(weights(net), kind, first)


def case_ranks_outside_the_process_set_train_alone():
    alone = hvd.add_process_set([0])
    if hvd.rank() == 0:
        check(hvd.allreduce(mx.nd.ones((2,)), average=False, process_set=alone), np.ones(2, "float32"))
    net = network(0)
    options = {"process_set": alone, "gradient_predivide_factor": 2.0}
    trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", dict(OPTIMIZERS["sgd"]), **options)
    train_my_part(net, trainer, BATCH)
    wanted, _ = single("sgd", start=hvd.rank() * BATCH, rows=BATCH)
    assert difference(weights(net), wanted) == 0.0
    assert hvd.remove_process_set(alone)


# The key-value store


def case_gluon_trainer_with_the_store():
    for kind, settings in OPTIMIZERS.items():
        for known_shapes in (False, True):
            for on_store, store in ((None, "dist_sync_hvd"), (True, "dist_sync_perseus"), (False, hvd.KVStore())):
                net = network(hvd.rank(), known_shapes)
                if on_store is not None and not known_shapes:
                    continue
                trainer = gluon.Trainer(
                    net.collect_params(), kind, dict(settings), kvstore=store, update_on_kvstore=on_store
                )
                first = train_my_part(net, trainer, BATCH * hvd.size())
                assert_as_one_process(weights(net), kind, first)


def case_the_store_by_itself():
    store = mx.kv.create("dist_sync_hvd")
    assert (store.rank, store.num_workers, store.type) == (hvd.rank(), hvd.size(), "dist_sync_hvd")
    total = hvd.size() * (hvd.size() + 1) / 2
    mine = mx.nd.full((2, 2), hvd.rank() + 1)
    store.init("a", mine)
    store.pull("a", out=mine)
    check(mine, np.ones((2, 2), "float32"))
    outs = [mx.nd.zeros((2,), ctx=mx.cpu(device)) for device in (0, 1)]
    values = [mx.nd.full((2,), hvd.rank() + 1, ctx=mx.cpu(device)) for device in (0, 1)]
    store.init(["b", "c"], [mx.nd.zeros((2,)), mx.nd.zeros((2,))])
    store.set_gradient_compression({"type": "fp16"})
    store.push(["b", "c"], [values, values[0]])
    store.pull(["b", "c"], out=[outs, values[0]])
    for found, wanted in ((outs[0], 2 * total), (outs[1], 2 * total), (values[0], total)):
        check(found, np.full(2, wanted, "float32"))
    store.set_optimizer(mx.optimizer.create("test"))  # adds the gradient to the weight
    store.pushpull("a", mx.nd.ones((2, 2)), out=mine)
    check(mine, np.full((2, 2), 1.0 + hvd.size(), "float32"))
    for wrong, reason in (
        (lambda: store.pull("nowhere", out=mine), "no 'nowhere'"),
        (lambda: store.set_gradient_compression({"type": "4bit"}), "no compression of type '4bit'"),
        (lambda: store.set_gradient_compression({"type": "2bit", "threshold": 0}), "above 0"),
        (lambda: mx.gluon.contrib.nn.PerseusSyncBatchNorm(comm_scope=2), "comm_scope is 2"),
        (lambda: hvd.KVStore().save_optimizer_states("x"), "no optimizer"),
        (lambda: store.is_capable("sparsity"), "unknown capability"),
        (lambda: hvd.broadcast_parameters([mine]), "invalid params of type list"),
        (lambda: hvd.broadcast_parameters({"a": 1}), "'a' is neither"),
    ):
        refused(wrong, ValueError, reason)
    assert not os.path.exists("x"), "a refused call wrote a file"


# BatchNorm


def case_batch_norm_over_the_ranks_of_a_host_or_all():
    """Against MXNet's BatchNorm on all these ranks' samples; the values are far from zero."""
    size, samples = hvd.size(), 5
    random = np.random.RandomState(0)
    images, slopes = (random.randn(2, size, samples, 3, 4) * 3).astype("float32") + [[[[[50]]]], [[[[0]]]]]
    for comm_scope in 0, 1:
        for hybrid in False, True:
            ranks = range(size) if comm_scope else [rank for rank in range(size) if rank // 2 == hvd.rank() // 2]
            ours, theirs = mx.gluon.contrib.nn.PerseusSyncBatchNorm(comm_scope=comm_scope), gluon.nn.BatchNorm()
            given = []
            for layer, members in ((ours, [hvd.rank()]), (theirs, ranks)):
                layer.initialize()
                if hybrid:
                    layer.hybridize()
                x = mx.nd.array(np.concatenate([images[rank] for rank in members]))
                x.attach_grad()
                for _ in range(2):
                    with autograd.record():
                        y = layer(x)
                    y.backward(mx.nd.array(np.concatenate([slopes[rank] for rank in members])))
                given.append([y.asnumpy(), x.grad.asnumpy(), layer(x).asnumpy()])
            at = list(ranks).index(hvd.rank()) * samples
            for i, mine in enumerate(given[0]):
                assert np.abs(mine - given[1][i][at : at + samples]).max() < 2e-5
            assert difference([ours.running_mean.data().asnumpy()], [theirs.running_mean.data().asnumpy()]) < 1e-5
            assert difference([ours.running_var.data().asnumpy()], [theirs.running_var.data().asnumpy()]) < 1e-5


# Module


def module(kvstore, optimizer, settings, seed, start, rows):
    """Weights of mx.mod.Module after STEPS, and the outputs of its first forward."""
    data = mx.sym.Variable("data")
    hidden = mx.sym.Activation(mx.sym.FullyConnected(data, num_hidden=16, name="net_dense0"), act_type="tanh")
    symbol = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(hidden, num_hidden=3, name="net_dense1"), name="softmax")
    made = mx.mod.Module(symbol)
    made.bind([("data", (rows, 6))], [("softmax_label", (rows,))])
    made.init_params(Own(seed))
    if isinstance(optimizer, hvd.DistributedOptimizer):
        for params in made.get_params():
            hvd.broadcast_parameters(params)
        made.set_params(*made.get_params())
    made.init_optimizer(kvstore, optimizer, settings)
    first = None
    for step in range(STEPS):
        images, labels = batch(step, start, rows)
        made.forward(mx.io.DataBatch([images], [labels]), is_train=True)
        first = made.get_outputs()[0].asnumpy() if first is None else first
        made.backward()
        made.update()
    arguments, _ = made.get_params()
    return [arguments[name].asnumpy() for name in sorted(arguments)], first


def module_as_one_process(kvstore, optimizer, settings, wanted, wanted_first):
    found, first = module(kvstore, optimizer, settings, hvd.rank(), hvd.rank() * BATCH, BATCH)
    assert difference(found, wanted) <= TOLERANCE, difference(found, wanted)
    assert np.allclose(first, wanted_first[hvd.rank() * BATCH :][:BATCH], rtol=1e-6, atol=1e-6)


def case_module_with_the_store():
    for kind, settings in OPTIMIZERS.items():
        wanted = module(None, kind, settings, 0, 0, BATCH * hvd.size())
        module_as_one_process("dist_sync_hvd", kind, settings, *wanted)


def case_module_with_a_distributed_optimizer():
    for kind, settings in OPTIMIZERS.items():
        # A made optimizer is compared with a made one: MXNet decays the biases of no other.
        one = mx.optimizer.create(kind, rescale_grad=1 / BATCH / hvd.size(), **settings)
        wanted = module(None, one, {}, 0, 0, BATCH * hvd.size())
        for options in {}, {"gradient_predivide_factor": 2.0, "num_groups": 2}:
            inner = mx.optimizer.create(kind, rescale_grad=1 / BATCH, **settings)
            module_as_one_process(None, hvd.DistributedOptimizer(inner, **options), {}, *wanted)


def main(folder, *chosen):
    if int(os.environ.get("WORLD_SIZE", 1)) > 2:  # two hosts, as far as the ranks can see
        os.environ["GROUP_RANK"], os.environ["LOCAL_RANK"] = map(str, divmod(int(os.environ["RANK"]), 2))
    mx.kv.create("dist_sync_hvd")  # the store's way: no init()
    outcomes = {"size": hvd.size()}
    for name in chosen or [name for name in globals() if name.startswith("case_")]:
        try:
            globals()[name]()
            outcomes[name] = None
        except Exception:
            outcomes[name] = traceback.format_exc()
    with open(os.path.join(folder, f"{hvd.rank()}.json"), "w") as file:
        json.dump(outcomes, file)
    hvd.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])

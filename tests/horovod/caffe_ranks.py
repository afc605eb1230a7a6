"""What ranks of tests/horovod/test_hvd_caffe.py run: with Caffe if it is built, and with a stand-in for its solver."""

import collections
import os

import numpy as np

GLOBAL, STEPS = 8, 5  # samples of all ranks in one pass, iterations

NET = """
layer { name: "data" type: "Input" top: "x" top: "y"
  input_param { shape { dim: BATCH dim: 1 dim: 6 dim: 6 } shape { dim: BATCH } } }
layer { name: "conv" type: "Convolution" bottom: "x" top: "conv"
  convolution_param { num_output: 3 kernel_size: 3 weight_filler { type: "xavier" } } }
layer { name: "tanh" type: "TanH" bottom: "conv" top: "conv" }
layer { name: "first" type: "InnerProduct" bottom: "conv" top: "first" param { name: "same" } param { name: "bias" }
  inner_product_param { num_output: 5 weight_filler { type: "xavier" } } }
layer { name: "second" type: "InnerProduct" bottom: "conv" top: "second" param { name: "same" } param { name: "bias" }
  inner_product_param { num_output: 5 } }
layer { name: "sum" type: "Eltwise" bottom: "first" bottom: "second" top: "sum" }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "sum" bottom: "y" top: "loss" }
"""
DATABASE = """
layer { name: "data" type: "Data" top: "x" top: "y" data_param { source: "FOLDER" backend: LMDB batch_size: BATCH } }
"""
SOLVERS = {
    "SGD with momentum": 'type: "SGD" base_lr: 0.05 momentum: 0.9',
    "Adam": 'type: "Adam" base_lr: 0.01 momentum: 0.9 momentum2: 0.999 delta: 1e-4',
    "Nesterov, decay, clipping": 'type: "Nesterov" base_lr: 0.1 momentum: 0.9 weight_decay: 0.01 clip_gradients: 0.5',
    "RMSProp": 'type: "RMSProp" base_lr: 0.01 rms_decay: 0.9 delta: 1e-4',
    "iter_size": 'type: "SGD" base_lr: 0.1 momentum: 0.9 iter_size: 2',
}


def samples(passes):
    """Pictures and labels of so many passes of the global batch."""
    draw = np.random.RandomState(5)
    return draw.rand(passes, GLOBAL, 1, 6, 6).astype("f"), draw.randint(5, size=(passes, GLOBAL))


def make(folder, text, batch, shard=slice(None), net=NET):
    """A solver of pycaffe whose Input layer gets one pass of `shard` after the other."""
    import caffe

    path = os.path.join(folder, f"{os.getpid()}")
    with open(path + ".net", "w") as file:
        file.write(net.replace("BATCH", str(batch)).replace("FOLDER", folder + "/lmdb"))
    with open(path + ".solver", "w") as file:
        file.write(f'net: "{path}.net" lr_policy: "fixed" random_seed: 3 max_iter: {STEPS} {text}')
    solver = caffe.get_solver(path + ".solver")
    if net is NET:
        feed(solver.net, shard)
    return solver


def feed(net, shard):
    passes = zip(*samples(2 * STEPS + 4), strict=True)

    def before(layer):
        if layer == 0:
            x, y = next(passes)
            net.blobs["x"].data[...], net.blobs["y"].data[...] = x[shard], y[shard]

    net.before_forward(before)


def weights(solver):
    return {
        f"{name}.{i}": blob.data.copy() for name, blobs in solver.net.params.items() for i, blob in enumerate(blobs)
    }


def furthest(one, other):
    return max(float(np.abs(one[name] - other[name]).max()) for name in one)


def with_caffe(folder):
    """Train with every solver as one process and as all ranks; what was found, for the test to judge."""
    os.environ["GLOG_minloglevel"] = "2"
    alone = {}
    for name, text in SOLVERS.items():
        solver = make(folder, text, GLOBAL)
        solver.step(STEPS)
        alone[name] = weights(solver)
    write_database(folder + "/lmdb")
    solver = database_solver(folder, GLOBAL)
    solver.step(STEPS)
    alone["Data layer"] = weights(solver)

    import platforms.horovod.caffe as hvd

    found = {"early": error_of(hvd.DistributedSolver, solver)}
    hvd.init()
    rank, each = hvd.rank(), GLOBAL // hvd.size()
    shard = slice(rank * each, (rank + 1) * each)
    found["distance"] = {}
    for name, text in SOLVERS.items():
        inner = make(folder, text, each, shard)
        solver = hvd.DistributedSolver(inner)
        if name == "Adam":
            found["twice"] = error_of(hvd.DistributedSolver, solver)
        solver.step(STEPS)
        found["distance"][name] = furthest(weights(solver), alone[name])
    solver = hvd.DistributedSolver(database_solver(folder, each))
    solver.step(STEPS)
    found["distance"]["Data layer"] = furthest(weights(solver), alone["Data layer"])
    found["first"] = first_forward(folder)
    found["fp16"] = furthest(half(folder, each, shard), alone["SGD with momentum"])
    found["by hand"] = furthest(by_hand(folder, each, shard), alone["SGD with momentum"])
    found |= snapshots(folder, each, shard)
    found["same on all ranks"] = all(
        furthest(weights(solver), other) == 0 for other in hvd.allgather_object(weights(solver))
    )
    hvd.shutdown()
    return found


def first_forward(folder):
    """The loss of the same samples before and after DistributedSolver(), and whether layers still share."""
    import platforms.horovod.caffe as hvd

    solver = make(folder, SOLVERS["Adam"], GLOBAL)
    losses = [float(solver.net.forward()["loss"])]
    feed(solver.net, slice(None))  # the same pass again
    solver = hvd.DistributedSolver(solver)
    losses.append(float(solver.net.forward()["loss"]))
    params = solver.net.params
    return [*losses, all(np.array_equal(params["first"][i].data, params["second"][i].data) for i in range(2))]


def half(folder, each, shard):
    import platforms.horovod.caffe as hvd

    solver = make(folder, SOLVERS["SGD with momentum"], each, shard)
    solver = hvd.DistributedSolver(solver, compression=hvd.Compression.fp16)
    solver.step(STEPS)
    return weights(solver)


def by_hand(folder, each, shard):
    """Forward, backward and update called one by one, the sum of gradients of a loss divided by the ranks."""
    import platforms.horovod.caffe as hvd

    net = NET.replace('top: "loss" }', f'top: "loss" loss_weight: {1 / hvd.size()} }}')
    solver = make(folder, SOLVERS["SGD with momentum"], each, net=net)
    feed(solver.net, shard)
    solver = hvd.DistributedSolver(solver, op=hvd.Sum)
    for _ in range(STEPS):
        solver.net.clear_param_diffs()
        solver.net.forward()
        solver.net.backward()
        solver.apply_update()
    return weights(solver)


def snapshots(folder, each, shard):
    """solve() with snapshots on the way; then from the first of them once more to the end."""
    import platforms.horovod.caffe as hvd

    prefix = os.path.join(folder, f"rank{hvd.rank()}")
    text = SOLVERS["Adam"] + f' snapshot: 2 snapshot_prefix: "{prefix}"'
    solver = hvd.DistributedSolver(make(folder, text, each, shard))
    solver.solve()
    solver.snapshot()
    hvd.barrier()
    again = make(folder, text, each, shard)
    feed(again.net, shard)
    for _ in range(2):  # the passes that the snapshot has seen
        again.net.forward()
    again = hvd.DistributedSolver(again)
    state = os.path.join(folder, "rank0_iter_2.solverstate")
    missing = error_of(again.restore, state + "s")
    again.solve(state)
    found = {"missing": missing, "resumed": furthest(weights(again), weights(solver)), "ends": solver.iter}
    late = make(folder, text, each, shard)
    if hvd.rank() == 0:
        late.restore(state)
    found["late"] = error_of(hvd.DistributedSolver, late)
    return found


def write_database(path):
    import fcntl

    import caffe
    import lmdb

    with open(path + ".lock", "w") as lock:  # both ranks come here, one of them writes
        fcntl.flock(lock, fcntl.LOCK_EX)
        if os.path.exists(path):
            return
        environment = lmdb.open(path + ".new", map_size=1 << 24)
        with environment.begin(write=True) as transaction:
            pictures, labels = samples(STEPS)
            for i, picture in enumerate(pictures.reshape(-1, 1, 6, 6)):
                datum = caffe.io.array_to_datum(picture, int(labels.flat[i]))
                transaction.put(b"%08d" % i, datum.SerializeToString())
        environment.close()
        os.rename(path + ".new", path)


def database_solver(folder, batch):
    return make(folder, SOLVERS["Adam"], batch, net=DATABASE + NET[NET.index('layer { name: "conv"') :])


def error_of(call, *args):
    try:
        call(*args)
    except (ValueError, FileNotFoundError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


# Without Caffe


class Blob:
    def __init__(self, data, diff):
        self.data, self.diff = data, diff


class Solver:
    """Does in one iteration what Caffe's does, in the same order; two layers share their first parameter."""

    iter = 0
    size = 2  # iter_size

    def __init__(self, seed):
        draw = np.random.RandomState(seed)
        first, second = (Blob(draw.rand(2, 3).astype("f"), np.zeros((2, 3), "f")) for _ in range(2))
        shared = Blob(first.data[:], first.diff[:])
        self.net = collections.namedtuple("Net", "params")({"one": [first, second], "two": [shared]})
        self.callbacks, self.log, self.seed = [], [], seed
        self.param = collections.namedtuple("Param", "max_iter")(2)

    def add_callback(self, on_start, on_gradients_ready):
        self.callbacks.append((on_start, on_gradients_ready))

    def step(self, iterations):
        for _ in range(iterations):
            for blob in self.net.params["one"]:
                blob.diff[...] = 0
            for on_start, _ in self.callbacks:
                on_start()
            for _ in range(self.size):
                for blob in self.net.params["one"]:
                    blob.diff += self.seed + 1
            for _, on_gradients_ready in self.callbacks:
                on_gradients_ready()
            self.apply_update()

    def apply_update(self):
        self.log.append([float(blob.diff.mean()) for blob in self.net.params["one"]])
        self.iter += 1

    def solve(self):
        self.step(self.param.max_iter - self.iter)

    def snapshot(self):
        self.log.append("snapshot")


def without_caffe():
    import platforms.horovod.caffe as hvd

    early = error_of(hvd.DistributedSolver, Solver(0))
    hvd.init()
    solver = hvd.DistributedSolver(Solver(hvd.rank()))
    start = [blob.data.tolist() for blob in solver.net.params["one"]]
    solver.solve()
    solver.snapshot()
    other = Solver(hvd.rank())
    other.iter = hvd.rank()
    found = {"early": early, "start": start, "log": solver.log, "late": error_of(hvd.DistributedSolver, other)}
    found["twice"] = error_of(hvd.DistributedSolver, solver)
    smaller = Solver(hvd.rank())
    del smaller.net.params["one"][1 if hvd.rank() else 2 :]
    found["smaller"] = error_of(hvd.DistributedSolver, smaller)
    hvd.shutdown()
    return found

"""`PerseusSyncBatchNorm`: batch normalization over the batches of several ranks, in gluon and for symbols.

    mx.gluon.contrib.nn.PerseusSyncBatchNorm(comm_scope=0)       the ranks of a host (the default)
    mx.sym.contrib.PerseusSyncBatchNorm(data, comm_scope=1)      all ranks

Otherwise as MXNet's SyncBatchNorm. Mean first and deviations from it after that, two meetings of the ranks for each
layer and one in backward: E[x²] - E[x]² in one would lose digits where the mean is large. The gradients of gamma and
beta are those of each rank's batch, as all other gradients.
"""

import os

import mxnet as mx
import numpy as np

from .. import arrays, core

NAME = "PerseusSyncBatchNorm"
# Layers that wait for other ranks have to begin in the same order on all of them.
os.environ.setdefault("MXNET_CUSTOM_OP_NUM_THREADS", "1")
_scopes = {}  # (the job, comm_scope) -> the process set


def scope(comm_scope):
    """The process set of a scope: 0 for the ranks of this host, 1 for all. All ranks call it."""
    if comm_scope not in (0, 1):
        raise ValueError(f"comm_scope is {comm_scope}; give 0 (the ranks of a host) or 1 (all ranks)")
    core.init()
    job = core.job.current()
    if (job, comm_scope) not in _scopes:  # aside: MXNet's thread calls these while the script may call others
        _scopes[job, comm_scope] = core.sets.aside(core.global_process_set if comm_scope else _host())
    return _scopes[job, comm_scope]


def _host():
    """The set of this rank's host."""
    if core.local_size() == core.size():
        return core.global_process_set
    seats = arrays.allgather_object((core.local_rank(), core.cross_rank(), core.local_size()), name=NAME)
    sizes = {cross: count for local, cross, count in seats if local == 0}  # of each host; not all have a last rank
    hosts = [[host for host in sorted(sizes) if sizes[host] > local][cross] for local, cross, _ in seats]
    members = [[rank for rank, host in enumerate(hosts) if host == each] for each in sorted(sizes)]
    known = {tuple(each.ranks): each for each in core.sets.known()}
    sets = [known.get(tuple(ranks)) or core.add_process_set(ranks) for ranks in members]
    return next(each for each in sets if each.included())


class _Operator(mx.operator.CustomOp):
    def __init__(self, process_set, options):
        super().__init__()
        self.process_set, self.options = process_set, options

    def forward(self, is_train, req, in_data, out_data, aux):
        x, gamma, beta = in_data
        if is_train and not self.options["use_global_stats"]:
            mean, deviation = self._moments(x)
            momentum = self.options["momentum"]
            for old, new in zip(aux, (mean, deviation)):
                old[:] = momentum * old + (1 - momentum) * new
        else:
            mean, deviation = aux
        self.scale = 1 / mx.nd.sqrt(deviation + self.options["eps"])
        self.normal = (x - _wide(mean, x)) * _wide(self.scale, x)
        gamma = mx.nd.ones_like(gamma) if self.options["fix_gamma"] else gamma
        self.assign(out_data[0], req[0], self.normal * _wide(gamma, x) + _wide(beta, x))

    def _moments(self, x):
        rows = _sum(mx.nd.ones_like(x))
        total, count = self._totals(_sum(x), rows)
        mean = total / count
        return mean, self._totals(_sum((x - _wide(mean, x)) ** 2))[0] / count

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        (dy,), (x, gamma, _) = out_grad, in_data
        by_beta, by_gamma = _sum(dy), _sum(dy * self.normal)
        inner = dy
        if not self.options["use_global_stats"]:
            totals = self._totals(by_beta, by_gamma, _sum(mx.nd.ones_like(x)))
            inner = dy - _wide(totals[0] / totals[2], x) - self.normal * _wide(totals[1] / totals[2], x)
        fixed = self.options["fix_gamma"]
        gamma = mx.nd.ones_like(gamma) if fixed else gamma
        self.assign(in_grad[0], req[0], inner * _wide(gamma * self.scale, x))
        self.assign(in_grad[1], req[1], mx.nd.zeros_like(by_gamma) if fixed else by_gamma)
        self.assign(in_grad[2], req[2], by_beta)

    def _totals(self, *values):
        """The sums over the ranks of vectors, one number for each channel."""
        stacked = np.stack([each.asnumpy() for each in values])
        sums = arrays.FORMS["allreduce"](stacked, op=core.Sum, process_set=self.process_set)
        return [mx.nd.array(each, ctx=values[0].context, dtype=each.dtype) for each in sums]


def _sum(x):
    return x.sum(axis=1, exclude=True)  # over all but the channels


def _wide(vector, x):
    return vector.reshape((1, -1) + (1,) * (x.ndim - 2))


@mx.operator.register(NAME)
class _Property(mx.operator.CustomOpProp):
    """What MXNet asks about the operator; all options come as text."""

    def __init__(self, comm_scope="0", eps="1e-3", momentum="0.9", fix_gamma="True", use_global_stats="False", **_):
        super().__init__(need_top_grad=True)
        self.process_set = scope(int(comm_scope))
        self.options = {"eps": float(eps), "momentum": float(momentum)}
        self.options.update(fix_gamma=fix_gamma == "True", use_global_stats=use_global_stats == "True")

    list_arguments = staticmethod(lambda: ["data", "gamma", "beta"])
    list_auxiliary_states = staticmethod(lambda: ["moving_mean", "moving_var"])

    def infer_shape(self, in_shape):
        channels = [in_shape[0][1]]
        return [in_shape[0], channels, channels], [in_shape[0]], [channels, channels]

    def create_operator(self, ctx, shapes, dtypes):
        return _Operator(self.process_set, self.options)


class PerseusSyncBatchNorm(mx.gluon.contrib.nn.SyncBatchNorm):
    """The gluon layer: arguments as of MXNet's SyncBatchNorm (`num_devices` has no effect), and `comm_scope`."""

    def __init__(self, in_channels=0, num_devices=None, comm_scope=0, **options):
        super().__init__(in_channels, num_devices or 1, **options)
        self._options = {name: self._kwargs[name] for name in ("eps", "momentum", "fix_gamma", "use_global_stats")}
        scope(comm_scope)  # the ranks meet for it now, not in the first forward pass
        self._options["comm_scope"] = comm_scope

    def hybrid_forward(self, F, x, gamma, beta, running_mean, running_var):
        return F.Custom(x, gamma, beta, running_mean, running_var, op_type=NAME, **self._options)


def _symbol(*args, **options):
    """The operator for symbols: `data`, and gamma, beta and the moving statistics where they are not to be made."""
    return mx.sym.Custom(*args, op_type=NAME, **{k: v for k, v in options.items() if k not in ("ndev", "key")})


mx.gluon.contrib.nn.PerseusSyncBatchNorm = PerseusSyncBatchNorm
mx.sym.contrib.PerseusSyncBatchNorm = _symbol
mx.nd.contrib.PerseusSyncBatchNorm = lambda *args, **options: mx.nd.Custom(*args, op_type=NAME, **options)

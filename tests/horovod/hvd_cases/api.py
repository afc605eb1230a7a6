"""Names and parameters of Horovod 0.28.1; as a script, prints where those of a framework here differ (JSON)."""

import importlib
import inspect
import json
import sys

AVERAGE = "average=None, name=None"
SCALES = "prescale_factor=1.0, postscale_factor=1.0"
SET = "process_set=global_process_set"
COMPRESSION = "compression=Compression.none"
DEVICES = "device_dense='', device_sparse=''"
SCOPE = f"name=None, ignore_name_scope=False, {SET}"
NAMED = f"name=None, {SET}"
PRIORITY = f"name=None, priority=0, {SET}"
GROUPS = f"num_groups=0, groups=None, {SET}"
LOCAL = f"{GROUPS}, scale_local_gradients=True"
PREDIVIDE = "gradient_predivide_factor=1.0"
SPARSE = f"{DEVICES}, {COMPRESSION}, sparse_as_dense=False"
STEPS = "momentum_correction=True, steps_per_epoch=None"

API = {  # names / their parameters
    "torch": f"""
        init / comm=None, process_sets=None
        allreduce grouped_allreduce / tensor*, {AVERAGE}, {COMPRESSION}, op=None, {SCALES}, {SET}
        allreduce_ allreduce_async allreduce_async_ grouped_allreduce_ grouped_allreduce_async \
grouped_allreduce_async_ / tensor*, {AVERAGE}, op=None, {SCALES}, {SET}
        sparse_allreduce_async / tensor, name, op, {SET}
        allgather allgather_async grouped_allgather grouped_allgather_async / tensor*, {NAMED}
        broadcast broadcast_ broadcast_async broadcast_async_ / tensor, root_rank, {NAMED}
        alltoall alltoall_async / tensor, splits=None, {NAMED}
        reducescatter grouped_reducescatter / tensor*, name=None, {COMPRESSION}, op=Average, {SET}, {SCALES}
        reducescatter_async grouped_reducescatter_async / tensor*, name=None, op=Average, {SET}, {SCALES}
        poll synchronize / handle
        join / device=-1
        barrier / {SET}
        add_process_set remove_process_set / process_set
        start_timeline / file_path, mark_cycles=False
        stop_timeline /
        broadcast_parameters / params, root_rank
        broadcast_optimizer_state / optimizer, root_rank, model=None
        broadcast_object / obj, root_rank=0, {NAMED}
        allgather_object / obj, name=None
        DistributedOptimizer / optimizer, named_parameters=None, {COMPRESSION}, backward_passes_per_step=1, \
op=Average, {PREDIVIDE}, num_groups=0, groups=None, sparse_as_dense=False, {SET}
        SyncBatchNorm / num_features, eps=1e-05, momentum=0.1, affine=True, track_running_stats=True
    """,
    "tensorflow": f"""
        allreduce / tensor, average=None, {DEVICES}, {COMPRESSION}, op=None, {SCALES}, {NAMED}, ignore_name_scope=False
        grouped_allreduce / tensors, average=None, {DEVICES}, {COMPRESSION}, op=None, {SCALES}, {SET}, \
ignore_name_scope=False, name=None
        reducescatter / tensor, device_dense='', {COMPRESSION}, op=Average, {NAMED}, ignore_name_scope=False, {SCALES}
        grouped_reducescatter / tensors, device_dense='', {COMPRESSION}, op=Average, {SET}, {SCALES}
        allgather grouped_allgather / tensor*, {SCOPE}
        broadcast / tensor, root_rank, {SCOPE}
        broadcast_ / variables, root_rank, {NAMED}
        alltoall / tensor, splits=None, {SCOPE}
        join /
        size_op process_set_included_op / process_set_id=0, name=None
        local_size_op rank_op local_rank_op / name=None
        broadcast_variables / variables, root_rank, {SET}, inplace=False
        broadcast_object / obj, root_rank=0, session=None, {NAMED}
        broadcast_object_fn / root_rank=0, session=None, {NAMED}
        allgather_object / obj, session=None, {NAMED}
        broadcast_global_variables / root_rank
        DistributedOptimizer / optimizer, name=None, use_locking=False, {SPARSE}, backward_passes_per_step=1, \
op=Average, {PREDIVIDE}, average_aggregated_gradients=False, {LOCAL}
        DistributedGradientTape / gradtape, {SPARSE}, op=Average, {PREDIVIDE}, {LOCAL}
    """,
    "keras": f"""
        DistributedOptimizer / optimizer, name=None, {SPARSE}, {PREDIVIDE}, op=Average, backward_passes_per_step=1, \
average_aggregated_gradients=False, {LOCAL}
        broadcast_global_variables / root_rank
        allreduce / value, name=None, average=None, {SCALES}, op=None, {COMPRESSION}
        allgather / value, name=None
        broadcast / value, root_rank, name=None
        reducescatter / value, name=None, op=Average
        load_model / filepath, custom_optimizers=None, custom_objects=None, {COMPRESSION}, legacy_opts=False
        callbacks.BroadcastGlobalVariablesCallback / root_rank, device='', local_variables=None
        callbacks.MetricAverageCallback / device=''
        callbacks.LearningRateScheduleCallback / initial_lr, multiplier, start_epoch=0, end_epoch=None, \
staircase=True, {STEPS}
        callbacks.LearningRateWarmupCallback / initial_lr, warmup_epochs=5, {STEPS}, verbose=0
    """,
    "mxnet": f"""
        allreduce allreduce_ / tensor, {AVERAGE}, priority=0, {SCALES}, {SET}, op=None
        grouped_allreduce grouped_allreduce_ / tensors, {AVERAGE}, priority=0, {SCALES}, {SET}, op=None
        allgather grouped_allgather / tensor*, {PRIORITY}
        broadcast broadcast_ / tensor, root_rank, {PRIORITY}
        alltoall / tensor, splits=None, {PRIORITY}
        reducescatter grouped_reducescatter / tensor*, op=Average, name=None, priority=0, {SET}, {SCALES}
        broadcast_object / obj, root_rank=0, name=None
        allgather_object / obj, name=None
        broadcast_parameters / params, root_rank=0, prefix=None
        DistributedOptimizer / optimizer, {PREDIVIDE}, num_groups=0, {SET}
        DistributedTrainer / params, optimizer, optimizer_params=None, {COMPRESSION}, {PREDIVIDE}, prefix=None, \
num_groups=0, {SET}
    """,
}
CONSTANTS = """
    Adasum Average Max Min ProcessSet Product Sum add_process_set ccl_built cross_rank cross_size cuda_built
    ddl_built global_process_set gloo_built gloo_enabled is_initialized local_rank local_size mpi_built
    mpi_enabled mpi_threads_supported nccl_built rank remove_process_set rocm_built shutdown size start_timeline
    stop_timeline
"""  # that every framework has


def differences(framework):
    """What is missing or has other parameters; further ones may follow those of Horovod, if they have a default."""
    hvd = importlib.import_module(f"platforms.horovod.{framework}")
    named = [(hvd.global_process_set, "global_process_set"), (hvd.Average, "Average")]
    named += [(hvd.Compression.none, "Compression.none")]

    def text(parameter):
        if parameter.default is parameter.empty:
            return parameter.name
        value = next((name for value, name in named if value is parameter.default), repr(parameter.default))
        return f"{parameter.name}={value}"

    wrong = sorted(name for name in CONSTANTS.split() if not hasattr(hvd, name))
    for line in filter(str.strip, API[framework].split("\n")):
        names, _, parameters = line.partition("/")
        for name in names.split():
            wanted = parameters.strip().replace("tensor*", "tensors" if name.startswith("grouped") else "tensor")
            there = hvd
            for part in name.split("."):
                there = getattr(there, part, None)
            if there is None:
                wrong.append(f"{name} is missing")
                continue
            ours = list(inspect.signature(there).parameters.values())
            count = len(wanted.split(", ")) if wanted else 0
            found = ", ".join(map(text, ours[:count]))
            needed = [one.name for one in ours[count:] if one.default is one.empty and one.kind < one.VAR_POSITIONAL]
            if found != wanted or needed:
                wrong.append(f"{name}({found}; also needed: {needed}), not ({wanted})")
    return wrong


if __name__ == "__main__":
    print(json.dumps(differences(sys.argv[1])))

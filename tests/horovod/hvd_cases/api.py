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
TORCH_ALLREDUCE = f"{AVERAGE}, op=None, {SCALES}, {SET}"
TORCH_SCATTER = f"op=Average, {SET}, {SCALES}"
MXNET_ALLREDUCE = f"{AVERAGE}, priority=0, {SCALES}, {SET}, op=None"
MXNET_SCATTER = f"op=Average, name=None, priority=0, {SET}, {SCALES}"
PRIORITY = f"name=None, priority=0, {SET}"
GROUPS = f"num_groups=0, groups=None, {SET}, scale_local_gradients=True"
PREDIVIDE = "gradient_predivide_factor=1.0"
SPARSE = f"{DEVICES}, {COMPRESSION}, sparse_as_dense=False"

API = {
    "torch": f"""
        init(comm=None, process_sets=None)
        allreduce(tensor, {AVERAGE}, {COMPRESSION}, op=None, {SCALES}, {SET})
        allreduce_(tensor, {TORCH_ALLREDUCE})
        allreduce_async(tensor, {TORCH_ALLREDUCE})
        allreduce_async_(tensor, {TORCH_ALLREDUCE})
        grouped_allreduce(tensors, {AVERAGE}, {COMPRESSION}, op=None, {SCALES}, {SET})
        grouped_allreduce_(tensors, {TORCH_ALLREDUCE})
        grouped_allreduce_async(tensors, {TORCH_ALLREDUCE})
        grouped_allreduce_async_(tensors, {TORCH_ALLREDUCE})
        sparse_allreduce_async(tensor, name, op, {SET})
        allgather(tensor, name=None, {SET})
        allgather_async(tensor, name=None, {SET})
        grouped_allgather(tensors, name=None, {SET})
        grouped_allgather_async(tensors, name=None, {SET})
        broadcast(tensor, root_rank, name=None, {SET})
        broadcast_(tensor, root_rank, name=None, {SET})
        broadcast_async(tensor, root_rank, name=None, {SET})
        broadcast_async_(tensor, root_rank, name=None, {SET})
        alltoall(tensor, splits=None, name=None, {SET})
        alltoall_async(tensor, splits=None, name=None, {SET})
        reducescatter(tensor, name=None, {COMPRESSION}, {TORCH_SCATTER})
        reducescatter_async(tensor, name=None, {TORCH_SCATTER})
        grouped_reducescatter(tensors, name=None, {COMPRESSION}, {TORCH_SCATTER})
        grouped_reducescatter_async(tensors, name=None, {TORCH_SCATTER})
        poll(handle)
        synchronize(handle)
        join(device=-1)
        barrier({SET})
        add_process_set(process_set)
        remove_process_set(process_set)
        start_timeline(file_path, mark_cycles=False)
        stop_timeline()
        broadcast_parameters(params, root_rank)
        broadcast_optimizer_state(optimizer, root_rank, model=None)
        broadcast_object(obj, root_rank=0, name=None, {SET})
        allgather_object(obj, name=None)
        DistributedOptimizer(optimizer, named_parameters=None, {COMPRESSION}, backward_passes_per_step=1, op=Average, \
{PREDIVIDE}, num_groups=0, groups=None, sparse_as_dense=False, {SET})
        SyncBatchNorm(num_features, eps=1e-05, momentum=0.1, affine=True, track_running_stats=True)
    """,
    "tensorflow": f"""
        allreduce(tensor, average=None, {DEVICES}, {COMPRESSION}, op=None, {SCALES}, name=None, {SET}, \
ignore_name_scope=False)
        grouped_allreduce(tensors, average=None, {DEVICES}, {COMPRESSION}, op=None, {SCALES}, {SET}, \
ignore_name_scope=False, name=None)
        reducescatter(tensor, device_dense='', {COMPRESSION}, op=Average, name=None, {SET}, ignore_name_scope=False, \
{SCALES})
        grouped_reducescatter(tensors, device_dense='', {COMPRESSION}, op=Average, {SET}, {SCALES})
        allgather(tensor, {SCOPE})
        grouped_allgather(tensors, {SCOPE})
        broadcast(tensor, root_rank, {SCOPE})
        broadcast_(variables, root_rank, name=None, {SET})
        alltoall(tensor, splits=None, {SCOPE})
        join()
        size_op(process_set_id=0, name=None)
        process_set_included_op(process_set_id=0, name=None)
        local_size_op(name=None)
        rank_op(name=None)
        local_rank_op(name=None)
        broadcast_variables(variables, root_rank, {SET}, inplace=False)
        broadcast_object(obj, root_rank=0, session=None, name=None, {SET})
        broadcast_object_fn(root_rank=0, session=None, name=None, {SET})
        allgather_object(obj, session=None, name=None, {SET})
        broadcast_global_variables(root_rank)
        DistributedOptimizer(optimizer, name=None, use_locking=False, {SPARSE}, backward_passes_per_step=1, \
op=Average, {PREDIVIDE}, average_aggregated_gradients=False, {GROUPS})
        DistributedGradientTape(gradtape, {SPARSE}, op=Average, {PREDIVIDE}, {GROUPS})
        PartialDistributedGradientTape(gradtape, {SPARSE}, op=Average, {PREDIVIDE}, num_groups=0, groups=None, {SET}, \
local_layers=None, scale_local_gradients=True)
    """,
    "keras": f"""
        DistributedOptimizer(optimizer, name=None, {SPARSE}, {PREDIVIDE}, op=Average, backward_passes_per_step=1, \
average_aggregated_gradients=False, {GROUPS})
        PartialDistributedOptimizer(optimizer, name=None, {SPARSE}, {PREDIVIDE}, op=Average, groups=None, {SET}, \
local_layers=None, scale_local_gradients=True)
        broadcast_global_variables(root_rank)
        allreduce(value, name=None, average=None, {SCALES}, op=None, {COMPRESSION})
        allgather(value, name=None)
        broadcast(value, root_rank, name=None)
        reducescatter(value, name=None, op=Average)
        load_model(filepath, custom_optimizers=None, custom_objects=None, {COMPRESSION}, legacy_opts=False)
        callbacks.BroadcastGlobalVariablesCallback(root_rank, device='', local_variables=None)
        callbacks.MetricAverageCallback(device='')
        callbacks.LearningRateScheduleCallback(initial_lr, multiplier, start_epoch=0, end_epoch=None, staircase=True, \
momentum_correction=True, steps_per_epoch=None)
        callbacks.LearningRateWarmupCallback(initial_lr, warmup_epochs=5, momentum_correction=True, \
steps_per_epoch=None, verbose=0)
    """,
    "mxnet": f"""
        allreduce(tensor, {MXNET_ALLREDUCE})
        allreduce_(tensor, {MXNET_ALLREDUCE})
        grouped_allreduce(tensors, {MXNET_ALLREDUCE})
        grouped_allreduce_(tensors, {MXNET_ALLREDUCE})
        allgather(tensor, {PRIORITY})
        grouped_allgather(tensors, {PRIORITY})
        broadcast(tensor, root_rank, {PRIORITY})
        broadcast_(tensor, root_rank, {PRIORITY})
        alltoall(tensor, splits=None, {PRIORITY})
        reducescatter(tensor, {MXNET_SCATTER})
        grouped_reducescatter(tensors, {MXNET_SCATTER})
        broadcast_object(obj, root_rank=0, name=None)
        allgather_object(obj, name=None)
        broadcast_parameters(params, root_rank=0, prefix=None)
        DistributedOptimizer(optimizer, {PREDIVIDE}, num_groups=0, {SET})
        DistributedTrainer(params, optimizer, optimizer_params=None, {COMPRESSION}, {PREDIVIDE}, prefix=None, \
num_groups=0, {SET})
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
    named += [(hvd.Compression.none, "Compression.none")] if hasattr(hvd, "Compression") else []

    def text(parameter):
        if parameter.default is parameter.empty:
            return parameter.name
        value = next((name for value, name in named if value is parameter.default), repr(parameter.default))
        return f"{parameter.name}={value}"

    wrong = sorted(name for name in CONSTANTS.split() if not hasattr(hvd, name))
    for line in API[framework].split("\n"):
        name, _, wanted = line.strip().rstrip(")").partition("(")
        there = hvd
        for part in name.split(".") if name else ():
            there = getattr(there, part, None)
        if name and there is None:
            wrong.append(f"{name} is missing")
        elif name:
            ours = list(inspect.signature(there).parameters.values())
            count = len(wanted.split(", ")) if wanted else 0
            found = ", ".join(map(text, ours[:count]))
            needed = [one.name for one in ours[count:] if one.default is one.empty and one.kind < one.VAR_POSITIONAL]
            if found != wanted or needed:
                wrong.append(f"{name}({found}; also needed: {needed}), not ({wanted})")
    return wrong


if __name__ == "__main__":
    print(json.dumps(differences(sys.argv[1])))

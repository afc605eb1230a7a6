"""The one training loop and its parts.

loop                train(config): every rank of every strategy runs it
models, gpt         the models of the ladder, by name; a small transformer
strategies          how a model is spread over devices: one class each; cpu_data_parallel, sharding (FSDP) hold the rest
precision           mixed precision: casts, autocast, loss scaling, fp32 masters
schedules           the learning rate of each step
split               what tensor and pipeline parallelism leave to the caller
sync_batch_norm     BatchNorm over the global batch
recompute           activation checkpointing
memory              what a rank holds, in bytes
compiled            RunConfig's `compiler`
evaluation          accuracy on the whole test set, counted once
checkpoint          checkpoints, and how a run resumes from one; sharded_checkpoint those of FSDP
"""

"""The one training loop and its parts.

loop             train(config): every rank of every strategy runs it
models           the models of the ladder, by name
strategies       DistributedDataParallel, DataParallel, also emulated on a CPU; seconds spent on communication
precision        mixed precision by its known levels; levels describes them without importing torch
schedules        the learning rate of each step
sync_batch_norm  BatchNorm over the global batch
sharding         FSDP2 and ZeRO-1: weights, gradients and optimizer state in shards
recompute        activation checkpointing
memory           what a rank holds, in bytes
compiled         RunConfig's `compiler`
evaluation       accuracy on the whole test set, counted once
checkpoint       checkpoints, and how a run resumes from one; parts writes those of sharded runs
"""

"""The one training loop and its parts.

loop                train(config): every rank of every strategy runs it
models, gpt         the models of the ladder, by name; a small transformer
strategies          how a model is spread over devices: one class each; cpu_data_parallel, sharding (FSDP) hold the rest
precision           mixed precision: casts, autocast, loss scaling, fp32 masters
recompute           activation checkpointing
checkpoint          checkpoints, and how a run resumes from one; sharded_checkpoint those of FSDP
"""

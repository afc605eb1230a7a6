"""Other systems that the source texts name: Horovod, Ascend NPUs, the migration to them, and XLA.

Each stands by itself and imports `helpers`; nothing in `helpers` needs one of them.
"""

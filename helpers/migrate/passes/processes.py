"""One process for every card: the count comes from the process map, or from torchrun."""

from ..syntax import careful

STEP = 5

COUNTS = ("torch.cuda.device_count", "torch.npu.device_count", "torch.accelerator.device_count")


@careful
def apply(script):
    """Replace the counts of devices in main."""
    shape = script.shape
    if not shape.full:
        return None
    tree, quote = shape.tree, shape.tree.quote
    for call in tree.calls(shape.main, *COUNTS):
        around = tree.code(next(tree.parents(call)))
        if script.style == "article":
            tree.edit(call, f"len(device_id_to_process_device_map({shape.args_in_main}.device_list))")
        elif "LOCAL_WORLD_SIZE" not in around:
            name = f"{quote}LOCAL_WORLD_SIZE{quote}"
            tree.edit(call, f"int(os.environ.get({name}, {tree.alias('torch')}.npu.device_count()))")
            tree.need("os")
    return script.edited()

"""The function that says which card a process gets."""

STEP = 3

FUNCTION = """
def device_id_to_process_device_map(device_list):
    ${quotes}{number of a process: its card} for cards such as 1,0; None stands for all cards of this host.${quotes}
    count = $torch.npu.device_count()
    devices = range(count) if device_list is None else sorted(int(card) for card in device_list.split(','))
    if len(set(devices)) < len(devices):
        raise ValueError(f'--device-list {device_list} names a card twice: it would get two processes')
    missing = [card for card in devices if not 0 <= card < count]
    if missing or not devices:
        raise ValueError(f'--device-list {device_list}: this host has {count} cards, counted from 0')
    return dict(enumerate(devices))
"""


def apply(script):
    """Put the function before main."""
    shape = script.shape
    known = "def device_id_to_process_device_map(" in script.source
    if script.style != "article" or not shape.full or known:
        return None
    tree = shape.tree
    text = tree.write(FUNCTION, torch=tree.alias("torch"), quotes='"""') + 2 * script.newline
    script.insert(tree.lines(tree.top(shape.main, tree.module))[0], text)
    return script.edited()

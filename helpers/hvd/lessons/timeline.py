"""Reading what `hvd.start_timeline` has written."""

import json


def phases(path):
    """{tensor: (ready, began, ended)} in milliseconds: handed in by this rank, wanted by all, done.

    Of a tensor that went several times, the last time counts.
    """
    with open(path, encoding="utf-8") as file:
        events = [event for event in json.load(file) if event]
    names = {event["pid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
    found = {}
    for event in events:
        if event["ph"] != "X":
            continue
        begin, end = event["ts"] / 1e3, (event["ts"] + event["dur"]) / 1e3
        if event["name"].startswith("NEGOTIATE_"):
            found[names[event["pid"]]] = (begin, end, end)
        else:
            found[names[event["pid"]]] = (*found[names[event["pid"]]][:2], end)
    return found

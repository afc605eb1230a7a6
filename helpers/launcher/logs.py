"""Logging as the notebook has set it up, on a rank."""

import logging
import os
import pickle
import sys


def configured():
    """{logger: (level, whether it propagates, its handlers)}, without torch's own, which each process sets up."""
    loggers = {"": logging.root, **logging.root.manager.loggerDict}
    return {
        name: (one.level, one.propagate, [_carried(handler) for handler in one.handlers if _target(handler)])
        for name, one in loggers.items()
        if isinstance(one, logging.Logger) and (one.level or one.handlers) and not name.startswith("torch")
    }


def _target(handler):
    """The file that a handler writes, or the name of the stream; None for another kind of handler."""
    streams = {id(getattr(sys, name)): name for name in ("stdout", "stderr")}
    file = getattr(handler, "baseFilename", None)  # of pytest's, os.devnull: with it, basicConfig would do nothing
    return streams.get(id(getattr(handler, "stream", None))) if file in (None, os.devnull) else file


def _carried(handler):
    try:
        formatter = pickle.dumps(handler.formatter)
    except Exception:  # of a class made in a cell, for example
        formatter = pickle.dumps(None)
    return _target(handler), handler.level, formatter


def _formatter(carried):
    try:
        return pickle.loads(carried)
    except ImportError:  # the interpreter of the ranks is another, without the module of its class
        return None


def apply(found):
    """Set up this process's loggers as `configured` found them."""
    for name, (level, propagate, handlers) in found.items():
        logger = logging.getLogger(name or None)
        logger.handlers, logger.propagate = [], propagate
        logger.setLevel(level)
        for target, least, formatter in handlers:
            stream = target in ("stdout", "stderr")
            handler = logging.StreamHandler(getattr(sys, target)) if stream else logging.FileHandler(target, delay=True)
            handler.setLevel(least)
            handler.setFormatter(_formatter(formatter))
            logger.addHandler(handler)

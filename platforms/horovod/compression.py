"""Compressing tensors around a reduction, for any framework.

The interface of Horovod's `Compression` (https://horovod.readthedocs.io/en/stable/api.html): any class with
`compress` and `decompress` can be given as `compression=`.
"""


class Compressor:
    """What is sent instead of a tensor, and the tensor made from what is received."""

    @staticmethod
    def compress(tensor):
        """`(compressed, context)`: the tensor to send, and whatever `decompress` needs to know."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor, ctx):
        """The reduced tensor in the dtype that was given to `compress`."""
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Sends tensors unchanged."""

    @staticmethod
    def compress(tensor):
        return tensor, None

    @staticmethod
    def decompress(tensor, ctx):
        return tensor


class CastCompressor(Compressor):
    """Sends floating-point tensors in a smaller dtype.

    A subclass has the framework's `dtype`, `casts(tensor)` (whether to cast this tensor) and `cast(tensor, dtype)`.
    """

    dtype = None

    @classmethod
    def compress(cls, tensor):
        """(tensor in `dtype`, its own dtype); a tensor of integers stays as it is."""
        return (cls.cast(tensor, cls.dtype), tensor.dtype) if cls.casts(tensor) else (tensor, None)

    @classmethod
    def decompress(cls, tensor, ctx):
        return tensor if ctx is None else cls.cast(tensor, ctx)


def choices(casts, cast, **dtypes):
    """A framework's `Compression`: `none`, and the cast to each of `dtypes` by its name.

    Args:
        casts, cast: see `CastCompressor`.
    """
    own = {"casts": staticmethod(casts), "cast": staticmethod(cast)}
    made = {
        name: type(f"{name.upper()}Compressor", (CastCompressor,), {**own, "dtype": dtypes[name]}) for name in dtypes
    }
    return type("Compression", (), {"__doc__": "The choices for `compression=`.", "none": NoneCompressor, **made})

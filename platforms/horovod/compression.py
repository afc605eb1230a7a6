"""Compressing tensors around a reduction, for any framework: Horovod's `Compression`.

`compress` gives (the tensor to send, what `decompress` needs to know); `compression=` takes any class with both.
fp16 has 11 bits of mantissa and nothing above 65,504, bf16 8 bits and the range of float32.
"""


class NoneCompressor:
    """Sends tensors unchanged."""

    compress = staticmethod(lambda tensor: (tensor, None))
    decompress = staticmethod(lambda tensor, ctx: tensor)


class CastCompressor:
    """Sends floating-point tensors in a smaller `dtype`; a subclass has the framework's `casts` and `cast`."""

    @classmethod
    def compress(cls, tensor):
        return (cls.cast(tensor, cls.dtype), tensor.dtype) if cls.casts(tensor) else (tensor, None)

    @classmethod
    def decompress(cls, tensor, ctx):
        return tensor if ctx is None else cls.cast(tensor, ctx)


def choices(casts, cast, **dtypes):
    """A framework's `Compression`: `none`, and the cast to each of `dtypes` of those tensors that `casts(tensor)`."""
    own = {"casts": staticmethod(casts), "cast": staticmethod(cast)}
    made = {name: type(f"{name}Compressor", (CastCompressor,), {**own, "dtype": d}) for name, d in dtypes.items()}
    return type("Compression", (), {"__doc__": "The choices for `compression=`.", "none": NoneCompressor, **made})

"""What travels instead of a gradient (Horovod's Compression)."""

from ..compressor import Compressor, NoneCompressor


class FP16Compressor(Compressor):
    """Floating-point gradients as float16: half the bytes, and sums above 65,504 become infinite."""

    @staticmethod
    def compress(tensor):
        """(float16 tensor, its former dtype); other than floating-point tensors are left alone."""
        if "float" not in str(tensor.dtype):
            return tensor, None
        return tensor.astype("float16", copy=False), tensor.dtype

    @staticmethod
    def decompress(tensor, ctx):
        """The tensor in the dtype that it had."""
        return tensor if ctx is None else tensor.astype(ctx, copy=False)


class Compression:
    """The compressors to choose from."""

    none = NoneCompressor
    fp16 = FP16Compressor

"""What a compression is, whatever the framework (`Compression` in https://horovod.readthedocs.io/en/stable/api.html)."""


class Compressor:
    """Two functions around a reduction: what travels instead of a tensor, and back."""

    @staticmethod
    def compress(tensor):
        """`(compressed, context)`: the tensor to send, and whatever `decompress` needs to know."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor, ctx):
        """The reduced tensor in the dtype that was given to `compress`."""
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Sends what it is given."""

    @staticmethod
    def compress(tensor):
        return tensor, None

    @staticmethod
    def decompress(tensor, ctx):
        return tensor

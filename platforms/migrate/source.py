"""Reading a script without losing a byte of it."""

import ast
import io
import re
import tokenize
import warnings


class MigrationError(ValueError):
    """A script that cannot be read or parsed; the message names the file and the line."""

    def __init__(self, name, line, reason):
        self.name, self.line, self.reason = name, line, reason
        super().__init__(f"{name}:{line}: {reason}" if line else f"{name}: {reason}")


def lines_of(text):
    """The lines of `text` with their ends, split where Python splits (not at form feeds)."""
    return list(io.StringIO(text, newline=""))


def decode(raw, name):
    """(text, encoding) of the bytes of a script, by its encoding cookie, UTF-8 by default."""
    try:
        encoding = tokenize.detect_encoding(io.BytesIO(raw).readline)[0].removesuffix("-sig")
        return raw.decode(encoding), encoding
    except SyntaxError as error:
        raise MigrationError(name, 1, f"the encoding is not known: {error}") from None
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise MigrationError(name, line, f"this is not {encoding} text ({error.reason}); save it as UTF-8") from None


def parse(text, name):
    """The `ast` of `text` (without byte order mark). Raises MigrationError where it is no script for this Python."""
    if bare := re.search(r"\r(?!\n)", text):
        line = text.count("\n", 0, bare.start()) + 1
        raise MigrationError(name, line, "a carriage return without line feed; save the file with LF or CRLF")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return compile(text, name, "exec", ast.PyCF_ONLY_AST, dont_inherit=True)
    except SyntaxError as error:
        raise MigrationError(name, error.lineno or 1, f"this does not parse as Python 3: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise MigrationError(name, 1, f"this does not parse: {error}") from None

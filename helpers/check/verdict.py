"""What a check says, in one form for all of them."""


def right(text) -> bool:
    """The answer is right; `text` says what follows from it."""
    print(f"Right. {text}")
    return True


def not_yet(hint) -> bool:
    """The answer is not right yet; `hint` says where to look, not what to write."""
    print(f"Not yet. {hint}")
    return False


def attempt(function, *arguments):
    """(value, None) of the reader's function, or (None, what went wrong) when it raises."""
    try:
        return function(*arguments), None
    except Exception as error:  # the reader's code may raise anything
        return None, f"your function raised {type(error).__name__}: {error}"

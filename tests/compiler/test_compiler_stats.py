"""What the compiler did, in numbers and with source lines."""

import pytest
import torch

from helpers.compiler import compiler_stats


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    compiler_stats(reset=True)


def broken(x):
    y = x.sin()
    print("", end="")  # the planted break
    return y.cos() if y.sum() > 0 else y.tan()


def whole(x):
    return x.sin().cos()


def test_breaks_have_their_line_and_reason_and_counting_can_start_again():
    torch.compile(broken, backend="eager")(torch.ones(3))
    found = compiler_stats(reset=True)
    assert [place.code for place in found.breaks] == [
        'print("", end="")  # the planted break',
        "return y.cos() if y.sum() > 0 else y.tan()",
    ]
    assert all(place.file == __file__ for place in found.breaks)
    assert "print" in found.breaks[0].reason and "branch" in found.breaks[1].reason
    assert found.graphs == 3 and found.compile_s > 0
    assert found.breaks[0].line < found.breaks[1].line
    assert compiler_stats().graphs == compiler_stats().compile_s == 0 and compiler_stats().breaks == []
    torch.compile(whole, backend="eager")(torch.ones(3))
    assert (compiler_stats().graphs, compiler_stats().breaks, compiler_stats().recompilations) == (1, [], [])


def test_recompilations_have_their_reason():
    compiled = torch.compile(whole, backend="eager", dynamic=False)
    for size in (3, 4, 4, 5):
        compiled(torch.ones(size))
    found = compiler_stats()
    assert found.graphs == 3 and len(found.recompilations) == 2
    assert found.recompilations[0].function == "whole"
    assert any(words in found.recompilations[0].reason for words in ("expected 3, actual 4", "2.8 does"))

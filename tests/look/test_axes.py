import pytest

from qkv.errors import QkvError
from qkv.look.axes import Linear, Logarithmic, figure


@pytest.mark.parametrize(
    ("low", "high", "marks"),
    [(0, 10, [0, 2, 4, 6, 8, 10]), (0.3, 33, [10, 20, 30]), (-0.02, 0.02, [-0.02, -0.01, 0, 0.01, 0.02])],
)
def test_linear_marks_are_round(low, high, marks):
    assert Linear().marks(low, high) == marks


@pytest.mark.parametrize(
    ("low", "high", "marks"), [(1e15, 4e18, [1e15, 1e16, 1e17, 1e18]), (2, 20, [2, 5, 10, 20]), (3, 4, [3, 4])]
)
def test_logarithmic_marks_are_round(low, high, marks):
    assert Logarithmic().marks(low, high) == pytest.approx(marks)


@pytest.mark.parametrize(("low", "high"), [(1.1, 1.2), (0.9, 7e30), (2, 2.01)])
def test_logarithmic_marks_are_few_and_within_the_ends(low, high):
    marks = Logarithmic().marks(low, high)
    assert 1 <= len(marks) <= 8
    assert all(low <= mark <= high for mark in marks)


@pytest.mark.parametrize("scale", [Linear(), Logarithmic()])
def test_ends_stand_at_zero_and_one_and_a_single_value_in_the_middle(scale):
    low, high = scale.ends([2, 5, 8])
    assert [scale.place(value, low, high) for value in (low, high)] == [0, 1]
    low, high = scale.ends([3, 3])
    assert scale.place(3, low, high) == pytest.approx(0.5)


def test_a_logarithmic_axis_refuses_zero():
    with pytest.raises(QkvError, match="above zero"):
        Logarithmic().ends([0, 1])


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (0.25, "0.25"), (12000, "12,000"), (3e18, "3e18"), (2.5e-5, "2.5e-5"), (-7, "-7")]
)
def test_figures_are_short(value, text):
    assert figure(value) == text

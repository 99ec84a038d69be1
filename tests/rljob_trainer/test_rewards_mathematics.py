"""boxed_math and gsm8k, against answers that users have in responses and data. Each row stands for a kind."""

import pytest

from tests.rljob_trainer.test_rewards_builtin import score

BOXED = [  # response, ground truth, right
    (r"thus \boxed{42}", "42", True),
    (r"\boxed{43}", "42", False),
    # boxes
    (r"first \boxed{1}, then \boxed{2}", "2", True),
    (r"first \boxed{2}, then \boxed{1}", "2", False),
    (r"\boxed{2} and \boxed{3}", "3", True),
    (r"\boxed{2} and \boxed{3}", "2,3", True),
    (r"\boxed{2} and \boxed{3}", "2", False),
    (r"\boxed{2} is wrong, so \boxed{3}", "2,3", False),
    (r"\boxed {5}", "5", True),
    (r"\boxed 5", "5", True),
    (r"$\boxed 42$.", "42", True),
    (r"\boxed \frac{1}{2}", "0.5", True),
    (r"\fbox{5}", "5", True),
    (r"\boxedx{5}", "5", False),
    (r"\boxed{\boxed{7}}", "7", True),
    (r"so \boxed{7} then \boxed{", "7", True),
    (r"\boxed{42", "42", False),
    (r"\boxed{\left\{x : x > 1\right.} \boxed{5}", "5", True),
    ("42", "42", False),
    (r"\boxed{}", "42", False),
    (r"\boxed{ }", "", False),
    # ground truths
    (r"\boxed{42}", r"the answer is \boxed{42}", True),
    (r"\boxed{4}", "$4$", True),
    (r"\boxed{4}", "#### 4", True),
    (r"\boxed{5}", 5.0, True),
    (r"\boxed{100000000000000000000}", 1e20, True),
    (r"\boxed{five}", ["5", "five"], True),
    (r"\boxed{6}", [5, 6], True),
    (r"\boxed{7}", [5, 6], False),
    (r"\boxed{5}", '["5", "five"]', True),
    (r"\boxed{1}", True, False),
    (r"\boxed{True}", "1", False),
    # numbers
    (r"\boxed{1\,000}", "1000", True),
    (r"\boxed{1{,}000}", "1000", True),
    (r"\boxed{12,345,678}", "12345678", True),
    (r"\boxed{1 000}", "1000", True),
    (r"\boxed{50\%}", "50", True),
    (r"\boxed{50\%}", "0.5", True),
    (r"\boxed{\frac12}", "1/2", True),
    (r"\boxed{-\dfrac{1}{2}}", r"\frac{-1}{2}", True),
    (r"\boxed{1\frac{1}{2}}", "3/2", True),
    (r"\boxed{1 1/2}", "1.5", True),
    (r"\boxed{1.5e3}", "1500", True),
    (r"\boxed{1.5\times10^{3}}", "1500", True),
    (r"\boxed{0.\overline{3}}", "1/3", True),
    (r"\boxed{0.1\dot{6}}", "1/6", True),
    (r"\boxed{0.333}", "1/3", False),
    (r"\boxed{3/4}", "4", False),
    (r"\boxed{10 - 18}", "18", False),
    (r"\boxed{10 - 18}", "-8", True),
    ("\\boxed{２}", "2", True),
    ("\\boxed{−½}", "-0.5", True),
    (r"\boxed{5.}", "5", True),
    # units and text
    (r"\boxed{\$1,234.50}", "1234.5", True),
    (r"\boxed{5\text{ cm}^2}", "5", True),
    (r"\boxed{\text{5 dollars}}", "5", True),
    (r"\boxed{3/4 cup}", "0.75", True),
    (r"\boxed{20 cm^2}", "20", True),
    ("\\boxed{20cm²}", "20", True),
    (r"\boxed{60 miles/hour}", "60", True),
    (r"\boxed{10 €}", "10", True),
    (r"\boxed{USD 10}", "10", True),
    (r"\boxed{5 xy}", "5xy", True),
    (r"\boxed{5 xy}", "5", False),
    (r"\boxed{3 sin x}", "3", False),
    (r"\boxed{90°}", "90", True),
    (r"\boxed{5x}", "5", False),
    (r"\boxed{\text{(A)}}", "A", True),
    (r"\boxed{\text{Monday}}", "Monday", True),
    (r"\boxed{\text{even}}", "odd", False),
    # expressions, sets, intervals, tuples
    (r"\boxed{x=5}", "5", True),
    (r"\boxed{2\sqrt{2}}", r"\sqrt{8}", True),
    (r"\boxed{x + 1}", "1 + x", True),
    (r"\boxed{i}", r"\sqrt{-1}", True),
    (r"\boxed{e^{i\pi}}", "-1", True),
    ("\\boxed{3√12}", r"6\sqrt{3}", True),
    ("\\boxed{2√(3)}", r"\sqrt{12}", True),
    (r"\boxed{\mathbb{R}}", "ℝ", True),
    ("\\boxed{2π + x²}", r"x^2 + 2\pi", True),
    (r"\boxed{\{1,2\}}", r"\{2,1\}", True),
    (r"\boxed{(1, 2)}", "(1,2)", True),
    (r"\boxed{(1,2)}", "(2,1)", False),
    (r"\boxed{[0,1]}", "[0,1)", False),
    (r"\boxed{\left(-\infty, 2\right]}", r"(-\infty,2]", True),
    (r"\boxed{\begin{pmatrix}1\\2\end{pmatrix}}", r"\begin{pmatrix}1\\2\end{pmatrix}", True),
]


@pytest.mark.parametrize(("response", "truth", "right"), BOXED)
def test_boxed_math(response, truth, right):
    assert score("boxed_math", response, truth) == right


STRICT = [
    ("so 3 + 4 = 7\n#### 7", "7", True),
    ("#### 8", "7", False),
    ("7", "7", False),
    ("#### seven", "7", False),
    ("#### the 18", "18", False),
    ("#### 3\n... no: #### 4.", "4", True),
    ("#### $1,000.00", "1000", True),
    ("#### €18", "18", True),
    ("#### $-5", "-5", True),
    ("####-5", "-5", True),
    ("#### - 5", "-5", True),
    ("#### .5", "0.50", True),
    ("#### 1 000", "1000", True),
    ("#### 1.5e3", "1500", True),
    ("#### 12,34,567", "1234567", True),
    ("#### **18**", "18", True),
    (r"#### \boxed{18}", "18", True),
    ("#### x = 18", "18", True),
    ("#### 9*2 = 18", "18", True),
    ("####\n18 eggs", "18", True),
    ("#### 18/2", "9", False),
    ("#### 18/2", "18", False),
    ("#### 18/(2*3)", "3", False),
    ("#### 18 - 2", "18", False),
    ("#### 18 * 2", "18", False),
    ("#### 1_000", "1000", True),
    ("#### 1 1/2", "1.5", False),
    ("#### 6/8", "3/4", True),
    ("#### 0.75", "3/4", True),
    (r"#### \frac{3}{4}", "4", False),
    ("#### 18", "She makes 9 * 2 = 18.\n#### 18", True),
    ("#### 18", 18.0, True),
    ("#### 18", ["17", 18], True),
    ("#### 10", "1,0", False),
]

FLEXIBLE = [
    ("It is 7 of 9", "9", True),
    ("none", "9", False),
    ("#### 17\nno wait 18", "18", False),
    # a subtraction, a range and a bullet are no sign
    ("x = -18", "-18", True),
    ("x = - 18", "-18", True),
    ("Answer: −18", "-18", True),
    ("(-18)", "-18", True),
    ("-$5", "-5", True),
    ("We get 10 - 18", "18", True),
    ("We get 10 -18", "18", True),
    ("2) -18", "-18", True),
    ("2 / -3", "-3", False),
    ("2**10", "10", False),
    ("√2", "2", False),
    ("2^10 is 1024", "1024", True),
    ("1/2/3, so 18 eggs", "18", True),
    ("(2 + 3) - 18", "18", True),
    ("The range is 3-4", "4", True),
    ("pages 12–18", "18", True),
    ("From Monday-18", "18", True),
    ("Total eggs left:\n- 18", "18", True),
    ("Total:\n-18", "-18", True),
    # half of something is no number
    ("it is 3/4", "4", False),
    ("it is 3 / 4", "3/4", True),
    (r"it is \frac34", "4", False),
    ("x/2", "2", False),
    ("18/x", "18", False),
    ("2^{10}", "10", False),
    (r"\sqrt{2}", "2", False),
    ("at 12:30", "30", False),
    ("1.2.3", "3", False),
    ("H2O", "2", False),
    # units
    ("18 m^2", "18", True),
    ("60 miles/hour", "60", True),
    ("18 and 5 more 18%", "18", True),
    ("**18**", "18", True),
]


@pytest.mark.parametrize(
    ("response", "truth", "right", "method"),
    [(*row, "strict") for row in STRICT] + [(*row, "flexible") for row in FLEXIBLE],
)
def test_gsm8k(response, truth, right, method):
    assert score("gsm8k", response, truth, method=method) == right


def test_gsm8k_refuses_a_ground_truth_without_a_number():
    with pytest.raises(ValueError, match="ground_truth 'seven' has no number"):
        score("gsm8k", "#### 7", "seven")


@pytest.mark.parametrize(("builtin", "wrong", "none"), [("boxed_math", r"\boxed{1}", "1"), ("gsm8k", "#### 1", "1")])
def test_a_wrong_answer_in_the_right_place_may_have_a_score_of_its_own(builtin, wrong, none):
    assert score(builtin, wrong, "2", format_score=0.1) == 0.1
    assert score(builtin, none, "2", format_score=0.1) == 0


REPEATED = [
    "9",
    "1 ",
    "10 ",
    "- ",
    "-",
    "1/",
    "1,",
    "1:",
    "x^",
    "a",
    "a ",
    "\\frac{",
    r"\boxed{",
    r"\boxed ",
    "{",
    "(",
    "\\",
]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("builtin", ["boxed_math", "gsm8k"])
def test_no_response_costs_much(builtin):
    """A quadratic search of one of these takes longer than a test may."""
    for piece in REPEATED:
        for response in (piece * 5000, f"#### {piece * 5000}", rf"\boxed{{{piece * 5000}}}", f"#### 1e{piece * 5000}"):
            arguments = {"method": "flexible"} if builtin == "gsm8k" else {}
            assert score(builtin, response, "12345", **arguments) == 0

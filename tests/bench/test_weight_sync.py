"""The page of the weight sync benchmark; its measurements need minutes."""

from bench.weight_sync import WAYS, page, row


def test_a_row_leaves_the_first_update_out_and_says_why_a_way_failed():
    found = {"start": 9.04, "sync": [9.0, 0.1, 0.3, 0.2], "difference": 1e-7, "generation": [100, 300, 200],
             "memory": 5 << 20}  # fmt: skip
    assert row(0.4, "plain", found) == (
        "| 0.4M | plain | 9.0 | 0.2000 (0.1000 to 0.3000) | 1.0e-07 | 200 (100 to 300) | 5 |"
    )
    assert row(10.0, "packed", {"start": 1, "error": "E: no"}) == "| 10.0M | packed | 1.0 | E: no |  |  |  |"


def test_the_page_says_how_it_was_made():
    text = page(["| row |"], ["| imports |"], repetitions=21)
    assert "`python -m bench.weight_sync`" in text
    assert "20 updates" in text
    assert text.index("| row |") < text.index("| imports |")


def test_what_engine_vllm_does_comes_first():
    first = next(iter(WAYS.values()))
    assert (first.held, first.method, first.dynamo) == ("both", "load_and_pack", False)

"""The page of whole steps on a GPU: means of the steps that count, the floor of a sync, MFU."""

import json

from bench.gpu.page import _label, write_page
from rljob_trainer.progress import names

GIB = 2**30


def step(rollout, update, sync, other, tokens):
    parts = {"rollout": rollout, "update": update, "sync": sync, "other": other}
    return parts | {"seconds": sum(parts.values()), "tokens": tokens}


def test_the_page_has_means_of_the_steps_that_count_and_keeps_what_was_written_by_hand(tmp_path):
    slow, steps = step(90, 9, 9, 9, 1), [step(4, 3, 1, 0, 80_000), step(6, 1, 1, 0, 80_000)]
    run = {
        "item": "ours2:0.5B:512", "parameters": 1_000_000_000, "steps": [slow, slow, *steps], "start": 41.6,
        "peaks": {"update": 3 * GIB, "sync": None}, "metrics": {}, "error": "",
    }  # fmt: skip
    adapter = {**run, "item": "ours2:0.5B:512:model.lora.rank=8", "metrics": {names.SYNC_BYTES: 2e9 / 3}}
    short = {**run, "item": "trl:0.5B:2048", "steps": [slow, steps[0]]}
    failed = {**run, "item": "trl:0.5B:512", "steps": [slow], "error": "exit code 1"}
    found = {
        "card": "NVIDIA H200", "commit": "abc", "date": "2026-11-28", "packages": "torch 2",
        "runs": [run, adapter, short, failed], "copy_bytes_per_second": 2e12,
    }  # fmt: skip
    results = tmp_path / "gpu"
    results.mkdir()
    (results / "one.json").write_text(json.dumps(found))
    (tmp_path / "gpu.md").write_text("old\n<!-- by hand -->\n## What is reached\n")
    write_page(results, tmp_path)
    page = (tmp_path / "gpu.md").read_text()
    # 160,000 tokens in 16 s; the floor is 3 x 2 GB / 2 TB/s + 30 ms; 6e9 x 80,000 FLOPs in 2 s of 2 x 989e12 a second
    row = "| 10,000 | 8.00 | 5.00 (4.00 to 6.00) | 2.00 | 1.000 | 0.033 | 0.00 | 12.1% | update 3 | 42 |"
    assert f"| `ours2:0.5B:512` {row}" in page
    assert "| 0.031 | 0.00 | 8.1% |" in page  # a third of the bytes; frozen weights have no gradients
    assert "| `trl:0.5B:2048` | 10,000 | 8.00 | 4.00 (4.00 to 4.00) |" in page  # of two steps the first does not count
    assert "| `trl:0.5B:512` | failed |" in page
    assert page.endswith("<!-- by hand -->\n## What is reached\n")
    assert (tmp_path / "gpu.png").exists()
    label = _label("NVIDIA H200", "ours2:0.5B:512:model.lora.rank=8", "abc")
    assert label == "RLJob, 0.5B, 512 tokens, 2 x H200\nabc, lora.rank=8"

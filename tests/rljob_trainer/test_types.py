"""Groups cross processes as two arrays, whatever the number of their samples."""

import pickle

import numpy as np

from rljob_trainer.old_types import Group, Prompt, Sample


def test_a_group_is_the_same_after_it_crossed_a_process():
    prompt = Prompt("0/3", np.arange(5, dtype=np.int32), "test", {"target": 3}, {"split": "train"}, "abc")
    lengths = [3, 1, 0, 2]
    samples = tuple(
        Sample("0/3", index, np.arange(n, dtype=np.int32) + index, np.full(n, -index, np.float32), "length")
        for index, n in enumerate(lengths)
    )
    buffers: list[pickle.PickleBuffer] = []
    packed = pickle.dumps(Group(prompt, samples, 7), protocol=5, buffer_callback=buffers.append)
    assert len(buffers) <= 4, "the prompt's ids, and all samples' in one piece each"
    group = pickle.loads(packed, buffers=buffers)
    assert (group.prompt.id, group.prompt.ground_truth, group.policy_version) == ("0/3", {"target": 3}, 7)
    for before, after in zip(samples, group.samples, strict=True):
        assert (after.prompt_id, after.sample_index, after.finish_reason) == ("0/3", before.sample_index, "length")
        assert after.token_ids.dtype == np.int32
        assert after.log_probs.dtype == np.float32
        np.testing.assert_array_equal(after.token_ids, before.token_ids)
        np.testing.assert_array_equal(after.log_probs, before.log_probs)

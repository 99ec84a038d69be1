"""The position in the data: nothing is skipped, nothing comes twice, also over a restart."""

import json
from collections import Counter

import numpy as np
import pytest

from rljob_trainer.data.position import EpochOrder
from rljob_trainer.errors import DataError


def order(rows=5, *, seed=0, epochs=None, shuffle=True, fingerprint="f"):
    return EpochOrder(rows, seed=seed, fingerprint=fingerprint, shuffle=shuffle, epochs=epochs)


def restored(state, rows=5, **kwargs):
    new = order(rows, **kwargs)
    new.load_state_dict(json.loads(json.dumps(state)))  # as a checkpoint keeps it
    return new


def test_a_batch_may_span_two_epochs_and_each_epoch_has_each_row_once():
    stream = order(5)
    taken = [stream.take(3) for _ in range(5)]
    assert [len(batch) for batch in taken] == [3, 3, 3, 3, 3]
    assert {epoch for epoch, _ in taken[1]} == {0, 1}
    pairs = [pair for batch in taken for pair in batch]
    assert Counter(pairs) == Counter((epoch, row) for epoch in range(3) for row in range(5))


def test_one_batch_may_hold_several_epochs():
    assert order(2, shuffle=False).take(5) == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0)]


def test_epochs_are_shuffled_differently_and_the_order_follows_from_seed_and_epoch():
    first = [row for _, row in order(50).take(100)]
    assert first[:50] != first[50:]
    assert first == [row for _, row in order(50).take(100)]
    assert first != [row for _, row in order(50, seed=1).take(100)]
    assert first[50:] == np.random.default_rng([0, 1]).permutation(50).tolist()


def test_the_last_batch_of_bounded_epochs_is_short_and_exhaustion_is_explicit():
    stream = order(5, epochs=2)
    assert [len(stream.take(4)) for _ in range(2)] == [4, 4]
    assert not stream.exhausted
    assert len(stream.take(4)) == 2
    assert stream.exhausted
    assert stream.state_dict()["exhausted"] is True
    assert stream.take(4) == []


def test_exhaustion_is_known_with_the_last_row_not_one_batch_later():
    stream = order(4, epochs=1)
    stream.take(4)
    assert stream.exhausted


@pytest.mark.parametrize("epochs", [None, 3])
@pytest.mark.parametrize("before", range(16))
def test_a_resume_at_any_row_goes_on_as_if_nothing_happened(before, epochs):
    whole, first = order(5, epochs=epochs), order(5, epochs=epochs)
    expected = whole.take(20)
    head = first.take(before)
    second = restored(first.state_dict(), epochs=epochs)
    assert second.exhausted == first.exhausted
    assert head + second.take(20 - before) == expected


def test_the_position_at_the_end_of_an_epoch_stays_in_that_epoch():
    stream = order(5)
    stream.take(5)
    state = stream.state_dict()
    assert (state["epoch"], state["position"]) == (0, 5)
    assert restored(state).take(1)[0][0] == 1


def test_the_order_of_the_checkpoint_holds_even_if_the_spec_has_another_seed():
    stream = order(5, seed=3)
    stream.take(2)
    assert restored(stream.state_dict(), seed=4).take(8) == stream.take(8)


def test_more_epochs_after_the_end_go_on_with_the_next_one():
    stream = order(5, epochs=1)
    stream.take(5)
    again = restored(stream.state_dict(), epochs=2)
    assert not again.exhausted
    assert {epoch for epoch, _ in again.take(5)} == {1}


def test_changed_data_is_refused():
    state = order(5).state_dict()
    with pytest.raises(DataError, match=r"it had 5 usable rows and now has 6.*checkpoint\.resume: never"):
        restored(state, rows=6)
    with pytest.raises(DataError, match="their content differs"):
        restored(state, fingerprint="g")


def test_an_empty_epoch_is_a_mistake_of_the_caller():
    with pytest.raises(ValueError, match="at least one row"):
        order(0)

"""Buckets, their order and their memory, from another process and into real engines."""

import multiprocessing
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from rljob_trainer.engines.hf.engine import HfEngine
from rljob_trainer.errors import InfrastructureError
from rljob_trainer.types import Sampling
from rljob_trainer.weights.bucket import ALIGNMENT, BucketDescriptor, SharedMemoryHandle, TensorSlot
from rljob_trainer.weights.receiver import BucketReceiver
from rljob_trainer.weights.sender import WeightSender
from tests.rljob_trainer.rollout_support import (
    BUCKET_BYTES,
    RemoteEngine,
    answer,
    largest_gap,
    make_policy,
    random_prompts,
    requests,
    settings,
    sync,
    write_model_dir,
)
from tests.rljob_trainer.run_support import wait_until
from tests.rljob_trainer.weight_sync_processes import TENSORS, group_rank, send_weights


def received(tensors, dtype="float32", bucket_bytes=2048):
    """What one receiver copies out of each bucket, and the buckets."""
    receiver, copies, buckets = BucketReceiver(), {}, []
    receiver.begin(3)

    def deliver(bucket):
        bucket = pickle.loads(pickle.dumps(bucket))
        buckets.append(bucket)

        def acknowledged():  # reads as late as an engine may: the sender has packed the next bucket by now
            with receiver.open(bucket) as views:
                copies.update((name, view.clone()) for name, view in views)

        return acknowledged

    sent = WeightSender("cpu", dtype, bucket_bytes).send(tensors.items(), 3, deliver)
    assert receiver.finish(3) == set(tensors)
    return copies, buckets, sent


def test_tensors_arrive_whole_also_one_larger_than_a_bucket():
    copies, buckets, sent = received(TENSORS)
    assert [[slot.name for slot in bucket.slots] for bucket in buckets] == [
        ["small", "half"], ["large"], ["scalar", "counts", "last"],
    ]  # fmt: skip
    for name, tensor in TENSORS.items():
        expected = tensor.float() if tensor.is_floating_point() else tensor
        assert copies[name].dtype == expected.dtype
        assert torch.equal(copies[name], expected)
    assert all(slot.offset % ALIGNMENT == 0 for bucket in buckets for slot in bucket.slots)
    assert len(copies) == 6
    assert sent == 4 * (7 + 24 + 3000 + 1 + 300) + 8 * 3


def test_tensors_are_cast_to_the_engines_dtype():
    copies, _, sent = received({"w": torch.tensor([1.0, 1 / 3])}, dtype="bfloat16")
    assert torch.equal(copies["w"], torch.tensor([1.0, 1 / 3]).bfloat16())
    assert sent == 4


def test_an_acknowledgement_that_fails_ends_the_update_and_frees_the_memory():
    open_files = sum(1 for _ in Path("/proc/self/fd").iterdir())

    def deliver(_bucket):
        def acknowledged():
            raise InfrastructureError("the engine died")

        return acknowledged

    with pytest.raises(InfrastructureError, match="the engine died"):
        WeightSender("cpu", "float32", 2048).send(TENSORS.items(), 0, deliver)
    assert sum(1 for _ in Path("/proc/self/fd").iterdir()) == open_files


def bucket(version, index, handle=None):
    slot = TensorSlot("w", (1,), "float32", 0)
    return BucketDescriptor(version, index, (slot,), handle or SharedMemoryHandle(os.getpid(), 0, 4))


@pytest.mark.parametrize("wrong", [bucket(1, 1), bucket(0, 0), bucket(2, 0)], ids=["missed", "older", "newer"])
def test_a_bucket_out_of_turn_is_refused(wrong):
    receiver = BucketReceiver()
    receiver.begin(1)
    with pytest.raises(InfrastructureError, match="instead of bucket 0 of version 1"), receiver.open(wrong):
        pass


def test_a_repeated_bucket_is_refused(tmp_path):
    receiver = BucketReceiver()
    receiver.begin(1)
    with (tmp_path / "bytes").open("w+b") as file:
        file.truncate(4)
        first = bucket(1, 0, SharedMemoryHandle(os.getpid(), file.fileno(), 4))
        with receiver.open(first):
            pass
        with pytest.raises(InfrastructureError, match="bucket 0 of version 1 arrived"), receiver.open(first):
            pass


def test_a_sender_that_is_gone_is_named():
    receiver = BucketReceiver()
    receiver.begin(1)
    gone = bucket(1, 0, SharedMemoryHandle(2**22 + 1, 5, 4))
    with pytest.raises(InfrastructureError, match="cannot be opened"), receiver.open(gone):
        pass


def test_a_wrong_version_is_named():
    receiver = BucketReceiver()
    receiver.begin(5)
    with pytest.raises(InfrastructureError, match="update 6 ended while update 5"):
        receiver.finish(6)


def sync_from_another_process(engine, weights, version):
    ours, theirs = multiprocessing.get_context("forkserver").Pipe()
    trainer = multiprocessing.get_context("forkserver").Process(
        target=send_weights, args=(theirs, weights, version, BUCKET_BYTES), daemon=True
    )
    trainer.start()
    theirs.close()
    engine.begin_update(version)
    while isinstance(message := ours.recv(), BucketDescriptor):
        engine.load_bucket(message)
        ours.send("copied")
    engine.finish_update(version)
    trainer.join(timeout=30)
    assert trainer.exitcode == 0
    return message


def test_an_engine_follows_a_trainer_in_another_process(tmp_path):
    model_dir = write_model_dir(tmp_path)
    engine = HfEngine(settings("hf", model_dir))
    before = set(Path("/dev/shm").iterdir())
    sync(engine, make_policy(model_dir, 0), 0)
    torch.save(dict(make_policy(model_dir, 1).named_parameters()), tmp_path / "weights")
    sent = sync_from_another_process(engine, tmp_path / "weights", version=1)
    assert sent == sum(parameter.nbytes for parameter in make_policy(model_dir, 1).parameters())
    wanted = requests(random_prompts(4), Sampling(8))
    answers = answer(engine, wanted)
    assert engine.policy_version == 1
    assert largest_gap(make_policy(model_dir, 1), wanted, answers) < 2e-5
    assert largest_gap(make_policy(model_dir, 0), wanted, answers) > 0.5
    wait_until(lambda: set(Path("/dev/shm").iterdir()) <= before)  # other tests use it too


def test_ranks_of_a_group_send_together_and_the_first_delivers(tmp_path):
    context = multiprocessing.get_context("forkserver")
    results = context.Queue()
    ranks = [
        context.Process(target=group_rank, args=(rank, tmp_path / "store", results), daemon=True) for rank in range(2)
    ]
    for process in ranks:
        process.start()
    (_, bytes0, copies0, failure0), (_, bytes1, copies1, failure1) = sorted(results.get(timeout=60) for _ in ranks)
    for process in ranks:
        process.join(timeout=30)
    assert (bytes0, bytes1) == (
        sum(tensor.numel() * (8 if tensor.dtype == torch.int64 else 4) for tensor in TENSORS.values()),
        0,
    )
    assert np.array_equal(copies0["large"], TENSORS["large"].numpy())
    assert copies1 == {}
    assert failure0 == "no such engine"
    assert failure1 == "the rank that delivers weights to the engines failed"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("kind", ["hf", "vllm"])
def test_an_engine_on_the_gpu_follows_a_trainer_over_cuda_ipc(tmp_path, kind):
    """Two updates with a sleep between them."""
    if kind == "vllm":
        pytest.importorskip("vllm")
    model_dir = write_model_dir(tmp_path)
    engine = RemoteEngine(settings(kind, model_dir, device="cuda", gpu_memory_utilization=0.2, enforce_eager=True))
    wanted = requests(random_prompts(4), Sampling(8, temperature=0.8, top_p=0.9))
    for version in range(2):
        policy = make_policy(model_dir, version).cuda()
        sync(engine, policy, version)
        engine.wake()
        answers = answer(engine, wanted)
        assert largest_gap(policy, wanted, answers) < 5e-3  # matrix products of the two differ more than on a CPU
        engine.sleep()
    engine.close()

"""What the other processes of test_weight_sync.py run. Imports little, for each process pays for it again."""

from multiprocessing import Queue
from multiprocessing.connection import Connection
from pathlib import Path

import torch
import torch.distributed as dist

from rljob_trainer.errors import InfrastructureError
from rljob_trainer.weights.receiver import BucketReceiver
from rljob_trainer.weights.sender import WeightSender

TENSORS = {
    "small": torch.arange(7, dtype=torch.float32),
    "half": torch.arange(24, dtype=torch.bfloat16).view(2, 3, 4),
    "large": torch.arange(3000, dtype=torch.float32).view(30, 100),
    "scalar": torch.tensor(5.0),
    "counts": torch.tensor([1, 2, 2**40]),
    "last": torch.full((300,), 2.5),
}


def send_weights(connection: Connection, weights: Path, version: int, bucket_bytes: int) -> None:
    """A trainer: sends the descriptors of the saved `weights` over the pipe, waits there for each acknowledgement."""

    def deliver(bucket):
        connection.send(bucket)
        return connection.recv

    sent = WeightSender("cpu", "float32", bucket_bytes).send(torch.load(weights).items(), version, deliver)
    connection.send(sent)
    connection.close()


def group_rank(rank: int, store: Path, results: Queue) -> None:
    """One of two ranks that share a node; the second one's tensors are its own, and no engine reads them.

    Version 0 arrives, the delivery of version 1 fails. Puts (rank, bytes sent, what arrived, failure).
    """
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    receiver, copies = BucketReceiver(), {}
    receiver.begin(0)

    def deliver(bucket):
        if bucket.version == 1:
            raise InfrastructureError("no such engine")
        with receiver.open(bucket) as views:
            copies.update((name, view.numpy().copy()) for name, view in views)
        return lambda: None

    sender = WeightSender("cpu", "float32", 2048, dist.group.WORLD)
    sent = sender.send(((name, t + rank) for name, t in TENSORS.items()), 0, deliver)
    failure = ""
    try:
        sender.send(TENSORS.items(), 1, deliver)
    except InfrastructureError as error:
        failure = str(error)
    results.put((rank, sent, copies, failure))
    dist.destroy_process_group()

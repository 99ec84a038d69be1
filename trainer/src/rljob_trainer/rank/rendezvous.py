"""The store through which the ranks find each other. Rank 0 serves it, on its own address alone.

torch's store asks for no password. Its keys stand below a random prefix that Ray carries, which keeps out ranks of
other attempts, but torch lists the keys for everyone. So the network decides who reaches the port: loopback under
`rljob run`, the NetworkPolicy in a cluster.
"""

import secrets
import socket
from datetime import timedelta

import torch.distributed as dist

from rljob_trainer.rank.results import Rendezvous


def open_store(host: str) -> tuple[dist.Store, Rendezvous]:
    """Serve a store on `host`. Returns it and what the other ranks need. Raises OSError."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind, protocol) as listener:
        listener.bind(address)
        listener.listen(1024)  # ranks
        port = int(listener.getsockname()[1])
        server = dist.TCPStore(
            host, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach(), use_libuv=True
        )
    rendezvous = Rendezvous(host, port, secrets.token_hex(16))
    return dist.PrefixStore(rendezvous.prefix, server), rendezvous


def join_store(rendezvous: Rendezvous, timeout: timedelta) -> dist.Store:
    """The store of another rank. timeout: of each of its operations."""
    client = dist.TCPStore(rendezvous.host, rendezvous.port, is_master=False, timeout=timeout)
    return dist.PrefixStore(rendezvous.prefix, client)

"""The measurement as text, with the columns of nccl-tests. Light: no torch."""

from collections.abc import Iterator

from rljob_trainer.preflight.bandwidth import Speed
from rljob_trainer.preflight.measured import Gpu, Health, Measured, Pair
from rljob_trainer.preflight.rounds import MIB, Shape

_HEAD = f"{'operation':<16}{'size':>12}" + f"{'time':>12}{'algbw':>9}{'busbw':>9}{'#wrong':>8}" * 2
_UNITS = f"{'':<16}{'(B)':>12}" + f"{'(us)':>12}{'(GB/s)':>9}{'(GB/s)':>9}{'':>8}" * 2


def lines(measured: Measured, shape: Shape) -> list[str]:
    return [
        _title(measured, shape),
        *(f"# rank {each.rank} {each.host} {each.address} {each.gpu or 'CPU'}" for each in measured.places),
        "#",
        f"# {'':<26}{'out-of-place':^38}{'in-place':^38}".rstrip(),
        f"# {_HEAD}",
        f"# {_UNITS}".rstrip(),
        *(
            f"  {row.operation:<16}{row.nbytes:>12}{_speed(row.out_of_place)}{_speed(row.in_place)}"
            for row in measured.rows
        ),
        *_unmeasured(measured),
        *_pairs(measured, shape),
        *_health(measured),
    ]


def _title(measured: Measured, shape: Shape) -> str:
    where = f"{shape.ranks} rank{'s' * (shape.ranks > 1)} on {shape.nodes} node{'s' * (shape.nodes > 1)}"
    return f"# {where}; {measured.places[0].library}; float32, sum; {measured.seconds:.1f} s"


def _speed(speed: Speed | None) -> str:
    if speed is None:
        return f"{'N/A':>12}{'N/A':>9}{'N/A':>9}{'N/A':>8}"
    return f"{speed.seconds * 1e6:>12.1f}{speed.algorithm:>9.2f}{speed.bus:>9.2f}{speed.wrong:>8}"


def _unmeasured(measured: Measured) -> Iterator[str]:
    if measured.left_out is not None:
        yield f"# no time was left for sizes from {measured.left_out} B"
    if measured.hung is not None:
        yield f"# {measured.hung.operation} of {measured.hung.nbytes} B did not end"


def _pairs(measured: Measured, shape: Shape) -> Iterator[str]:
    yield f"#\n# pairs, {measured.pair_bytes / MIB:g} MiB in each direction"
    yield f"# {'ranks':<14}{'busbw (GB/s)':>14}{'#wrong':>8}"
    for pair in measured.pairs:
        yield f"  {named(pair, measured, shape)}"
    if measured.pairs_left_out:
        yield f"# no time was left for {measured.pairs_left_out} rounds of pairs"


def named(pair: Pair, measured: Measured, shape: Shape) -> str:
    """The pair with the hosts of its ranks, if there are several nodes."""
    ranks = " - ".join(map(str, pair.ranks))
    hosts = "" if shape.nodes == 1 else "  " + " - ".join(measured.places[rank].host for rank in pair.ranks)
    return f"{ranks:<14}{pair.bus:>14.2f}{pair.wrong:>8}{hosts}"


def _health(measured: Measured) -> Iterator[str]:
    yield "#\n# nodes"
    for each in measured.health:
        yield f"  rank {each.rank}: {'; '.join(_node(each))}"


def _node(health: Health) -> Iterator[str]:
    yield f"host memory {health.memory:.1f} GB/s"
    if health.disk_write is not None and health.disk_read is not None:
        yield f"disk write {health.disk_write:.2f}, read {health.disk_read:.2f} GB/s"
    if health.gpu is not None:
        yield from _gpu(health.gpu)
    yield from (f"not measured: {each}" for each in health.skipped)


def _gpu(gpu: Gpu) -> Iterator[str]:
    errors = (("corrected", gpu.ecc_corrected), ("uncorrected", gpu.ecc_uncorrected))
    yield "ECC errors " + ", ".join(f"{name} {'unknown' if count is None else count}" for name, count in errors)
    yield f"clocks SM {gpu.sm_clock} of {gpu.sm_clock_max} MHz, memory {gpu.memory_clock} MHz"

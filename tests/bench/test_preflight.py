"""The page of the preflight: two libraries side by side, one of which had less time."""

from bench.preflight import Run, page
from rljob_trainer.preflight.check import Limits, measure
from rljob_trainer.preflight.rounds import MIB, Shape
from tests.rljob_trainer.preflight_members import Told


def test_each_size_and_each_pair_has_a_row_and_each_library_its_columns() -> None:
    shape = Shape(1, 2)
    runs = [Run(measure(Told(shape), shape, Limits(MIB, largest, MIB, 60.0), 1.0), 2.0) for largest in (2 * MIB, MIB)]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page(runs, shape).splitlines() if "|" in line]
    collectives = [row for row in rows if len(row) == 6][2:]
    assert [row[:2] for row in collectives] == [
        [operation, size]
        for operation in ("all_gather", "all_reduce", "reduce_scatter", "sendrecv_ring")
        for size in ("1", "2")
    ]
    assert collectives[1] == ["all_gather", "2", "5.0", "5.0", "", ""]
    assert [row for row in rows if len(row) == 3][2:] == [["0 - 1", "10.0", "10.0"]]

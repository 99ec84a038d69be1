"""The preflight of an attempt: measure, record, and end the attempt if a node is slow or wrong."""

from dataclasses import replace
from datetime import UTC, datetime

import structlog

from rljob_api.conditions import Reason
from rljob_api.durations import parse_duration
from rljob_api.preflight import LISTED, BadNode, FabricPair, PreflightRecord
from rljob_api.v1alpha1 import FabricPreflight
from rljob_trainer.errors import FabricSlow, FabricWrong, InfrastructureError, on_volume
from rljob_trainer.preflight.check import CPU_LIMITS, GPU_LIMITS, Limits, measure
from rljob_trainer.preflight.measured import Measured, MemberFailed, Unanswered
from rljob_trainer.preflight.rounds import Shape
from rljob_trainer.preflight.table import lines
from rljob_trainer.preflight.verdict import Fault, Verdict, explanation, judge
from rljob_trainer.preflight.workers import RayMembers
from rljob_trainer.progress.reporter import ProgressReporter
from rljob_trainer.volume import Volume, write_json
from rljob_trainer.workers.context import START_SECONDS, WorkerContext
from rljob_trainer.workers.roster import living

log = structlog.get_logger()


def check_fabric(context: WorkerContext, volume: Volume, attempt: int, progress: ProgressReporter) -> None:
    """Before any process of this job has loaded a model; nothing if the job does not ask for it.

    Raises FabricSlow or FabricWrong naming the nodes, InfrastructureError if it cannot be measured.
    """
    wanted = context.spec.preflight.fabric
    if wanted is None:
        return
    if engines := sorted(living()):
        log.info("fabric_not_measured", reason="workers of an earlier attempt use the devices", workers=engines)
        return
    progress.phase("measuring the fabric")
    shape = Shape(context.spec.cluster.nodes, context.spec.cluster.ranks_per_node)
    measured = _measured(context, shape, _limits(wanted, context.device_type, volume))
    verdict = judge(measured, shape, wanted.min_bus_bandwidth or 0.0)
    record = _record(measured, verdict, shape, wanted)
    _write(volume, attempt, record, "\n".join(lines(measured, shape)))
    _warn_of_errors(measured)
    log.info("fabric_measured", **record.model_dump(include={"passed", "reason", "seconds"}))
    if not record.passed:
        raise FabricWrong(record.message) if verdict.wrong else FabricSlow(record.message)


def _limits(wanted: FabricPreflight, device: str, volume: Volume) -> Limits:
    limits = GPU_LIMITS if device == "cuda" else CPU_LIMITS
    return replace(
        limits,
        seconds=parse_duration(wanted.time_limit),
        minimum=wanted.min_bus_bandwidth or 0.0,
        folder=str(volume.root),
    )


def _measured(context: WorkerContext, shape: Shape, limits: Limits) -> Measured:
    try:
        with RayMembers(context, shape, max(limits.largest, limits.pair)) as members:
            return measure(members, shape, limits, START_SECONDS)
    except Unanswered as error:
        raise InfrastructureError(f"the fabric preflight: {error}; check these ranks' nodes") from error
    except MemberFailed as error:
        raise InfrastructureError(f"the fabric preflight: {error}") from error


def _warn_of_errors(measured: Measured) -> None:
    for each in measured.health:
        if each.gpu is not None and each.gpu.ecc_uncorrected:
            host = measured.places[each.rank].host
            log.warning("gpu_memory_errors", rank=each.rank, host=host, uncorrected=each.gpu.ecc_uncorrected)


def _record(measured: Measured, verdict: Verdict, shape: Shape, wanted: FabricPreflight) -> PreflightRecord:
    slowest = sorted(measured.pairs, key=lambda pair: pair.bus)
    listed = verdict.faults or tuple(Fault(pair.ranks, pair.bus, pair.wrong) for pair in slowest)
    first = [measured.places[node * shape.per_node] for node in verdict.nodes]
    return PreflightRecord(
        passed=verdict.passed,
        reason=None if verdict.passed else Reason.FABRIC_WRONG if verdict.wrong else Reason.FABRIC_SLOW,
        message=explanation(verdict, measured, shape, wanted.min_bus_bandwidth or 0.0),
        bad_nodes=[BadNode(host=place.host, address=place.address) for place in first[:LISTED]],
        pairs=[_pair(fault, measured) for fault in listed[:LISTED]],
        time=datetime.now(UTC),
        seconds=measured.seconds,
    )


def _pair(fault: Fault, measured: Measured) -> FabricPair:
    return FabricPair(
        hosts=[measured.places[rank].host for rank in fault.ranks],
        ranks=list(fault.ranks),
        bus_bandwidth=fault.bus,
        wrong_elements=fault.wrong,
    )


def _write(volume: Volume, attempt: int, record: PreflightRecord, table: str) -> None:
    with on_volume("the fabric preflight cannot be recorded"):
        volume.preflight_table(attempt).parent.mkdir(parents=True, exist_ok=True)
        volume.preflight_table(attempt).write_text(f"{table}\n")
        write_json(volume.preflight_record(attempt), record.model_dump(mode="json", by_alias=True))

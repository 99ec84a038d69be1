"""The shape of a run with `rljob run`, which replaces the shape of the cluster."""

from rljob_api.schema import structural_schema, with_defaults
from rljob_api.v1alpha1 import RLJobSpec
from rljob_api.validation.problems import InvalidRLJob, Problem
from rljob_api.validation.rules import rule_findings
from rljob_api.validation.source import dotted
from rljob_api.validation.structure import broken_fields, findings


def with_ranks(spec: RLJobSpec, ranks: int, *, gpus: bool) -> RLJobSpec:
    """`spec` on one machine with `ranks` trainer processes, with one GPU each or all on CPUs.

    Raises InvalidRLJob if the batches or engines of the spec do not fit that number of ranks.
    """
    schema = structural_schema(RLJobSpec)
    written = with_defaults(schema, spec.model_dump(mode="json", by_alias=True))
    written["cluster"] = {"nodes": 1, "ranksPerNode": ranks, "gpusPerNode": ranks if gpus else 0}
    found = list(findings(schema, written, ("spec",)))
    found += rule_findings(schema, written, broken_fields(found), ("spec",))
    if found:
        source = f"--ranks {ranks}"
        raise InvalidRLJob(Problem(source, None, None, dotted(one.path), one.message, one.remedy) for one in found)
    return RLJobSpec.model_validate(written, strict=True, by_alias=True, by_name=False)

"""Some of `make fuzz`: malformed RLJobs are refused with the name of a field, or are good for everybody."""

from pathlib import Path

from kubernetes.client import ApiClient

from e2e.cluster.access import Access
from e2e.fuzz.mutations import mutants
from e2e.fuzz.reconciling import reconciler
from e2e.fuzz.seeds import seeds
from e2e.fuzz.verdicts import judge

COUNT = 500


def test_each_is_refused_with_the_name_of_a_field_or_good_for_everybody(
    cluster: Access, client: ApiClient, tmp_path: Path
) -> None:
    verdicts = [(mutant, judge(client, mutant.document)) for mutant in mutants(seeds(), COUNT, 7)]

    assert {str(mutant): verdict.findings for mutant, verdict in verdicts if verdict.findings} == {}
    admitted = [mutant for mutant, verdict in verdicts if verdict.admitted]
    assert COUNT / 20 < len(admitted) < COUNT / 2, "else it says nothing of one side"
    with reconciler(cluster, client, tmp_path) as operator:
        assert [f"{mutant}: {finding}" for mutant, finding in operator.findings(admitted)] == []

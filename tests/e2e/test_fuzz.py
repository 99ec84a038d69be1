"""Some of `make fuzz`: malformed RLJobs are refused with the name of a field, or are good for everybody."""

from kubernetes.client import ApiClient

from e2e.fuzz.mutations import mutants
from e2e.fuzz.seeds import seeds
from e2e.fuzz.verdicts import judge

COUNT = 500


def test_each_is_refused_with_the_name_of_a_field_or_good_for_everybody(client: ApiClient) -> None:
    verdicts = {str(mutant): judge(client, mutant.document) for mutant in mutants(seeds(), COUNT, 7)}

    assert {name: verdict.findings for name, verdict in verdicts.items() if verdict.findings} == {}
    admitted = sum(verdict.admitted for verdict in verdicts.values())
    assert COUNT / 20 < admitted < COUNT / 2, "else it says nothing of one side"

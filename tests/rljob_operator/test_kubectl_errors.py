"""What stops `kubectl rljob` is one line that names the remedy."""

import os
import socket
import subprocess
from dataclasses import replace

import pytest
import yaml
from typer.testing import CliRunner

from rljob_operator.kubectl import app
from rljob_operator.kubectl.calls import Kubectl, Problem

COMMANDS = [["describe"], ["logs"], ["events"], ["checkpoints"], ["suspend"], ["resume"]]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_a_job_that_is_not_there(shell, command):
    missing = f"there is no RLJob gsm8k in namespace {shell.namespace}; see kubectl rljob list --all-namespaces"
    assert shell.error(*command, "gsm8k") == missing


def test_a_misspelt_job(shell, jobs):
    jobs.create("gsm8k-grpo")
    assert shell.error("describe", "gsm8k-gpro").endswith("; did you mean gsm8k-grpo?")


@pytest.mark.parametrize("name", ["-A", "", "Gsm8k", "a/b", "pod/gsm8k", "a b", "--all"])
def test_what_is_no_name_never_reaches_kubectl(name):
    said = f"{name!r} is no name of an RLJob: lowercase letters, digits and '-'; see kubectl rljob list"
    assert str(CliRunner().invoke(app, ["describe", "--", name]).exception) == said


@pytest.mark.parametrize("kind", ["rljob", "rljobs", "rlj", "rljob.rljob.dev", "rljobs.rljob.dev"])
def test_a_name_may_be_as_kubectl_prints_it(shell, jobs, kind):
    jobs.create()
    said = "job has no pods, and gets none until it is resumed; --wait waits until the operator has seen it\n"
    assert shell.output("suspend", f"{kind}/job") == said


def test_no_permission(shell, cluster, tmp_path):
    cluster.kubectl("create", "serviceaccount", "nobody", f"--namespace={shell.namespace}")
    nobody = replace(shell, access=cluster.as_service_account(shell.namespace, "nobody", tmp_path / "kubeconfig"))
    words = nobody.error("list")
    assert 'cannot list resource "rljobs" in API group "rljob.dev"' in words
    assert words.endswith("; ask for the role view in this namespace, or edit to change and to run commands")


def test_no_cluster_and_no_such_context(shell, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        nobody_listens = taken.getsockname()[1]
    config = tmp_path / "kubeconfig"
    config.write_text(yaml.safe_dump(kubeconfig(f"https://127.0.0.1:{nobody_listens}")))
    elsewhere = replace(shell, access=replace(shell.access, kubeconfig=config, context=None))
    for arguments in (["list"], ["list", "--context=nope"]):
        assert elsewhere.error(*arguments).endswith("; choose a cluster that answers with KUBECONFIG or --context")


def kubeconfig(server):
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "c",
    }


@pytest.fixture
def pod(shell, tmp_path, monkeypatch):
    """We run in a pod of the namespace: kubectl has the cluster and the namespace, and no context to tell of."""
    settings = shell.access.settings()
    settings["contexts"][0]["context"]["namespace"] = shell.namespace
    config, kubectl, namespace = tmp_path / "kubeconfig", tmp_path / "kubectl", tmp_path / "namespace"
    config.write_text(yaml.safe_dump(settings))
    kubectl.write_text(
        f"""#!/bin/sh
[ "$1" = config ] && export KUBECONFIG={os.devnull} || export KUBECONFIG={config}
exec {shell.folder / "kubectl"} "$@"
"""
    )
    kubectl.chmod(0o755)
    namespace.write_text(f"{shell.namespace}\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("KUBECACHEDIR", str(tmp_path / "cache"))
    monkeypatch.delenv("POD_NAMESPACE", raising=False)
    monkeypatch.setattr("rljob_operator.kubectl.calls.NAMESPACE_FILE", namespace)
    return namespace


def test_in_a_pod_the_namespace_is_its_own(shell, pod):
    listed = CliRunner().invoke(app, ["list"])
    assert (listed.exit_code, listed.stderr) == (0, f"there are no RLJobs in namespace {shell.namespace}\n")
    words = f"{CliRunner().invoke(app, ['describe', 'gsm8k']).exception}"
    assert words.startswith(f"there is no RLJob gsm8k in namespace {shell.namespace}; ")


def test_which_namespace_kubectl_takes_without_a_context(pod, monkeypatch):
    monkeypatch.setenv("POD_NAMESPACE", "chosen")
    assert Kubectl().current_namespace() == "chosen"
    pod.unlink()
    assert Kubectl().current_namespace() == "default", "nowhere but in a pod"
    assert Kubectl("named").current_namespace() == "named"


def test_a_cluster_without_the_kind(shell, monkeypatch):
    for name, value in shell.environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(Problem) as raised:
        Kubectl(context=shell.access.context).get("others.rljob.dev")
    assert str(raised.value) == (
        "this cluster has no RLJobs; install the operator's chart, or choose another --context"
    )


def test_no_kubectl(shell, tmp_path):
    alone = tmp_path / "kubectl-rljob"
    alone.symlink_to(shell.folder / "kubectl-rljob")
    failed = subprocess.run(
        [alone, "list"], env={**shell.environment, "PATH": os.devnull}, capture_output=True, text=True, check=False
    )
    assert (failed.returncode, failed.stderr) == (1, "error: there is no kubectl on the PATH; install it\n")


def test_who_asks_for_two_containers_is_told_to_name_one(shell):
    assert (
        shell.error("logs", "job", "--head", "--agent") == "--worker, --head and --agent exclude each other; name one"
    )

"""Which API server, and with which token: from kubeconfigs as people have them."""

from pathlib import Path

import pytest
import yaml
from kubernetes.aio.config import incluster_config

from rljob_operator.kube.client import Kube
from rljob_operator.kube.connection import Connection
from rljob_operator.kube.errors import NoCluster
from rljob_operator.kube.kinds import POD
from tests.rljob_operator.kube_server import KubeServer
from tests.rljob_operator.loops import in_loop


def kubeconfig(folder: Path, server: KubeServer) -> Path:
    """Two contexts: `here` with a token in a file, and `nowhere`, which is the current one."""
    (folder / "token").write_text("first")
    config = {
        "current-context": "nowhere",
        "contexts": [
            {"name": "here", "context": {"cluster": "here", "user": "me"}},
            {"name": "nowhere", "context": {"cluster": "nowhere", "user": "me"}},
        ],
        "clusters": [
            {"name": "here", "cluster": {"server": f"http://127.0.0.1:{server.port}"}},
            {"name": "nowhere", "cluster": {"server": "http://127.0.0.1:1"}},
        ],
        "users": [{"name": "me", "user": {"tokenFile": str(folder / "token")}}],
    }
    path = folder / "config"
    path.write_text(yaml.safe_dump(config))
    return path


@in_loop
async def test_a_context_is_chosen_by_name_and_its_token_file_read_again_when_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with KubeServer() as server:
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path, server)))
        async with await Connection.open(context="here") as connection:
            await Kube(connection).list(POD)
            server.token = "rotated"
            (tmp_path / "token").write_text("rotated")
            await Kube(connection).list(POD)
        sent = [request.headers["Authorization"] for request in server.requests]
    assert sent == ["Bearer first", "Bearer first", "Bearer rotated"]


@in_loop
async def test_a_missing_kubeconfig_or_context_says_what_to_set(tmp_path: Path) -> None:
    with pytest.raises(NoCluster, match="set KUBECONFIG"):
        await Connection.open(str(tmp_path / "none"))
    async with KubeServer() as server:
        with pytest.raises(NoCluster, match="other"):
            await Connection.open(str(kubeconfig(tmp_path, server)), "other")


NO_CERTIFICATE = """\
current-context: here
contexts: [{name: here, context: {cluster: here, user: me}}]
clusters: [{name: here, cluster: {server: "https://127.0.0.1:1", certificate-authority-data: bm9uZQ==}}]
users: [{name: me, user: {token: a}}]
"""


@pytest.mark.parametrize(
    "text", ["", "words", "[1, 2]", "a: [", "\0", "current-context: here\ncontexts: 7\nclusters: 7\n", NO_CERTIFICATE]
)
@in_loop
async def test_a_malformed_kubeconfig_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "config").write_text(text)
    with pytest.raises(NoCluster, match=f"the kubeconfig {tmp_path / 'config'} cannot be read: .+") as raised:
        await Connection.open(str(tmp_path / "config"))
    assert "\n" not in str(raised.value)


@in_loop
async def test_so_is_what_a_pod_has_of_its_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("HOST", "127.0.0.1"), ("PORT", "1")):
        monkeypatch.setenv(f"KUBERNETES_SERVICE_{name}", value)
    monkeypatch.delenv("KUBECONFIG", raising=False)
    for name in ("token", "ca.crt"):
        (tmp_path / name).write_text("none")
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(tmp_path / "ca.crt"))
    with pytest.raises(NoCluster, match="the token or certificate of this pod's account cannot be read: "):
        await Connection.open()

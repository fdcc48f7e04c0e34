"""What is particular to sandboxes on other machines: manifests, first processes, failures of servers, memory."""

import asyncio
import dataclasses
import json
import os

import kubernetes_validate
import pytest

from k2jax.agents.sandbox import Limits, SandboxError, SandboxSpec
from k2jax.agents.sandbox.backends import make_backend
from k2jax.agents.sandbox.e2b import E2BBackend, E2BOptions
from k2jax.agents.sandbox.pod import FIRST_PROCESS, POLICY, PodOptions, pod_manifest, policy_manifests
from k2jax.errors import UserError
from tests.agents.sandbox.backends import REMOTE, backend, in_sandbox, open_sandbox, python, sandboxed

every_backend = pytest.mark.parametrize("name", REMOTE)


AT_GATEWAY = PodOptions(gateway="app.kubernetes.io/name=trainer:8900-8999", gateway_namespace="training")


@pytest.mark.parametrize("options", [PodOptions(), PodOptions(user_namespaces=False, runtime_class="kata"), AT_GATEWAY])
def test_manifests_are_valid_and_leave_a_pod_no_rights_no_token_and_no_network(options):
    spec = SandboxSpec(image="registry/image:1", limits=Limits(memory=5 << 20, disk=3 << 20))
    pod = pod_manifest("name", spec, options)
    for manifest in (pod, *policy_manifests(options)):
        kubernetes_validate.validate(manifest, "1.33", strict=True)
    inside = pod["spec"]
    assert inside["automountServiceAccountToken"] is inside["enableServiceLinks"] is False
    assert not any(inside[key] for key in ("hostNetwork", "hostPID", "hostIPC"))
    assert inside["hostUsers"] is not options.user_namespaces and inside["activeDeadlineSeconds"] == options.lifetime
    assert inside["securityContext"]["runAsNonRoot"] and inside["securityContext"]["seccompProfile"]
    (container,) = inside["containers"]
    assert container["image"] == "registry/image:1"
    assert container["resources"]["limits"]["memory"] == str(5 << 20)
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert not container["securityContext"]["allowPrivilegeEscalation"]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert {mount["mountPath"] for mount in container["volumeMounts"]} == {"/work", "/tmp", "/dev/shm"}
    assert inside.get("runtimeClassName", "") == options.runtime_class
    policy = policy_manifests(options)[0]["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"] and not policy.keys() & {"ingress", "egress"}
    assert policy["podSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()


def test_a_gateway_is_the_one_thing_that_pods_reach_which_are_to_reach_it():
    _, policy = policy_manifests(AT_GATEWAY)
    rules = policy["spec"]
    assert rules["policyTypes"] == ["Egress"]
    assert rules["egress"] == [
        {
            "to": [
                {
                    "podSelector": {"matchLabels": {"app.kubernetes.io/name": "trainer"}},
                    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "training"}},
                }
            ],
            "ports": [{"protocol": "TCP", "port": 8900, "endPort": 8999}],
        }
    ]
    selected = rules["podSelector"]["matchLabels"].items()
    others = [PodOptions(), PodOptions(gateway="app=other:8900"), PodOptions(gateway=AT_GATEWAY.gateway)]
    assert selected <= pod_manifest("name", SandboxSpec(), AT_GATEWAY)["metadata"]["labels"].items()
    for options in others:
        assert not selected <= pod_manifest("name", SandboxSpec(), options)["metadata"]["labels"].items()
    for wrong in ("8900", "app=x", "app=x:0", "app=x:9000-8000", "app=x:70000", "a b=x:1"):
        with pytest.raises(UserError, match="names no pods and ports"):
            PodOptions(gateway=wrong)


def test_the_first_process_of_a_pod_waits_and_leaves_no_zombies_and_survives_what_kills_all_others():
    """The shell is the first process of a namespace here too; a child that it had before plays the command."""
    child = """
i=0; while [ $i -lt 20 ]; do (sh -c 'exit 0' &) ; i=$((i + 1)); done
sleep 0.3
grep -l '^State:.*Z' /proc/[0-9]*/status | wc -l > /work/zombies
(setsid sleep 60 &)
trap '' HUP INT TERM; while kill -9 -1 2>/dev/null; do :; done
set -- /proc/[0-9]*; echo $# > /work/left
"""

    async def use(sandbox):
        script = f"(sleep 0.1; {child}) & exec /bin/sh -c {json.dumps(FIRST_PROCESS).replace('$', chr(92) + '$')}"
        process = await sandbox.start(["/bin/sh", "-c", script], first=True)
        for _ in range(500):
            if "left" in await sandbox.list("/work") and await sandbox.read("left"):
                break
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        assert not process._ended.done()
        left = await sandbox.read("zombies"), int(await sandbox.read("left"))
        await process.kill()
        return left

    zombies, left = in_sandbox("bubblewrap", use)
    assert zombies == b"0\n"
    assert left == 2  # the first process, and the one that kills and counts without another


def test_what_a_backend_needs_is_said_in_one_line(monkeypatch):
    monkeypatch.delenv("E2B_API_KEY", raising=False)
    with pytest.raises(UserError, match="E2B_API_KEY"):
        make_backend("e2b")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r'pip install "k2jax\[kubernetes\]"'):
        make_backend("kubernetes")
    with pytest.raises(UserError, match=r'pip install "k2jax\[client\]"'):
        make_backend("e2b")


def test_without_a_cluster_the_user_is_told_how_to_name_one(monkeypatch, tmp_path):
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "missing"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setattr("os.path.exists", lambda path: os.path.lexists(path) and "kube" not in str(path))
    with pytest.raises(UserError, match="KUBECONFIG"):
        asyncio.run(make_backend("kubernetes").open(SandboxSpec()))


def test_a_key_is_not_in_what_options_print():
    assert "secret" not in repr(E2BOptions(api_key="secret"))


@every_backend
def test_files_of_this_machine_cannot_be_shown_on_another(name):
    with pytest.raises(UserError, match="read_only"):
        asyncio.run(backend(name).open(SandboxSpec(read_only=("/usr",))))


@pytest.mark.slow
def test_a_pod_gets_what_its_spec_says_behind_a_policy_and_is_deleted():
    async def use(sandbox):
        return sandbox.name

    fake = backend("kubernetes").fake
    name = in_sandbox("kubernetes", use, SandboxSpec(image="my/image", limits=Limits(memory=64 << 20)))
    assert list(fake.policies) == [POLICY] and fake.requests[-1]["metadata"]["name"] == name
    assert fake.requests[-1]["spec"]["containers"][0]["image"] == "my/image"
    assert not fake.pods and not fake.machines


@pytest.mark.slow
def test_a_command_that_ends_its_container_for_memory_says_so_and_the_next_finds_its_files():
    async def use(sandbox):
        await sandbox.write("kept", b"kept")
        for _ in range(2):
            result = await sandbox.exec(python("x = []\nwhile True: x.append(bytearray(b'x' * (1 << 20)))"), timeout=20)
            assert (result.code, result.out_of_memory, result.timed_out) == (137, True, False)
            assert (await sandbox.exec(["cat", "kept"])).stdout == b"kept"
        killed = await sandbox.exec(["sh", "-c", "kill -9 $$"])
        assert (killed.code, killed.out_of_memory) == (137, False)

    in_sandbox("kubernetes", use, SandboxSpec(limits=Limits(memory=96 << 20)))


@pytest.mark.slow
@pytest.mark.parametrize(("image", "message"), [("my/forbidden", "is forbidden"), ("my/never", "ErrImagePull")])
def test_a_pod_that_does_not_start_is_a_failure_of_the_sandbox_and_is_deleted(image, message):
    made = backend("kubernetes")
    whole, made.options = made.options, dataclasses.replace(made.options, start_timeout=0.5)
    try:
        with pytest.raises(SandboxError, match=message):
            asyncio.run(made.open(SandboxSpec(image=image)))
    finally:
        made.options = whole
    assert not made.fake.pods


@pytest.mark.slow
async def test_a_pod_that_somebody_deletes_is_a_failure_of_the_sandbox():
    sandbox = await open_sandbox("kubernetes")
    running = asyncio.create_task(sandbox.exec(["sleep", "30"], timeout=30))
    await asyncio.sleep(0.5)
    core = sandbox._clients.core
    await core.delete_namespaced_pod_without_preload_content(sandbox.name, "k2jax-sandboxes")
    with pytest.raises(SandboxError):
        await running
    with pytest.raises(SandboxError):
        await sandbox.exec(["true"])
    await sandbox.close()


@pytest.mark.slow
def test_a_template_or_a_key_that_does_not_exist_is_a_failure_of_the_sandbox():
    made = backend("e2b")
    with pytest.raises(SandboxError, match="404"):
        asyncio.run(made.open(SandboxSpec(image="my/missing")))
    with pytest.raises(SandboxError, match="401"):
        asyncio.run(E2BBackend(dataclasses.replace(made.options, api_key="wrong")).open(SandboxSpec()))
    with pytest.raises(SandboxError, match="failed"):
        asyncio.run(E2BBackend(dataclasses.replace(made.options, api_url="http://127.0.0.1:9")).open(SandboxSpec()))


@sandboxed((REMOTE[0], "e2b"))
async def test_words_that_cannot_be_sent_are_the_commands_mistake(sandbox):
    for word in ("\udcff", "x" * 131_072, "a\0b"):
        assert (await sandbox.exec(["echo", word])).code == 127
    assert (await sandbox.exec(["echo", "ü\n'\"$x"])).stdout.decode() == "ü\n'\"$x\n"
    await sandbox.write("a/b", b"x")
    assert (await sandbox.list("a"), await sandbox.read("a/b")) == (["b"], b"x")

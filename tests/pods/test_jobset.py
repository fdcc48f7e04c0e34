"""JobSet manifests: Kubernetes' own schemas, what a restart mends, and text that arrives as it was typed."""

import json
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
import jsonschema
import kubernetes_validate
import pytest
import yaml

from k2jax.pods.jobset import CONTAINER, jobset, jobset_script
from k2jax.pods.yaml_text import dump
from tests.pods.runs import bash, expand, fake_commands, folder_parts, run, texts

SCHEMA = yaml.safe_load((Path(__file__).parent / "jobset_schema.yaml").read_text())
RUNS = {
    "v5p": run(),
    "two slices of tpu7x": run(tpu="tpu7x:4x4x8", slices=2, capacity="spot"),
    "one host": run(tpu="v6e:2x2", capacity="flex", service_account="trainer"),
    "reserved": run(tpu="v5e-256", capacity="reserved", reservation="mine", environment=(("A", "1"),)),
    "engines and workers": run(engines="v5p-128", engine_slices=2, workers=3, machine="n2-standard-32", secret="keys"),
    "no TPU": run(tpu=None, machine="n2-standard-32", module="k2jax.rollout"),
}


def pod_of(manifest):
    (slices,) = manifest["spec"]["replicatedJobs"]
    return slices["template"]["spec"]["template"]["spec"]


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("version", ["1.31", "1.37"])
def test_manifests_follow_the_schemas(name, version):
    manifest = jobset(RUNS[name])
    jsonschema.validate(manifest, SCHEMA)
    for each in manifest["spec"]["replicatedJobs"]:
        job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": manifest["metadata"], **each["template"]}
        kubernetes_validate.validate(job, version, strict=True)


@pytest.mark.parametrize("spoil", [("spec", "failurPolicy"), ("spec", "replicatedJobs", 0, "parallelism")])
def test_the_jobset_schema_refuses_what_it_does_not_know(spoil):
    manifest = jobset(run())
    place = manifest
    for key in spoil[:-1]:
        place = place[key]
    place[spoil[-1]] = 1
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(manifest, SCHEMA)


@pytest.mark.parametrize(
    ("code", "restarted"), [(1, True), (2, False), (3, False), (134, True), (137, True), (143, True)]
)
def test_what_a_restart_cannot_mend_is_not_restarted(code, restarted):
    """Follows Kubernetes' rules: the first matching rule of the Job, then of the JobSet, else a restart."""
    spec = jobset(run(max_restarts=7))["spec"]
    job = spec["replicatedJobs"][0]["template"]["spec"]
    assert job["backoffLimit"] == 0 and pod_of({"spec": spec})["restartPolicy"] == "Never"
    reason = "BackoffLimitExceeded"
    for rule in job["podFailurePolicy"]["rules"]:
        on = rule["onExitCodes"]
        assert on["containerName"] == CONTAINER and on["operator"] == "In"
        if code in on["values"]:
            reason = {"FailJob": "PodFailurePolicy"}[rule["action"]]
    actions = [r["action"] for r in spec["failurePolicy"]["rules"] if reason in r["onJobFailureReasons"]]
    assert actions == ([] if restarted else ["FailJobSet"])
    assert spec["failurePolicy"]["maxRestarts"] == 7
    assert spec["failurePolicy"]["restartStrategy"] == "BlockingRecreate"


def test_pods_are_the_slices_hosts_on_its_nodes():
    manifest = jobset(run(tpu="tpu7x:4x4x8", slices=3, capacity="spot", grace_seconds=90, service_account="trainer"))
    (slices,) = manifest["spec"]["replicatedJobs"]
    job, pod = slices["template"]["spec"], pod_of(manifest)
    assert slices["replicas"] == 3 and job["parallelism"] == job["completions"] == 32
    assert job["completionMode"] == "Indexed"
    assert pod["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": "tpu7x",
        "cloud.google.com/gke-tpu-topology": "4x4x8",
        "cloud.google.com/gke-spot": "true",
    }
    assert pod["containers"][0]["resources"]["limits"] == {"google.com/tpu": 4}
    assert pod["terminationGracePeriodSeconds"] == 90 and pod["serviceAccountName"] == "trainer"
    assert [t["key"] for t in pod["tolerations"]] == ["google.com/tpu", "cloud.google.com/gke-spot"]
    exclusive = {"alpha.jobset.sigs.k8s.io/exclusive-topology": "cloud.google.com/gke-nodepool"}
    assert slices["template"]["metadata"]["annotations"] == exclusive
    assert "metadata" not in jobset(run(tpu="v6e:2x2"))["spec"]["replicatedJobs"][0]["template"]
    flex = pod_of(jobset(run(capacity="flex")))["nodeSelector"]
    assert flex["cloud.google.com/gke-flex-start"] == "true" and len(pod_of(jobset(run()))["nodeSelector"]) == 2
    eight = jobset(run(tpu="v6e:2x4"))["spec"]["replicatedJobs"][0]["template"]["spec"]
    assert eight["parallelism"] == eight["completions"] == 2  # nodes of four chips, though VMs have eight


def test_the_bucket_is_mounted_where_the_workdir_points():
    manifest = jobset(run(workdir="gs://my.bucket_1/a b/c/"))
    pod = pod_of(manifest)
    volume = next(v for v in pod["volumes"] if "csi" in v)
    assert volume["csi"]["driver"] == "gcsfuse.csi.storage.gke.io"
    assert volume["csi"]["volumeAttributes"]["bucketName"] == "my.bucket_1"
    (container,) = pod["containers"]
    mounts = {m["name"]: m["mountPath"] for m in container["volumeMounts"]}
    assert mounts[volume["name"]] == "/gcs/my.bucket_1"
    assert "--workdir=/gcs/my.bucket_1/a b/c" in container["command"]
    annotations = manifest["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["metadata"]["annotations"]
    assert annotations["gke-gcsfuse/volumes"] == "true"


@given(st.lists(texts, max_size=4), folder_parts, st.lists(texts, max_size=2))
@settings(max_examples=60, deadline=None)
def test_any_text_reaches_the_trainer_as_typed(arguments, folder, values):
    spec = run(
        arguments=tuple(arguments),
        workdir=f"gs://bucket/{folder}/x",
        environment=tuple((f"V{i}", value) for i, value in enumerate(values)),
    )
    script = jobset_script(spec)
    document = script.split("<< 'END", 1)[1].split("\n", 1)[1].rsplit("\n", 2)[0]
    (container,) = pod_of(yaml.safe_load(document))["containers"]
    known = {"HOME": "/root", "A": "a"}
    for pair in container["env"]:
        known[pair["name"]] = expand(pair["value"], known)
    assert {name: known[name] for name in spec.variables} == spec.variables
    words = [expand(word, known) for word in container["command"]]
    assert words == ["python", "-m", "k2jax.train", f"--workdir=/gcs/bucket/{folder}/x", *arguments]


@given(
    st.recursive(texts | st.integers() | st.booleans(), lambda inner: st.lists(inner) | st.dictionaries(texts, inner))
)
@settings(max_examples=60, deadline=None)
def test_yaml_is_read_back(value):
    text = dump(value)
    assert yaml.safe_load(text) == value
    text.encode()


def test_text_that_looks_like_something_else_is_quoted():
    for word in ("1e3", "0o17", "no", "On", "null", "~", "8x8", "2026-11-22", "=", ".5", "1_000", "a: b", "a #b", "-"):
        assert dump({"key": word}) == f"key: {json.dumps(word)}\n"
    assert dump({"key": "plain.word/x-1"}) == "key: plain.word/x-1\n"


def test_kubectl_gets_the_manifest_after_the_clusters_credentials(tmp_path):
    environment = fake_commands(tmp_path, gcloud='echo "$@" >> $T/calls', kubectl='echo "$@" >> $T/calls; cat > $T/in')
    spec = run(arguments=("--config=x.py", "--config.a=l\nEND\nm"))
    done = bash(jobset_script(spec), environment)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "calls").read_text().splitlines() == [
        "container clusters get-credentials my-cluster --location=us-east5-a --project=my-project",
        "create --filename=-",
    ]
    assert yaml.safe_load((tmp_path / "in").read_text()) == jobset(spec)

"""As whom the ranks of a job run in a cluster, and what a strict namespace refuses before anything is submitted."""

from __future__ import annotations

import pytest

from tests.e2e import jobs
from tests.e2e.place import Place

pytestmark = pytest.mark.slow

NAMED = f"""
name: known
image: {jobs.PYTHON}
security:
  user: 2000
  group: 3000
  fs_group: 4000
  user_name: ada
  group_name: lab
  annotations: {{iam.gke.io/gcp-service-account: trainer@project.example}}
run: |
  whoami
  id -Gn
  python3 -c "import os, pwd; home = pwd.getpwuid(os.getuid()).pw_dir; os.mkdir(home + '/x'); print(home)"
  wc -c < /var/run/secrets/kubernetes.io/serviceaccount/token > /dev/null && echo has a token
"""


def test_ids_have_names_and_runs_of_a_job_share_an_annotated_account_that_goes_with_the_last(place: Place) -> None:
    job = place.job(NAMED)
    first, second = place.run(job), place.run(job)
    assert place.log(first, 0) == ["ada", "lab volumes", "/longboat/home", "has a token"]
    held = place.cluster.api.get("ServiceAccount", "known")["metadata"]
    assert held["annotations"] == {"iam.gke.io/gcp-service-account": "trainer@project.example"}
    assert [owner["name"] for owner in held["ownerReferences"]] == [first, second]
    place.longboat("rm", first)
    place.until(lambda: not place.cluster.api.find("ConfigMap", f"{first}-ship"))
    assert place.cluster.api.find("ServiceAccount", "known") is not None
    place.longboat("rm", second)
    place.until(lambda: place.cluster.api.find("ServiceAccount", "known") is None)


@pytest.mark.parametrize(
    ("extra", "reason", "fix"),
    [
        ("security: {user: 0}", "runAsNonRoot", "any other user than 0"),
        ("storage: {data: {nfs: {server: 10.0.0.9, path: /d}}}", 'restricted volume type "nfs"', "`data: {pvc: NAME}`"),
        ("storage: {data: {hostPath: /data}}", 'restricted volume type "hostPath"', "`data: {pvc: NAME}`"),
    ],
)
def test_what_the_namespace_forbids_is_told_before_anything_is_submitted(
    place: Place, extra: str, reason: str, fix: str
) -> None:
    said = place.longboat(
        "run", place.job(jobs.single("ls", extra)), "--on", "kubernetes", "-n", place.namespace, code=2
    )
    assert reason in said
    assert fix in said
    assert not [obj for obj in place.cluster.left() if obj["metadata"]["labels"]["app.kubernetes.io/name"] == "one"]

"""`requirements:` are installed in pods where the image does not have them, and what stands in the way is the cause."""

from __future__ import annotations

import os

import pytest

from tests.cluster import addons
from tests.cluster.cluster import Cluster
from tests.cluster.places import home
from tests.e2e import jobs
from tests.e2e.place import Place
from tests.unit.images import making

pytestmark = pytest.mark.slow

OWN = 'requirements: ["--no-index", "--find-links ./wheels", tool==1.0]\n'


@pytest.fixture
def with_pip() -> str:
    """An image with pip in it; the tests' plain one has none."""
    if not os.environ["KUBECONFIG"].startswith(str(home())):
        pytest.skip("KUBECONFIG names another cluster")
    return addons.image(Cluster("test", print), "pip", print)


def test_packages_of_the_code_tree_are_installed_in_the_pod(place: Place, with_pip: str) -> None:
    job = place.job(jobs.single('tool; python3 -c "import tool; print(tool.__file__)"', image=with_pip) + OWN)
    making.wheel(job / "wheels")
    run = place.run(job)
    assert place.log(run, 0) == ["tool", "/longboat/packages/tool.py"]


def test_what_the_image_has_is_not_installed_again(place: Place, with_pip: str) -> None:
    text = jobs.single("ls /longboat; python3 -m pip --version", image=with_pip) + "requirements: ['pip>=20']\n"
    assert "packages" not in place.log(place.run(place.job(text)), 0)


def test_a_package_that_cannot_be_had_is_the_cause(place: Place, with_pip: str) -> None:
    text = jobs.single("'true'", image=with_pip) + 'requirements: ["--no-index", no-such-package]\n'
    run = place.run(place.job(text), code=1)
    cause = place.events(run)[-1]["cause"]
    assert cause["kind"] == "missing_input"
    assert "No matching distribution found for no-such-package" in cause["message"]


def test_an_image_without_pip_is_the_cause(place: Place) -> None:
    job = place.job(jobs.single("'true'") + OWN)
    making.wheel(job / "wheels")
    run = place.run(job, code=1)
    cause = place.events(run)[-1]["cause"]
    assert cause["kind"] == "missing_input"
    assert "the image has no pip" in cause["message"]
    said = place.longboat("why", run, "--on", "kubernetes", "-n", place.namespace)
    assert "longboat run --build" in said

"""`--impl NAME=kernels:PATH#FUNCTION`: a kernel from a repository in the format of Hugging Face's package `kernels`."""

import json
from importlib import import_module
from importlib.util import find_spec

import pytest

from bench.checks.impl_hash import sources
from bench.selection.choice import impls_named
from bench.selection.errors import UsageError

INSTALLED = find_spec("kernels") is not None
if INSTALLED:
    import_module("kernels")  # whose extension can't be imported again after pytester has put back sys.modules


@pytest.fixture
def repository(tmp_path):
    variant = tmp_path / "repository" / "build" / "torch-cpu"
    variant.mkdir(parents=True)
    about = {"id": f"_attends_{tmp_path.name}", "name": "attends", "version": 1, "license": "Apache-2.0"}
    (variant / "metadata.json").write_text(json.dumps({**about, "python-depends": [], "backend": {"type": "cpu"}}))
    (variant / "inner.py").write_text("from torch.nn.functional import scaled_dot_product_attention as sdpa\n")
    (variant / "__init__.py").write_text(
        "from . import inner\n\n\ndef mine(q, k, v, **options):\n    return inner.sdpa(q, k, v, **options)\n"
    )
    return tmp_path


@pytest.mark.skipif(not INSTALLED, reason="needs the package kernels")
def test_a_kernel_of_a_local_repository_is_measured(repository, suite):
    name = "mine=kernels:repository#mine"
    impl, _ = impls_named([name, name.replace("mine=", "mine+compile=")], False, str(repository))
    assert impl.kernel and len(sources(impl.owner, impl.files)) == 2
    done = suite("--impl", name, "--T", "16", "--H", "2", "--D_h", "8", "--dtype", "float32", "--precision", "0.5")
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout


@pytest.mark.skipif(not INSTALLED, reason="needs the package kernels")
@pytest.mark.parametrize(
    ("named", "says"), [("repository#min", "has no attribute 'min'.*did you mean mine"), (".#mine", "can't import .: ")]
)
def test_usage_errors(named, says, repository):
    with pytest.raises(UsageError, match=f"^mine=kernels:{named}: .*{says}"):
        impls_named([f"mine=kernels:{named}"], False, str(repository))


@pytest.mark.skipif(INSTALLED, reason="the package kernels is installed")
def test_without_the_package_a_line_says_what_is_missing(repository):
    with pytest.raises(UsageError, match="kernel repositories need the package kernels: pip install kernels"):
        impls_named(["mine=kernels:repository#mine"], False, str(repository))

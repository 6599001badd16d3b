import jax
import jaxtyping
import pytest
from hypothesis import settings

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=30)
settings.load_profile("repeatable")


def pytest_configure(config):
    # short runs warn of what they are; tests of the warnings ask for them. (Not in pyproject.toml:
    # naming the category there imports momentem before jaxtyping's hook is in place.)
    config.addinivalue_line("filterwarnings", "ignore::momentem.SamplingWarning")
    # what was compiled by another worker or in an earlier run is read from the disk
    jax.config.update("jax_compilation_cache_dir", str(config.cache.mkdir("xla")))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
    config.addinivalue_line("markers", "one_now: the first case here, the others in make validate")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    begun = set()
    for item in items:
        if item.get_closest_marker("one_now"):
            if (item.fspath, item.originalname) in begun:
                item.add_marker("validate")
            begun.add((item.fspath, item.originalname))


@pytest.fixture
def key():
    return jax.random.key(20170)


@pytest.fixture
def without_jaxtyping():
    """Its checks would answer first; users do not have them."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(autouse=True, scope="module")
def programs_are_dropped():
    """Compiled programs of one file are of no use to the next, and there are gigabytes of them."""
    yield
    jax.clear_caches()


@pytest.fixture(scope="module")
def quick_compilation():
    """For programs that run for microseconds and compile for seconds."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)

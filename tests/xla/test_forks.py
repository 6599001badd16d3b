"""A child of a process that has used JAX says so, where it would hang."""

from processes import run_alone

SCRIPT = """
import os, jax, momentem as mt

def model():
    target = mt.density(lambda x: -0.5 * x**2, 0.0)
    return target, mt.hmc(target, 1.0, 2)

def in_child(work):
    child = os.fork()
    if not child:
        try:
            work()
        except RuntimeError as error:
            print(str(error), flush=True)
        except BaseException as error:
            print(repr(error), flush=True)
        finally:
            os._exit(0)
    os.waitpid(child, 0)

def fresh():
    print(mt.sample(*model(), 40, 10, 2, progress=False)["posterior"].sizes["draw"], flush=True)

in_child(fresh)
target, sampler = model()
mt.sample(target, sampler, 40, 10, 2, progress=False, out="OUT")
in_child(lambda: mt.sample(target, sampler, 40, 10, 2))
in_child(lambda: mt.resume("OUT", target, sampler, 50))
in_child(lambda: print(mt.load("OUT")["posterior"].sizes["draw"], flush=True))
"""


def test_a_forked_child_samples_or_says_why_not(tmp_path):
    script = "import warnings; warnings.simplefilter('ignore')\n"
    said = run_alone(
        script + SCRIPT.replace("OUT", str(tmp_path / "run")), timeout=120
    ).splitlines()
    assert said[0] == "40"  # JAX was not used before this child was born
    assert "multiprocessing.get_context('spawn')" in said[1]
    assert said[2] == said[1]
    assert said[3] == "40"

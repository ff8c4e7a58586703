"""The oracles can fail: a sample of testing/mutations.py, one of each kind of stage. All of them: the full gate."""

import pytest

from testing.mutation_table import MUTATIONS, STAGES
from testing.mutations import ROOT, Copy

QUICK = [mutation for mutation in MUTATIONS if mutation.quick]


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    return Copy(tmp_path_factory.mktemp("copy"))


@pytest.mark.parametrize("mutation", QUICK, ids=lambda mutation: mutation.name)
def test_a_mutation_is_caught(mutation, copy):
    assert copy.caught(mutation) == ""


def test_an_untouched_copy_passes(copy):
    assert copy.run("tokenizer") == (0, [])


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_mutation_has_its_place_and_stage(mutation):
    assert (ROOT / mutation.file).read_text().count(mutation.before) == 1
    assert mutation.after != mutation.before and mutation.stage in STAGES


def test_every_stage_has_a_mutation():
    assert {mutation.stage for mutation in MUTATIONS} == set(STAGES)

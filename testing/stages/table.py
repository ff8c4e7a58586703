"""The stages of the gate (testing/gate), a family a file, in the order in which they run.

STAGES are those of a release; USERS those that run on a file of the user's own.
"""

from testing.stages import card, checks, conversion, libm, operations, server, speed, whole, words

FAMILIES = (operations, whole, server, words, conversion, card, libm, checks, speed)
STAGES = tuple(stage for family in FAMILIES for stage in family.STAGES)
USERS = (*whole.USERS, *server.USERS, *words.USERS)
BY_NAME = {stage.name: stage for stage in STAGES}
USERS_BY_NAME = {stage.name: stage for stage in USERS}
assert len(BY_NAME) == len(STAGES) and len(USERS_BY_NAME) == len(USERS)

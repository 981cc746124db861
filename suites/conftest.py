"""hypothesis profiles of the suites: ``--hypothesis-profile=thorough`` draws more, ``ci`` and ``quick`` less."""

from hypothesis import settings

# No deadline: an example of 8 ranks on a busy machine takes as long as it takes; runs have their own timeout.
settings.register_profile("suites", max_examples=100, deadline=None)
settings.register_profile("thorough", max_examples=2000, deadline=None)
settings.register_profile("ci", max_examples=25, deadline=None)
settings.register_profile("quick", max_examples=10, deadline=None)
settings.load_profile("suites")

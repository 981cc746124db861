"""What workers of the nodes in tests run in place of Ray's own programs, which import Ray twice for each actor.

``tests/benchmarks/test_nodes_of_one_machine.py`` starts nodes as users do.
"""

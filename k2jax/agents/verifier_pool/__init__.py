"""Function verifiers in processes that can be killed.

In reading order: ``pool`` (what a scorer asks), ``supervisor`` (starts and kills the worker), ``verifier_worker``
(where verifiers run, one verdict after the other), ``blame`` (whose fault a failure is), ``process_tree``,
``verifier_messages``.
"""

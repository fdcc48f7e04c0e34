"""Function verifiers in processes that can be killed.

In reading order: ``pool`` (what a scorer asks), ``supervisor`` (starts and kills the worker), ``verifier_worker``
(where verifiers run, one verdict after the other), ``needed_packages`` (what they say that they need),
``verdict_clock`` (whose time it was), ``verifier_messages`` (with whose fault a failure is).
"""

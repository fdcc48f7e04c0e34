"""What grows how: the cost of a step, a token, an episode and a document against the size of the problem.

Read ``curves`` (what is measured at which sizes), ``fit`` (exponents, and where one gives way to another), ``page``
(table and picture), ``__main__`` (the command).
"""

"""The processes behind ``VerifierPool``: a supervisor, and below it the worker in which verifiers run."""

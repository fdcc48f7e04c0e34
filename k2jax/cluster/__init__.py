"""How a training run is started on many hosts: TPU slices, scripts for Cloud TPU VMs and xpk, JobSet manifests.

Everything here is a pure function of a ``Run``: it makes text and dictionaries and starts nothing.
"""

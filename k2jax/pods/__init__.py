"""Launch scripts for TPU slices of many hosts: Cloud TPU VMs, JobSet manifests for GKE, and xpk.

The functions are pure: they turn a ``LaunchSpec`` into text and dictionaries, and start nothing.

In reading order: ``launch`` (the command), ``launch_spec``, ``modules`` and ``slices`` (what is launched, and where),
``parts`` (what is launched beside it), ``vm``, ``jobset`` and ``xpk`` (how), ``shell`` and ``yaml_text``.
"""

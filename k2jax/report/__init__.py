"""Output of a run: metrics, progress, samples, plots and the report of a workdir.

The package knows files and figures, but no models. Import from its modules: matplotlib and tensorboardX are loaded only
by the modules that use them.

In reading order: ``metrics`` (``metrics.jsonl``), ``series``, ``figures``, ``policy_figures``, ``plots`` and ``style``
(pictures), ``markdown`` with ``summary`` and ``samples`` (``report.md``), ``progress``, ``transfer`` and ``table``
(what is printed).
"""

"""Output of a run: metrics, progress, samples, plots and the report of a workdir.

The package knows files and figures, but no models. Import from its modules: matplotlib and tensorboardX are loaded only
by the modules that use them.
"""

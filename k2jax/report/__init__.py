"""What a run tells: metrics, progress, samples, plots and the report of a workdir.

The lowest layer of the library: it knows files and pictures, nothing of models. Import from its modules; matplotlib
and tensorboardX load only where they are used.
"""

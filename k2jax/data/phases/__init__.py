"""The data of a run with phases: which part of every source each phase reads, and its batches.

In reading order: ``block_rows`` (rows of chosen stretches of a source), ``source_order`` (which stretches a phase
reads), ``phased_loader`` (batches by the steps of the run), ``phase_data`` (all of it from a configuration).
"""

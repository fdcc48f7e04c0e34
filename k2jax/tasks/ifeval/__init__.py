"""IFEval: verifiable instructions (Zhou et al. 2023), with checks of its own."""

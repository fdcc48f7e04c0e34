"""Questions with choices, from files in the forms in which benchmarks publish them."""

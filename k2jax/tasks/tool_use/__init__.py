"""Questions that need a calculator or a store of facts."""

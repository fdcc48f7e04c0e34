"""The built-in datasets with their verifiers, one family in a file."""

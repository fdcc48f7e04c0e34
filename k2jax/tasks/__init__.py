"""The built-in tasks, a folder for each family: dataset, verifier, oracle. Found by name; agents never import them."""

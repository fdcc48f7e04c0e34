"""Images of containers, unpacked for the sandboxes of this machine: OCI layouts and registries on the loopback.

In reading order: ``pull`` (from a source to a folder of images), ``layout`` and ``image_registry`` (the sources),
``manifest`` (what an image consists of), ``layers`` (its files, one layer over the other), ``tree`` (where they are
put, so that no entry leads out), ``image_store`` (the folder of images), ``image_command`` (``python -m k2jax.sandbox
image``).
"""

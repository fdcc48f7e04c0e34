"""Conversion of Hugging Face folders, quantised or not, to checkpoints and back.

In reading order: ``loading`` (parameters of any checkpoint argument), ``importing`` and ``exporting`` (the commands),
``mapping`` (a weight and its tensors), ``source``, ``tensors`` and ``quantized`` (folders of tensors), ``hf_config``,
``vision_config``, ``vision_names`` and ``image_limits`` (what stands beside them), ``packaged`` and ``gguf_file``
(small models from packages).
"""

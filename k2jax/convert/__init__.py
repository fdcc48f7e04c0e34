"""Conversion of Hugging Face folders, quantised or not, to checkpoints and back.

In reading order: ``loading`` (parameters of any checkpoint argument), ``importing`` and ``exporting`` (the commands),
``mapping`` (a weight and its tensors), ``source``, ``tensors``, ``quantized`` and ``finite`` (folders of tensors),
``hf_config``, ``hf_rope``, ``hf_config_writing``, ``vision_config``, ``vision_names`` and ``image_limits`` (what stands
beside them) over ``json_values``, ``packaged`` and ``gguf_file`` (small models from packages).
"""

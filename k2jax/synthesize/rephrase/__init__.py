"""Rephrasing of texts (Kimi K2, section 2.2): knowledge in many styles, mathematics as learning notes and translated.

In reading order: ``rephrase_stages`` (the stages), ``source_texts`` (what is rephrased), ``fact_world`` and
``wordings`` (an exact world of facts and how they are worded), ``chunks``, ``chunkwise`` (the writer, chunk by chunk),
``fidelity`` (names, numbers and equations, without a model; ``k2jax.text.text_content`` reads them),
``fidelity_judge``, ``rephrased_files``, and ``wording_programs``, which play the models where no server is named.
"""

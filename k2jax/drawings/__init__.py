"""Pictures that tasks, training corpora and studies draw: charts, code, text, screens, shapes, clips.

In reading order: ``synthetic`` (a picture, its questions and answers, by kind), ``canvas`` (what all draw with),
``shapes``, ``text``, ``charts``, ``code``, ``screens`` and ``clips`` (the kinds), ``labels`` (coordinates in messages).
"""

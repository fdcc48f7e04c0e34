"""Commands about environments and tasks.

``check`` plays them with an oracle, ``difficulty`` keeps those that a model sometimes solves, ``coverage`` counts what
they are about, ``demonstrate`` writes dialogues, ``packaged_choices`` writes questions, ``faithfulness`` trains a
judge, ``serve`` serves environments to others.
"""

"""The agent swarm of Kimi K2.5 (section 3, appendix E.8): an orchestrator that creates sub-agents and assigns tasks.

In reading order: ``forms`` (the tools as a model sees them), ``swarm_tools`` (what they do), ``prompt`` (the system
prompt of an orchestrator).
"""

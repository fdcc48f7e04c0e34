"""Attack, target and judge in a loop over seed prompts: what gets a model to break its rules, and answers that do not.

Kimi K2 (section 3.2.1): an attack model rewrites harmful prompts by strategies, a target model answers, and a judge
says by a rubric of the task whether the answer breaks the rule.
"""

r"""Looks into a repository of tools that python -m k2jax.synthesize has made.

Example:
    python -m k2jax.synthesize.tools runs/tools
    python -m k2jax.synthesize.tools runs/tools --search="freeze a gift card"
    python -m k2jax.synthesize.tools runs/tools --domain=cinema_0 --count=8
    python -m k2jax.synthesize.tools runs/tools --picture --encoder=minilm

Without a flag it prints how many tools there are by source, origin and category. --picture writes tools.png, in which
tools whose texts are close lie close, by source and by category (extra [synthesize]).
"""

import json
from pathlib import Path
import random

from absl import flags

from k2jax import cli
from k2jax.report.table import text_table
from k2jax.synthesize.settings import SynthesisConfig


def define(values: flags.FlagValues) -> None:
    """Adds the command's flags."""
    to = {"flag_values": values}
    flags.DEFINE_string("search", "", "Words; prints the tools that fit best.", **to)
    flags.DEFINE_string("domain", "", "Name of a domain, of which tools are drawn and printed as JSON lines.", **to)
    flags.DEFINE_integer("count", 10, "Tools that are found or drawn.", **to, lower_bound=1)
    flags.DEFINE_integer("seed", 0, "Of the draw.", **to, lower_bound=0)
    flags.DEFINE_bool("picture", False, "Write tools.png into the folder.", **to)
    flags.DEFINE_string("encoder", "", "Of the picture: minilm, or a folder of a BERT model; empty sees words.", **to)


def main(values: flags.FlagValues, folder: str) -> int:
    """Runs the command; returns its exit code."""
    from k2jax.synthesize.tools.tool_picture import draw_tools
    from k2jax.synthesize.tools.tool_store import ToolRepository, coverage_report

    tools = ToolRepository(folder)
    if values.search:
        rows = [
            (f"{found.score:.1f}", found.entry["id"], found.entry["tool"]["description"][:80])
            for found in tools.search(values.search, values.count)
        ]
        print(text_table(("score", "tool", "what it says"), rows))
    elif values.domain:
        for entry in tools.sample(values.domain, values.count, random.Random(values.seed)):
            print(json.dumps(entry["tool"], ensure_ascii=False))
    elif values.picture:
        print(
            draw_tools([tools.entry(place) for place in range(len(tools))], Path(folder) / "tools.png", values.encoder)
        )
    else:
        report = coverage_report([tools.entry(place) for place in range(len(tools))])
        print(f"{report['tools']:,} tools, {report['distinct']:,} of them distinct, of {len(tools.domains):,} domains")
        rows = [
            (kind, name, f"{count:,}")
            for kind in ("source", "origin", "category")
            for name, count in report[kind].items()
        ]
        print(text_table(("by", "what", "tools"), rows))
    return 0


if __name__ == "__main__":
    cli.run(main, define, __doc__, positional=("FOLDER",), config_type=SynthesisConfig)

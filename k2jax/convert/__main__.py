"""Converts between Hugging Face folders and workdirs, a few blocks of weights at a time.

Example:
    python -m k2jax.convert import path/to/Moonlight-16B-A3B --workdir=runs/moonlight
    python -m k2jax.convert export --checkpoint=runs/nano --to=exported/nano --dtype=bfloat16
    python -m k2jax.convert tokenizer path/to/tokenizer.json --workdir=runs/moonlight

The last command gives a tokenizer to an import whose folder had none.
"""

from absl import flags

from k2jax import cli, runtime
from k2jax.errors import UserError


def define(values: flags.FlagValues) -> None:
    """Adds the command's flags."""
    flags.DEFINE_string("workdir", None, "import: the new workdir; tokenizer: an imported one.", flag_values=values)
    flags.DEFINE_string("checkpoint", None, "export: a workdir, one of its steps, or smollm2.", flag_values=values)
    flags.DEFINE_string("to", None, "export: the new Hugging Face folder.", flag_values=values)
    flags.DEFINE_enum(
        "dtype", None, ("float32", "bfloat16", "float16"), "export: dtype of the weights; by default as stored.",
        flag_values=values,
    )  # fmt: skip


def main(values: flags.FlagValues, *arguments: str) -> None:
    """Runs the command."""
    runtime.prepare()
    from k2jax.convert.exporting import export_checkpoint
    from k2jax.convert.importing import give_tokenizer, import_folder

    match arguments:
        case ("import", source):
            cli.require(values, "workdir")
            import_folder(source, values.workdir)
        case ("tokenizer", source):
            cli.require(values, "workdir")
            give_tokenizer(source, values.workdir)
        case ("export",):
            cli.require(values, "checkpoint", "to")
            export_checkpoint(values.checkpoint, values.to, values.dtype)
        case _:
            raise UserError(
                "say 'import FOLDER --workdir=NEW', 'export --checkpoint=RUN --to=FOLDER' or "
                "'tokenizer FILE --workdir=RUN'"
            )


if __name__ == "__main__":
    cli.run(main, define, __doc__, positional=("import|export|tokenizer", "SOURCE"), optional=1)

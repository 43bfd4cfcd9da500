"""``mha_native --completion``: a script for shells that completes commands and options."""

import argparse

_SCRIPT = """\
_mha_native() {{
  local words
  case ${{COMP_WORDS[COMP_CWORD > 1]}} in
{cases}
  *) words="{words}" ;;
  esac
  COMPREPLY=($(compgen -W "$words" -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
complete -o default -F _mha_native mha_native
"""


def script(parser: argparse.ArgumentParser) -> str:
    """Return a script for bash, or zsh after ``bashcompinit``. It completes commands, then options, then files."""
    commands = {
        name: command
        for action in parser._actions
        if isinstance(action, argparse._SubParsersAction)
        for name, command in action.choices.items()
    }
    cases = [f'  {name}) words="{" ".join(_options(command))}" ;;' for name, command in commands.items()]
    return _SCRIPT.format(cases="\n".join(cases), words=" ".join([*commands, *_options(parser)]))


def _options(parser: argparse.ArgumentParser) -> list[str]:
    if not parser.prefix_chars:  # every argument is positional
        return []
    return [name for action in parser._actions for name in action.option_strings if name.startswith("--")]

"""`momentem completion bash | zsh | fish`: complete commands and options in a shell.

eval "$(momentem completion bash)"        in ~/.bashrc; the same with zsh in ~/.zshrc
momentem completion fish | source         in ~/.config/fish/config.fish
"""

import argparse
from functools import partial
from typing import Any

__all__ = ["add_parser"]


def add_parser(commands: Any) -> None:
    """Add the command to those of `momentem`."""
    parser = commands.add_parser("completion", help="print what completes commands in a shell")
    parser.add_argument("shell", choices=["bash", "zsh", "fish"])
    parser.set_defaults(run=partial(_print, commands))


def _print(commands: Any, given: argparse.Namespace) -> None:
    """Print the script. Files are completed after any command."""
    options = {
        name: [o for action in parser._actions for o in action.option_strings if o[:2] == "--"]
        for name, parser in commands.choices.items()
    }
    if given.shell == "fish":
        for name, theirs in options.items():
            print(f"complete -c momentem -n __fish_use_subcommand -a {name}")
            for option in theirs:
                print(
                    f"complete -c momentem -n '__fish_seen_subcommand_from {name}' -l {option[2:]}"
                )
        return
    if given.shell == "zsh":
        print("autoload -U +X bashcompinit && bashcompinit")
    cases = "\n".join(f"    {n}) words='{' '.join(theirs)}' ;;" for n, theirs in options.items())
    print(
        f"""_momentem() {{
  local words
  case "${{COMP_WORDS[1]}}" in
{cases}
  esac
  if [ "$COMP_CWORD" = 1 ]; then words='{" ".join(options)} --version --help'; fi
  COMPREPLY=($(compgen -W "$words" -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
complete -o default -F _momentem momentem"""
    )

/* Completion scripts of shells: the part about one subcommand. tools/completion.c writes the rest. */
#ifndef TOOLS_OPTIONS_COMPLETE_H
#define TOOLS_OPTIONS_COMPLETE_H

#include "tools/cli/options.h"

/* Writes the part of the shell's script, "bash", "zsh" or "fish", about the set's command: its options, their values
 * and the operands. --help=completion-SHELL of a subcommand does this. */
void options_complete(const option_set *set, const char *shell);

/* Write the first line of a text as a part of a string in single quotes. zsh: of a description in brackets. */
void complete_zsh(const char *text);
void complete_fish(const char *text);

#endif

// The command line of a program.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>

namespace millrace::cli {

/// Parses the arguments. Returns the status to exit with at once: 0 after `--help` or `--version`, 2 after a mistake,
/// which is printed to standard error under the name of `app`. Returns nothing if the program goes on. Runs callbacks
/// of `app`.
std::optional<int> ParseOrExit(CLI::App& app, int argc, char** argv);

/// Returns what is wrong with a command line that `app` refused with `error`, as a sentence without a full stop. Names
/// an unknown word first, because it often causes the other errors, and suggests what may have been meant: a known word
/// close to it, or what a flag of aws or s5cmd is called here.
std::string DescribeMistake(const CLI::App& app, const CLI::ParseError& error);

/// Returns the innermost command that the command line chose: `app` itself, or `ckpt ls`.
const CLI::App& ChosenCommand(const CLI::App& app);

}  // namespace millrace::cli

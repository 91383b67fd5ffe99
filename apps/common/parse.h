// The command line of a program.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>

namespace millrace::cli {

/// Parses the arguments. Returns the status to exit with at once: 0 after `--help` or `--version`, 2 after a mistake,
/// which is printed to standard error under the name of `app`. Returns nothing if the program goes on. Runs callbacks
/// of `app`.
std::optional<int> ParseOrExit(CLI::App& app, int argc, char** argv);

}  // namespace millrace::cli

// The text of `--help`: usage, arguments, commands by group, flags and examples, wrapped at the width of the terminal.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>

namespace millrace::cli {

/// Returns `text` in lines of at most `columns` characters, broken at blanks. Lines after the first begin with `indent`
/// blanks, and the first is taken to begin there, too. A word that is longer than a line stays whole.
std::string WrapText(std::string_view text, std::size_t indent, std::size_t columns);

/// Returns an example in lines of at most `columns` characters, as a shell reads them: a comment at the end goes onto a
/// line of its own, and a long command is continued with a backslash.
std::string WrapExample(std::string_view line, std::size_t columns);

/// Returns how a flag's value or an argument is named: "SIZE", "N", "SOURCE... DESTINATION". A type_name() that is not
/// one of CLI11's own is taken as it is; else the name follows from the flag's name and type. "" for a flag without a
/// value.
std::string ValueName(const CLI::Option& option);

/// Formats the help of programs and of their commands. Immutable.
class HelpFormatter final : public CLI::Formatter {
 public:
  std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const override;
};

/// Lets `app` and all of its commands, also those that are added later, print their help with HelpFormatter.
void UseHelp(CLI::App& app);

}  // namespace millrace::cli

#include "apps/common/help.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <memory>
#include <utility>
#include <vector>

#include "apps/common/flag_checks.h"
#include "apps/common/output.h"
#include "millrace/base/text.h"

namespace millrace::cli {
namespace {

constexpr std::size_t kMaxColumns = 100;  // longer lines are hard to read
constexpr std::size_t kLeastColumns = 30;
constexpr std::size_t kNarrow = 60;  // below, descriptions stand under the names
constexpr std::size_t kNames = 2, kDescriptions = 28, kUnderNames = 6;

/// Returns the number of characters of UTF-8 text.
std::size_t Width(std::string_view text) {
  return static_cast<std::size_t>(std::ranges::count_if(text, [](char c) { return (c & 0xc0) != 0x80; }));
}

std::string Upper(std::string_view text) {
  std::string upper(text);
  for (char& c : upper) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return upper;
}

/// Returns the type's name without what CLI11 appends for validators.
std::string TypeOf(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  return type.substr(0, type.find(":{"));
}

bool IsNumber(std::string_view type) { return type == "INT" || type == "UINT" || type == "FLOAT"; }

bool IsPlainType(std::string_view type) {
  return type.empty() || type == "TEXT" || type == "BOOLEAN" || type == "ENUM" || type == "CHAR" || IsNumber(type);
}

/// Returns the name of a flag's value by the last word of the flag's name.
std::string NameByFlag(const std::string& flag) {
  static constexpr std::array<std::pair<std::string_view, std::string_view>, 28> kNamesOfValues = {{
      {"bundle", "FILE"},    {"cert", "FILE"},           {"dir", "FOLDER"},      {"directory", "FOLDER"},
      {"memory", "SIZE"},    {"budget", "SIZE"},         {"bandwidth", "SIZE"},  {"quota", "SIZE"},
      {"ahead", "SIZE"},     {"limit", "SIZE"},          {"input", "URL"},       {"output", "URL"},
      {"model", "URL"},      {"tokenizer", "URL"},       {"data", "URL"},        {"listen", "HOST:PORT"},
      {"set", "KEY=VALUE"},  {"metadata", "NAME=VALUE"}, {"include", "PATTERN"}, {"exclude", "PATTERN"},
      {"delay", "DURATION"}, {"timeout", "DURATION"},    {"grace", "DURATION"},  {"wait", "DURATION"},
      {"time", "DURATION"},  {"ttl", "DURATION"},        {"than", "DURATION"},   {"in", "DURATION"},
  }};
  const std::string last = flag.substr(flag.rfind('-') + 1);  // npos + 1 == 0
  const auto found = std::ranges::find(kNamesOfValues, last, &std::pair<std::string_view, std::string_view>::first);
  return found == kNamesOfValues.end() ? Upper(last) : std::string(found->second);
}

/// "-r, --recursive" or "--[no-]append-eod".
std::string FlagNames(const CLI::Option& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.get_snames()) names.push_back("-" + name);
  const std::vector<std::string>& longs = option.get_lnames();
  const auto has = [&longs](const std::string& name) { return std::ranges::find(longs, name) != longs.end(); };
  for (const std::string& name : longs) {
    if (name.starts_with("no-") && has(name.substr(3))) continue;
    names.push_back((has("no-" + name) ? "--[no-]" : "--") + name);
  }
  std::string joined = fmt::format("{}", fmt::join(names, ", "));
  return joined.starts_with("--") ? "    " + joined : joined;
}

std::string Description(const CLI::Option& option) {
  std::string text = option.get_description();
  const std::vector<std::string> choices = ChoicesOf(option);
  const auto named = [&text](const std::string& choice) { return text.contains(choice); };
  if (!choices.empty() && !std::ranges::all_of(choices, named)) text += fmt::format(": {}", fmt::join(choices, ", "));
  const std::string usual = option.get_default_str();
  if (!usual.empty() && !text.contains("(default")) text += fmt::format(" (default: {})", usual);
  if (option.get_required() && !option.get_positional()) text += " (required)";
  return text;
}

/// One line of a list: a name, and its description beside it, from a column on, or under it.
std::string Item(const std::string& name, const std::string& description, std::size_t columns,
                 std::size_t from = kDescriptions) {
  const bool beside = columns >= kNarrow && kNames + Width(name) + 2 <= from;
  const std::size_t indent = columns >= kNarrow ? from : kUnderNames;
  std::string line = std::string(kNames, ' ') + name;
  if (description.empty()) return line + "\n";
  line += beside ? std::string(indent - kNames - Width(name), ' ') : "\n" + std::string(indent, ' ');
  return line + WrapText(description, indent, columns) + "\n";
}

/// Returns the heading of a group. CLI11's own names of groups depend on its version.
std::string Heading(const std::string& group) {
  const std::string name = ToLower(group);
  return name == "subcommands" ? "Commands" : name == "options" ? "Options" : group;
}

std::string Positionals(const CLI::App& app, std::size_t columns) {
  std::string items;
  for (const CLI::Option* option : app.get_options([](const CLI::Option* o) { return o->get_positional(); })) {
    if (!option->get_group().empty()) items += Item(ValueName(*option), Description(*option), columns);
  }
  return items.empty() ? "" : "\nArguments:\n" + items;
}

std::string Flags(const CLI::App& app, std::size_t columns) {
  std::string text;
  for (const std::string& group : app.get_groups()) {
    std::string items;
    const auto belongs = [&group](const CLI::Option* o) { return o->get_group() == group && o->nonpositional(); };
    for (const CLI::Option* option : app.get_options(belongs)) {
      const std::string value = ValueName(*option);
      const std::string names = FlagNames(*option) + (value.empty() ? "" : " " + value);
      items +=
          Item(names, option->get_positional() ? "The same as the argument " + value : Description(*option), columns);
    }
    if (!group.empty() && !items.empty()) text += fmt::format("\n{}:\n{}", Heading(group), items);
  }
  return text;
}

std::vector<const CLI::App*> ShownCommands(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App* c) { return !c->get_name().empty() && !c->get_group().empty(); });
}

std::string Commands(const CLI::App& app, std::size_t columns) {
  std::size_t longest = 0;
  for (const CLI::App* command : ShownCommands(app)) longest = std::max(longest, command->get_name().size());
  std::vector<std::pair<std::string, std::string>> groups;  // in the order of their first commands
  for (const CLI::App* command : ShownCommands(app)) {
    const std::string group = Heading(command->get_group());
    auto found = std::ranges::find(groups, group, &std::pair<std::string, std::string>::first);
    if (found == groups.end()) found = groups.insert(groups.end(), {group, ""});
    found->second += Item(command->get_name(), command->get_description(), columns, kNames + longest + 2);
  }
  std::string text;
  for (const auto& [group, items] : groups) text += fmt::format("\n{}:\n{}", group, items);
  return text;
}

std::string Usage(const CLI::App& app, const std::string& name, std::size_t columns) {
  std::string usage = name;
  if (!app.get_options([](const CLI::Option* o) { return o->nonpositional(); }).empty()) usage += " [OPTIONS]";
  for (const CLI::Option* option : app.get_options([](const CLI::Option* o) { return o->get_positional(); })) {
    if (option->get_group().empty()) continue;
    usage += fmt::format(fmt::runtime(option->get_required() ? " {}" : " [{}]"), ValueName(*option));
  }
  if (!ShownCommands(app).empty()) usage += " COMMAND";
  constexpr std::string_view kLabel = "Usage: ";
  return fmt::format("\n{}{}\n", kLabel, WrapText(usage, kLabel.size(), columns));
}

/// Wraps a line of a table: a term, two blanks or more, and what it means.
std::string Entry(std::string_view line, std::size_t columns) {
  const std::size_t begin = line.find_first_not_of(' '), gap = line.rfind("  ");
  if (gap == line.npos || gap < begin) return std::string(begin, ' ') + WrapText(line, begin, columns) + "\n";
  const std::string_view term = line.substr(begin, line.find_last_not_of(' ', gap) + 1 - begin);
  return Item(std::string(term), std::string(line.substr(gap + 2)), columns, gap + 2);
}

/// Wraps the examples, which are indented, as commands, and the rest as text.
std::string Footer(const CLI::App& app, std::size_t columns) {
  const std::string footer = app.get_footer();
  if (footer.empty()) return "";
  std::string text = "\n";
  bool is_command = true;
  for (std::string_view line : Split(footer, '\n')) {
    if (line.empty()) continue;
    const bool is_indented = line.starts_with(' ');
    if (!is_indented) is_command = line == "Examples:";
    if (line.ends_with(':') && !is_indented && text != "\n") text += '\n';
    if (is_indented && !is_command) {
      text += Entry(line, columns);
    } else {
      text += (is_indented ? WrapExample(line, columns) : WrapText(line, 0, columns)) + "\n";
    }
  }
  return text;
}

}  // namespace

std::string WrapText(std::string_view text, std::size_t indent, std::size_t columns) {
  std::string wrapped;
  std::size_t column = indent;
  for (std::string_view word : Split(text, ' ')) {
    if (word.empty()) continue;
    const bool first = column == indent;
    if (!first && column + 1 + Width(word) > columns) {
      wrapped += "\n" + std::string(indent, ' ');
      column = indent;
    } else if (!first) {
      wrapped += ' ';
      ++column;
    }
    wrapped += word;
    column += Width(word);
  }
  return wrapped;
}

std::string WrapExample(std::string_view line, std::size_t columns) {
  if (Width(line) <= columns) return std::string(line);
  const std::size_t indent = line.find_first_not_of(' ');
  const std::size_t comment = line.find("  # ", indent);
  if (comment != std::string_view::npos) {
    const std::string blanks(indent, ' ');
    const std::string words = "# " + WrapText(line.substr(comment + 4), indent + 2, columns);
    std::string above = blanks + words;
    for (std::size_t at = above.find("\n  "); at != std::string::npos; at = above.find("\n  ", at + 1)) {
      above[at + 1 + indent] = '#';  // a comment of several lines has the sign on each
    }
    const std::string_view command = line.substr(0, line.find_last_not_of(' ', comment) + 1);
    return above + "\n" + WrapExample(command, columns);
  }
  // Breaks at blanks outside of quotes.
  constexpr std::size_t kContinued = 4;
  std::string wrapped(indent, ' ');
  std::size_t column = indent, begin = indent;
  char quote = 0;
  for (std::size_t i = indent; i <= line.size(); ++i) {
    const char c = i < line.size() ? line[i] : ' ';
    if (quote != 0 ? c == quote : c == '\'' || c == '"') quote = quote != 0 ? '\0' : c;
    if (i < line.size() && (c != ' ' || quote != 0)) continue;
    const std::string_view word = line.substr(begin, i - begin);
    begin = i + 1;
    if (word.empty()) continue;
    if (column > indent + kContinued && column + 1 + Width(word) + 2 > columns) {
      column = indent + kContinued;
      wrapped += " \\\n" + std::string(column, ' ');
    } else if (column > indent) {
      wrapped += ' ';
      ++column;
    }
    wrapped += word;
    column += Width(word);
  }
  return wrapped;
}

std::string ValueName(const CLI::Option& option) {
  std::string type = TypeOf(option);
  if (option.get_positional()) {
    if (!IsPlainType(type)) return type;
    std::string name = option.get_name(true, false);
    if (!name.contains('.')) name = Upper(name);
    return option.get_expected_max() > 1 ? name + "..." : name;
  }
  if (option.get_items_expected_min() == 0) return "";
  if (!IsPlainType(type)) return type;
  if (IsNumber(type)) return type == "FLOAT" ? "NUMBER" : "N";
  return NameByFlag(option.get_lnames().empty() ? option.get_snames().front() : option.get_lnames().front());
}

std::string HelpFormatter::make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const {
  if (mode == CLI::AppFormatMode::Sub) return Formatter::make_help(app, std::move(name), mode);
  const auto columns = std::clamp(static_cast<std::size_t>(OutputColumns(STDOUT_FILENO)), kLeastColumns, kMaxColumns);
  std::string text = WrapText(app->get_description(), 0, columns) + "\n" + Usage(*app, name, columns) +
                     Positionals(*app, columns) + Commands(*app, columns) + Flags(*app, columns);
  if (app->get_parent() != nullptr) {
    text += "\n" +
            WrapText("Global flags (--endpoint-url, --json, --dry-run, ...): see `millrace --help`", 0, columns) + "\n";
  }
  return text + Footer(*app, columns);
}

void UseHelp(CLI::App& app) {
  app.formatter(std::make_shared<HelpFormatter>());
  for (CLI::App* command : app.get_subcommands({})) UseHelp(*command);
}

}  // namespace millrace::cli

// Wildcards in keys and paths, as object tools use them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace millrace::transfer {

/// A pattern over whole names:
///   *  and **   any characters, '/' too (as in s5cmd: "logs/*.gz" matches "logs/2026/01/a.gz")
///   ?           one character, '/' too
///   [abc] [a-z] [!a-z] [^a-z]   one character of the set, or not of it
///   \x          the character x itself
/// A '[' without its ']' stands for itself. Characters are Unicode code points. Immutable; any thread may use it.
class Glob {
 public:
  explicit Glob(std::string_view pattern);

  bool Matches(std::string_view text) const;
  /// What every match begins with: the prefix to list.
  const std::string& literal_prefix() const { return literal_prefix_; }
  /// False when the pattern matches exactly one name: literal_prefix().
  bool has_wildcard() const { return has_wildcard_; }

 private:
  struct Token {
    enum class Kind { kLiteral, kAnyOne, kAnyMany, kSet } kind;
    char32_t literal = 0;
    bool negated = false;
    std::vector<std::pair<char32_t, char32_t>> ranges;
    bool Accepts(char32_t c) const;
  };
  std::vector<Token> tokens_;
  std::string literal_prefix_;
  bool has_wildcard_ = false;
};

/// Does the text have a character that Glob would treat as a wildcard?
bool HasWildcard(std::string_view text);

/// Is a folder of the name ".millrace"? There Millrace keeps what it makes of data, such as record indexes.
bool IsBookkeeping(std::string_view name);

/// The --include and --exclude patterns of a command: a name passes when it matches an include pattern (or there is
/// none) and no exclude pattern. Their order does not matter.
class NameFilter {
 public:
  NameFilter() = default;
  /// `bookkeeping`: names for which IsBookkeeping holds may pass.
  NameFilter(const std::vector<std::string>& include, const std::vector<std::string>& exclude, bool bookkeeping = true);
  bool Passes(std::string_view name) const;
  /// Does an exclude pattern match whatever is below the folder? False if that is not certain.
  bool ExcludesFolder(std::string_view folder) const;

 private:
  std::vector<Glob> include_, exclude_;
  std::vector<Glob> exclude_below_;  ///< those that end with '*': what matches one goes on matching
  bool bookkeeping_ = true;
};

}  // namespace millrace::transfer

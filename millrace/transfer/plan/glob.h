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
/// A '[' without its ']' matches itself. Characters are Unicode code points. Immutable and thread-safe.
class Glob {
 public:
  explicit Glob(std::string_view pattern);

  bool Matches(std::string_view text) const;
  /// Returns the text before the first wildcard. Every match begins with it, so it is the prefix to list.
  const std::string& literal_prefix() const { return literal_prefix_; }
  /// Returns false if the pattern matches exactly one name, literal_prefix().
  bool has_wildcard() const { return has_wildcard_; }

 private:
  struct Token {
    enum class Type { kLiteral, kAnyOne, kAnyMany, kSet } type;
    struct Range {
      char32_t low = 0, high = 0;  ///< both included
    };
    char32_t literal = 0;
    bool negated = false;
    std::vector<Range> ranges;
    bool Accepts(char32_t c) const;
  };
  std::vector<Token> tokens_;
  std::string literal_prefix_;
  bool has_wildcard_ = false;
};

/// Returns whether Glob finds a wildcard in the text.
bool HasWildcard(std::string_view text);

/// Returns whether the name is below a folder ".millrace". Millrace keeps files about the data there, such as record
/// indexes.
bool IsBookkeeping(std::string_view name);

/// One --include or --exclude of a command.
struct FilterRule {
  bool includes = false;
  std::string pattern;
};

/// The --include and --exclude patterns of a command, in their order. The last pattern that a name matches decides
/// whether it passes, as in aws s3. A name that matches none passes, unless the first pattern is an include pattern.
class NameFilter {
 public:
  NameFilter() = default;
  /// If `bookkeeping` is false, names for which IsBookkeeping() holds do not pass.
  explicit NameFilter(const std::vector<FilterRule>& rules, bool bookkeeping = true);
  bool Passes(std::string_view name) const;
  /// Returns true only if no name below the folder passes. May return false if that is not certain.
  bool ExcludesFolder(std::string_view folder) const;
  bool has_rules() const { return !rules_.empty(); }

 private:
  struct Rule {
    bool includes;
    bool matches_below;  ///< the pattern ends with '*': if it matches a name, it matches all longer names, too
    Glob glob;
  };
  std::vector<Rule> rules_;
  bool bookkeeping_ = true;
};

}  // namespace millrace::transfer

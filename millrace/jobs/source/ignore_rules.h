// The rules that leave files of a folder out, in the language of .gitignore.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace millrace::jobs {

/// The rules of an ignore file. Each line is a pattern; empty lines and lines that begin with '#' are none.
///   - '*' and '?' stand for characters other than '/'; "**" between slashes stands for any folders.
///   - A pattern with a slash at its beginning or middle counts from the root. Others match in every folder.
///   - With a slash at its end, a pattern matches folders only.
///   - '!' before a pattern takes back what an earlier one has left out. The last pattern that matches decides.
///   - A backslash takes the meaning from a '#' or '!' at the beginning.
/// git also has classes such as [abc]; here '[' stands for itself. Plain data.
class IgnoreRules {
 public:
  /// Adds the lines of a file. Every text is valid.
  void Add(std::string_view text);
  /// Returns whether a path is left out. `path` has no slash at its beginning and end. A caller that walks folders does
  /// not enter one that is left out, so what is in it cannot be taken back.
  bool Ignores(std::string_view path, bool is_folder) const;

 private:
  struct Rule {
    std::vector<std::string> segments;  ///< "**" stands for any number of folders
    bool only_folders = false, takes_back = false;
  };
  std::vector<Rule> rules_;
};

}  // namespace millrace::jobs

// Globs over names and keys.
#pragma once

#include <string_view>

namespace millrace {

/// Returns true if the glob `pattern` matches the whole of `text`. '*' stands for any characters, '/' too, and '?' for
/// one character. Takes at most pattern.size() · text.size() steps.
inline bool GlobMatches(std::string_view pattern, std::string_view text) {
  std::size_t p = 0, t = 0, star = pattern.npos, resume = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resume = t;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == text[t])) {
      ++p, ++t;
    } else if (star != pattern.npos) {
      p = star + 1;
      t = ++resume;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

}  // namespace millrace

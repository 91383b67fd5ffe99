#include "millrace/jobs/source/ignore_rules.h"

#include <span>
#include <utility>

#include "millrace/base/glob.h"
#include "millrace/base/text.h"

namespace millrace::jobs {
namespace {

constexpr std::string_view kAnyFolders = "**";

/// As GlobMatches, over segments: takes at most pattern.size() · path.size() comparisons of two segments.
bool SegmentsMatch(std::span<const std::string> pattern, std::span<const std::string_view> path) {
  std::size_t p = 0, t = 0, resume = 0;
  std::size_t star = pattern.size();  // none
  while (t < path.size()) {
    if (p < pattern.size() && pattern[p] == kAnyFolders) {
      star = p++;
      resume = t;
    } else if (p < pattern.size() && GlobMatches(pattern[p], path[t])) {
      ++p;
      ++t;
    } else if (star != pattern.size()) {
      p = star + 1;
      t = ++resume;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == kAnyFolders) ++p;
  return p == pattern.size();
}

}  // namespace

void IgnoreRules::Add(std::string_view text) {
  for (std::string_view line : Split(text, '\n')) {
    line = Trim(line);
    if (line.empty() || line.starts_with('#')) continue;
    Rule rule;
    if (line.starts_with('!')) {
      rule.takes_back = true;
      line.remove_prefix(1);
    } else if (line.starts_with("\\#") || line.starts_with("\\!")) {
      line.remove_prefix(1);
    }
    if (line.ends_with('/')) {
      rule.only_folders = true;
      line.remove_suffix(1);
    }
    if (line.find('/') == line.npos) rule.segments.emplace_back(kAnyFolders);
    if (line.starts_with('/')) line.remove_prefix(1);
    for (const std::string_view segment : Split(line, '/')) rule.segments.emplace_back(segment);
    rules_.push_back(std::move(rule));
  }
}

bool IgnoreRules::Ignores(std::string_view path, bool is_folder) const {
  const std::vector<std::string_view> segments = Split(path, '/');
  for (auto rule = rules_.rbegin(); rule != rules_.rend(); ++rule) {
    if (rule->only_folders && !is_folder) continue;
    if (SegmentsMatch(rule->segments, segments)) return !rule->takes_back;
  }
  return false;
}

}  // namespace millrace::jobs

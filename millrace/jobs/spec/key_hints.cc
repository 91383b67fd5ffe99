#include "millrace/jobs/spec/key_hints.h"

#include <fmt/ranges.h>

#include <vector>

#include "millrace/jobs/spec/foreign_words.h"
#include "millrace/jobs/spec/spec_schema.h"

namespace millrace::jobs {

std::string KeyHint(std::string_view section, std::string_view name) {
  if (const ForeignWord* word = FindForeignWord(name); word != nullptr) {
    const bool elsewhere = !word->section.empty() && word->section != section;
    return fmt::format("is a word of {}: {}{}", word->programs, word->advice,
                       elsewhere ? fmt::format(", in {}", word->section) : "");
  }
  constexpr std::size_t kMost = 3;  // more would be no hint
  const std::vector<std::string> paths = KeysNamed(name);
  if (paths.empty() || paths.size() > kMost) return "";
  return fmt::format("is not a key of {}: write {}", section.empty() ? "the job file itself" : section,
                     fmt::join(paths, " or "));
}

}  // namespace millrace::jobs

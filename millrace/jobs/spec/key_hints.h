// Hints for unknown keys of a job file: the key that was meant.
#pragma once

#include <string>
#include <string_view>

namespace millrace::jobs {

/// Returns what to write instead of the key `name`, which the section `section` ("train.parallel"; "" for the file)
/// does not have: it is another program's word, or a key of another section. Returns "" if it is neither.
std::string KeyHint(std::string_view section, std::string_view name);

}  // namespace millrace::jobs

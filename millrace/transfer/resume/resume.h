// What journals of interrupted transfers have in common.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "millrace/base/result.h"

namespace millrace::transfer {

/// May the same transfer, begun again after this error, use what the failed one has moved?
bool WorthKeeping(Code code);

/// A line of a journal, with a check of itself at its end: one that a crash cut short is not believed.
std::string JournalLine(std::string_view text);
/// The text of such a line (given without its line feed); nothing if it is damaged.
std::optional<std::string_view> TextOfLine(std::string_view line);

}  // namespace millrace::transfer

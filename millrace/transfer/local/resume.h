// Journals of interrupted transfers: lines with checksums, and the errors after which a journal is kept.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "millrace/base/result.h"

namespace millrace::transfer {

/// Returns whether the same transfer, begun again after this error, can use the parts that the failed one has moved.
bool WorthKeeping(Code code);

/// Returns a line of a journal: the text, its CRC-32C and a line feed. The CRC exposes lines that a crash cut short.
std::string JournalLine(std::string_view text);
/// Returns the text of such a line (without its line feed), or nothing if the line is damaged.
std::optional<std::string_view> TextOfLine(std::string_view line);

}  // namespace millrace::transfer

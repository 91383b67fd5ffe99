// Standard output and standard error of the programs. A reader that goes away (`| head`) ends a listing, never work:
// fmt::print would throw then, and end the process in the middle of a copy.
#pragma once

#include <fmt/format.h>

#include <string_view>
#include <utility>

namespace millrace::cli {

/// Writes to standard output. Drops the text if nobody reads standard output any more. Reports another failure, such as
/// a full disk, once on standard error; FinishOutput() then returns false. Never throws. Thread-safe.
void WriteOutput(std::string_view text);
/// Writes to standard error. Ignores failures. Never throws. Thread-safe.
void WriteErrorOutput(std::string_view text);
/// Writes output that is the only purpose of a command. Ends the process by SIGPIPE once nobody reads standard output,
/// as ls and cat do. REQUIRES: nothing is under way that must be finished.
void WriteListing(std::string_view text);
/// Ends the process by SIGPIPE, unless GoOnWithoutReader() was called.
void EndForWantOfReader();
/// For commands that do more than list: from now on a missing reader does not end the process.
void GoOnWithoutReader();
/// Returns the errno of the first write to standard output that failed, or 0.
int OutputFailure();
/// Flushes standard output, for readers that wait for it.
void FlushOutput();
/// Flushes standard output at the end. Returns false if a write failed for another reason than a missing reader.
bool FinishOutput();

template <class... T>
void Print(fmt::format_string<T...> format, T&&... arguments) {
  WriteOutput(fmt::format(format, std::forward<T>(arguments)...));
}
template <class... T>
void PrintError(fmt::format_string<T...> format, T&&... arguments) {
  WriteErrorOutput(fmt::format(format, std::forward<T>(arguments)...));
}
template <class... T>
void PrintListing(fmt::format_string<T...> format, T&&... arguments) {
  WriteListing(fmt::format(format, std::forward<T>(arguments)...));
}

}  // namespace millrace::cli

// Standard output and standard error of the programs. A reader that goes away (`| head`) ends a listing, never work:
// fmt::print would throw then, and end the process in the middle of a copy.
#pragma once

#include <fmt/format.h>

#include <string_view>
#include <utility>

namespace millrace::cli {

/// Writes to standard output. Once nobody reads it, the text is dropped and the caller goes on. Another failure, such
/// as a full disk, is said once on standard error; FinishOutput() then tells. Never throws. Any thread.
void WriteOutput(std::string_view text);
/// Writes to standard error, whether or not somebody reads it. Never throws. Any thread.
void WriteErrorOutput(std::string_view text);
/// For output that is all a command is for: ends the process by SIGPIPE once nobody reads standard output, as ls and
/// cat end. Nothing may be under way that must be finished.
void WriteListing(std::string_view text);
/// Ends the process as a closed pipe ends other tools, unless GoOnWithoutReader() was called.
void EndForWantOfReader();
/// For commands of which a listing is only a part: from now on nothing ends the process.
void GoOnWithoutReader();
/// errno of the first write to standard output that failed; 0 while none has. For those who say it elsewhere.
int OutputFailure();
/// Writes out what is buffered, for readers that wait for it.
void FlushOutput();
/// The same, last. False if standard output could not be written, other than for want of a reader.
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

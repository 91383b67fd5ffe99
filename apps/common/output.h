// Writes to standard output and standard error of the programs. If the reader of standard output goes away (`| head`),
// a listing ends, but a copy or another change goes on. fmt::print() is not used: it would throw then, and end the
// process in the middle of a copy.
//
// Keys, names and messages come from strangers. On a terminal, all text passes through HarmlessText(), so that no key
// moves the cursor or sets the clipboard. A program's own escape sequences have functions of their own.
#pragma once

#include <fmt/format.h>

#include <string_view>
#include <utility>

namespace millrace::cli {

/// Writes to standard output. If nobody reads standard output any more, drops the text. Reports any other failure, such
/// as a full disk, on standard error; FinishOutput() then returns false. Reports only the first failure. Never throws.
/// Thread-safe.
void WriteOutput(std::string_view text);
/// Writes to standard error. Ignores failures. Never throws. Thread-safe.
void WriteErrorOutput(std::string_view text);
/// Writes escape sequences of the program's own as they are. REQUIRES: `text` has nothing from outside.
void WriteControls(std::string_view text);
void WriteErrorControls(std::string_view text);
/// Writes output that is the only purpose of a command. If nobody reads standard output any more, ends the process by
/// SIGPIPE, as ls and cat do. REQUIRES: the process has no work that it must finish.
void WriteListing(std::string_view text);
/// Ends the process by SIGPIPE. Does nothing after IgnoreBrokenPipe().
void ExitOnBrokenPipe();
/// From now on, a missing reader of standard output does not end the process. For commands that do more than list.
void IgnoreBrokenPipe();
/// Returns the errno of the first write to standard output that failed, or 0.
int OutputFailure();
/// Flushes standard output, so that a reader that waits for the text gets it.
void FlushOutput();
/// Flushes standard output at the end of the process. Returns false if a write failed, unless only the reader was
/// missing.
bool FinishOutput();
/// Returns the width of the terminal in characters: $COLUMNS if it is a number, else that of the terminal behind the
/// descriptor, else 80.
int OutputColumns(int descriptor);

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

// The terminal of a live view: alternate screen, single keys, size.
#pragma once

#include <termios.h>

#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "millrace/base/clock.h"

namespace millrace::cli {

enum class TerminalKey { kNone, kQuit, kUp, kDown, kPageUp, kPageDown, kHome, kEnd };

/// Returns whether standard output is a terminal that takes colours: a terminal, no NO_COLOR, and TERM is not dumb.
bool WantsColours();

/// Holds the terminal of standard input and output while it lives: keys come one by one and are not shown. The
/// destructor gives back screen, cursor and settings. Ctrl-C still sends SIGINT. One at a time.
class Terminal {
 public:
  Terminal();
  ~Terminal();
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  struct Size {
    int width = 80, height = 24;
  };
  static Size GetSize();
  /// Draws the lines from the top, and clears what was below and beside them.
  void Draw(const std::vector<std::string>& lines);
  /// Waits for a key until `until`, or until `stop` fires or the window changes its size. Returns kNone if no key came.
  /// kQuit also at the end of the input.
  TerminalKey ReadKey(TimePoint until, std::stop_token stop);

 private:
  std::optional<termios> before_;
};

}  // namespace millrace::cli

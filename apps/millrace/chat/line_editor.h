// Edits a message in the terminal: one line of input with a history, as shells have it, without a library.
#pragma once

#include <termios.h>

#include <cstddef>
#include <functional>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

namespace millrace::cli {

/// A line of text with a cursor. Knows keys and no terminal. The text is UTF-8; the cursor is at the beginning of a
/// character.
class LineBuffer {
 public:
  void Insert(std::string_view text);
  void Left();
  void Right();
  void WordLeft();
  void WordRight();
  void Home() { cursor_ = 0; }
  void End() { cursor_ = text_.size(); }
  void EraseLeft();      ///< the character before the cursor
  void EraseRight();     ///< the character at the cursor
  void EraseWordLeft();  ///< Ctrl-W
  void EraseToEnd() { text_.resize(cursor_); }
  void EraseToBegin();
  void Set(std::string_view text);

  const std::string& text() const { return text_; }
  std::size_t cursor() const { return cursor_; }  ///< in bytes

 private:
  std::string text_;
  std::size_t cursor_ = 0;
};

/// How a line looks on a screen of `width` columns, behind a prompt of printable ASCII: text with explicit line breaks,
/// and where the cursor and the end are.
struct DrawnLine {
  std::string text;
  int cursor_row = 0, cursor_column = 0, end_row = 0;
};
/// Line feeds in the line are shown as "⏎"; other characters as HarmlessText() shows them.
DrawnLine DrawLine(std::string_view prompt, const LineBuffer& line, int width);

/// The columns that a character takes: 0, 1 or 2.
int ColumnsOf(char32_t character);

/// Holds the terminal of standard input while it lives: keys come one by one, unseen, and Ctrl-C is a key. The
/// destructor gives the settings back. One thread; one object at a time.
class LineEditor {
 public:
  LineEditor();
  ~LineEditor();
  LineEditor(const LineEditor&) = delete;
  LineEditor& operator=(const LineEditor&) = delete;

  /// Reads a message. Enter ends it, Alt-Enter adds a line, Ctrl-C empties it. Returns nothing at the end of the input
  /// (Ctrl-D in an empty line) and when `stop` fires.
  std::optional<std::string> Read(std::string_view prompt, std::stop_token stop);
  /// Blocks until the descriptor `done` is readable or `stop` fires. Runs `interrupt` on Ctrl-C. Other keys wait for
  /// the next Read.
  void WaitFor(int done, std::stop_token stop, const std::function<void()>& interrupt);
  /// Adds a message that ArrowUp brings back.
  void Remember(std::string text);

 private:
  enum class Outcome { kGoOn, kLine, kEnd };
  bool Fill(int timeout_ms, int other_fd);
  Outcome HandleKey(LineBuffer& line);
  Outcome HandleEscape(LineBuffer& line);
  void HandlePaste(LineBuffer& line);
  void Browse(LineBuffer& line, int step);
  void Show(std::string_view prompt, const LineBuffer& line);

  std::optional<termios> before_;
  std::string typed_;   ///< bytes that were read and not handled
  bool ended_ = false;  ///< the input has ended
  int cursor_row_ = 0;  ///< of the line on the screen, from the prompt's row
  std::vector<std::string> history_;
  std::size_t at_ = 0;  ///< the message of the history in the line; history_.size(): none
  std::string draft_;   ///< what was in the line before the history
};

}  // namespace millrace::cli

// Edits a message in the terminal: libedit's editor with the keys of a chat, pasted lines and a history.
#pragma once

#include <histedit.h>
#include <locale.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/result.h"

namespace millrace::cli {

/// Holds the terminal of standard input while it lives: keys come one by one, unseen, and Ctrl-C is a key. The
/// destructor gives the settings back. One thread; one object at a time.
class LineEditor {
 public:
  /// Takes the terminal. Reads the user's ~/.editrc, as all programs with libedit do.
  /// Errors: kUnavailable if standard input is no terminal, or the C library knows no UTF-8.
  static Result<std::unique_ptr<LineEditor>> Open();
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
  void Remember(const std::string& text);

 private:
  explicit LineEditor(locale_t utf8) : utf8_(utf8) {}
  Status Begin();
  void BindKeys();
  static LineEditor& Of(EditLine* editor);
  /// Runs the action of a key of the chat. libedit calls it.
  template <void (LineEditor::*kAction)()>
  static unsigned char Run(EditLine* editor, wint_t /*key*/) {
    (Of(editor).*kAction)();
    return CC_REFRESH;
  }

  bool Fill(int timeout_ms, int other_fd);
  int ReadCharacter(wchar_t* to);
  void FollowWidth();
  void Empty();
  void AddLine();
  void Paste();
  void Earlier();
  void Later();
  void Replace(const std::wstring& text);
  std::wstring Text() const;

  const locale_t utf8_;
  EditLine* editor_ = nullptr;
  std::wstring prompt_;
  std::stop_token stop_;
  std::string typed_;   ///< bytes that were read and not handled
  bool ended_ = false;  ///< the input has ended
  int width_ = 0;       ///< of the terminal, in columns
  std::vector<std::wstring> history_;
  std::size_t at_ = 0;  ///< the message of the history in the line; history_.size(): none
  std::wstring draft_;  ///< what was in the line before the history
};

}  // namespace millrace::cli

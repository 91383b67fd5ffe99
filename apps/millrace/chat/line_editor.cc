#include "apps/millrace/chat/line_editor.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "apps/common/output.h"
#include "apps/millrace/watch/terminal.h"
#include "millrace/serve/client/harmless_text.h"

namespace millrace::cli {
namespace {

constexpr int kLookMs = 100;   // how soon a stop is noticed
constexpr int kEscapeMs = 50;  // the rest of a key's sequence comes at once
constexpr std::size_t kHistory = 1000;
constexpr std::size_t kLongestLine = 4 * 1024 * 1024;
constexpr std::string_view kPasteBegins = "\x1b[200~", kPasteEnds = "\x1b[201~";
// Bracketed paste (xterm): pasted line feeds do not send the message.
constexpr std::string_view kPasteOn = "\x1b[?2004h", kPasteOff = "\x1b[?2004l";

bool IsContinuation(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) == 0x80; }

constexpr char Control(char letter) { return static_cast<char>(letter & 0x1F); }

struct CharacterRange {
  char32_t first, last;
};

/// Combining marks and joiners of the scripts that chats have. Others count as one column, which only misplaces the
/// cursor.
constexpr std::array kNoColumns = {
    CharacterRange{0x0300, 0x036F}, CharacterRange{0x0483, 0x0489}, CharacterRange{0x0591, 0x05BD},
    CharacterRange{0x0610, 0x061A}, CharacterRange{0x064B, 0x065F}, CharacterRange{0x0900, 0x0902},
    CharacterRange{0x0E31, 0x0E31}, CharacterRange{0x0E34, 0x0E3A}, CharacterRange{0x0E47, 0x0E4E},
    CharacterRange{0x1AB0, 0x1AFF}, CharacterRange{0x1DC0, 0x1DFF}, CharacterRange{0x200B, 0x200F},
    CharacterRange{0x20D0, 0x20FF}, CharacterRange{0xFE00, 0xFE0F}, CharacterRange{0xFE20, 0xFE2F},
};
/// East Asian wide characters and emoji (Unicode's EastAsianWidth.txt, W and F, by block).
constexpr std::array kTwoColumns = {
    CharacterRange{0x1100, 0x115F},   CharacterRange{0x231A, 0x231B},   CharacterRange{0x2E80, 0x303E},
    CharacterRange{0x3041, 0x33FF},   CharacterRange{0x3400, 0x4DBF},   CharacterRange{0x4E00, 0x9FFF},
    CharacterRange{0xA000, 0xA4CF},   CharacterRange{0xAC00, 0xD7A3},   CharacterRange{0xF900, 0xFAFF},
    CharacterRange{0xFE30, 0xFE6F},   CharacterRange{0xFF01, 0xFF60},   CharacterRange{0xFFE0, 0xFFE6},
    CharacterRange{0x1F300, 0x1F64F}, CharacterRange{0x1F680, 0x1F6FF}, CharacterRange{0x1F900, 0x1F9FF},
    CharacterRange{0x1FA70, 0x1FAFF}, CharacterRange{0x20000, 0x3FFFD},
};

bool In(const auto& ranges, char32_t c) {
  return std::ranges::any_of(ranges, [c](const CharacterRange& range) { return c >= range.first && c <= range.last; });
}

}  // namespace

int ColumnsOf(char32_t character) {
  if (character < 0x300) return 1;
  if (In(kNoColumns, character)) return 0;
  return In(kTwoColumns, character) ? 2 : 1;
}

void LineBuffer::Insert(std::string_view text) {
  if (text_.size() + text.size() > kLongestLine) return;
  text_.insert(cursor_, text);
  cursor_ += text.size();
}

void LineBuffer::Left() {
  if (cursor_ == 0) return;
  do --cursor_;
  while (cursor_ > 0 && IsContinuation(text_[cursor_]));
}

void LineBuffer::Right() {
  if (cursor_ == text_.size()) return;
  do ++cursor_;
  while (cursor_ < text_.size() && IsContinuation(text_[cursor_]));
}

void LineBuffer::WordLeft() {
  while (cursor_ > 0 && text_[cursor_ - 1] == ' ') --cursor_;
  while (cursor_ > 0 && text_[cursor_ - 1] != ' ') --cursor_;
}

void LineBuffer::WordRight() {
  while (cursor_ < text_.size() && text_[cursor_] == ' ') ++cursor_;
  while (cursor_ < text_.size() && text_[cursor_] != ' ') ++cursor_;
}

void LineBuffer::EraseLeft() {
  const std::size_t end = cursor_;
  Left();
  text_.erase(cursor_, end - cursor_);
}

void LineBuffer::EraseRight() {
  const std::size_t begin = cursor_;
  Right();
  text_.erase(begin, cursor_ - begin);
  cursor_ = begin;
}

void LineBuffer::EraseWordLeft() {
  const std::size_t end = cursor_;
  WordLeft();
  text_.erase(cursor_, end - cursor_);
}

void LineBuffer::EraseToBegin() {
  text_.erase(0, cursor_);
  cursor_ = 0;
}

void LineBuffer::Set(std::string_view text) {
  text_ = text;
  cursor_ = text_.size();
}

DrawnLine DrawLine(std::string_view prompt, const LineBuffer& line, int width) {
  DrawnLine drawn{.text = std::string(prompt)};
  int row = 0, column = static_cast<int>(prompt.size());
  const auto feed = [&] {
    drawn.text += "\r\n";
    ++row;
    column = 0;
  };
  const std::string& text = line.text();
  for (std::size_t at = 0, length = 0; at < text.size(); at += length) {
    const char32_t c = serve::CharacterAt(text, at, length);
    const bool line_feed = c == '\n';
    const int columns = line_feed ? 1 : ColumnsOf(c);
    // Terminals differ in what they do behind the last column: the break is ours.
    if (column + columns > width) feed();
    if (at == line.cursor()) {
      drawn.cursor_row = row;
      drawn.cursor_column = column;
    }
    drawn.text += line_feed ? "⏎" : c == '\t' ? " " : serve::HarmlessText(std::string_view(text).substr(at, length));
    column += columns;
  }
  if (column >= width) feed();
  if (line.cursor() == text.size()) {
    drawn.cursor_row = row;
    drawn.cursor_column = column;
  }
  drawn.end_row = row;
  return drawn;
}

LineEditor::LineEditor() {
  termios settings{};
  if (::tcgetattr(STDIN_FILENO, &settings) != 0) return;
  before_ = settings;
  settings.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO | ISIG | IEXTEN);
  settings.c_iflag &= ~static_cast<tcflag_t>(ICRNL | INLCR | IGNCR);
  settings.c_cc[VMIN] = 1;
  settings.c_cc[VTIME] = 0;
  ::tcsetattr(STDIN_FILENO, TCSADRAIN, &settings);
  WriteOutput(kPasteOn);
  FlushOutput();
}

LineEditor::~LineEditor() {
  if (!before_) return;
  WriteOutput(kPasteOff);
  FlushOutput();
  ::tcsetattr(STDIN_FILENO, TCSADRAIN, &*before_);
}

/// Reads what was typed. Waits for at most `timeout_ms`, or until `other_fd` is readable, which it returns.
bool LineEditor::Fill(int timeout_ms, int other_fd) {
  pollfd fds[] = {{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0},
                  {.fd = other_fd, .events = POLLIN, .revents = 0}};
  if (ended_) fds[0].fd = -1;  // at its end it would be readable for ever
  if (::poll(fds, 2, timeout_ms) <= 0) return false;
  if (fds[0].revents != 0) {
    char bytes[4096];
    const ssize_t n = ::read(STDIN_FILENO, bytes, sizeof bytes);
    if (n > 0) {
      typed_.append(bytes, static_cast<std::size_t>(n));
    } else if (n == 0 || errno != EINTR) {
      ended_ = true;
    }
  }
  return fds[1].revents != 0;
}

void LineEditor::Show(std::string_view prompt, const LineBuffer& line) {
  const DrawnLine drawn = DrawLine(prompt, line, std::max(4, Terminal::GetSize().width));
  std::string text = cursor_row_ > 0 ? fmt::format("\x1b[{}A\r\x1b[J", cursor_row_) : std::string("\r\x1b[J");
  text += drawn.text;
  if (drawn.end_row > drawn.cursor_row) text += fmt::format("\x1b[{}A", drawn.end_row - drawn.cursor_row);
  text += '\r';
  if (drawn.cursor_column > 0) text += fmt::format("\x1b[{}C", drawn.cursor_column);
  cursor_row_ = drawn.cursor_row;
  WriteOutput(text);
  FlushOutput();
}

std::optional<std::string> LineEditor::Read(std::string_view prompt, std::stop_token stop) {
  LineBuffer line;
  at_ = history_.size();
  draft_.clear();
  cursor_row_ = 0;
  Show(prompt, line);
  Outcome outcome = Outcome::kGoOn;
  int width = Terminal::GetSize().width;
  while (outcome == Outcome::kGoOn && !stop.stop_requested()) {
    if (typed_.empty()) {
      if (ended_) break;
      Fill(kLookMs, -1);
      if (const int now = Terminal::GetSize().width; std::exchange(width, now) != now) Show(prompt, line);
      if (typed_.empty()) continue;
    }
    while (outcome == Outcome::kGoOn && !typed_.empty()) outcome = HandleKey(line);
    Show(prompt, line);
  }
  if (outcome == Outcome::kLine) line.End();
  Show(prompt, line);
  WriteOutput("\n");
  FlushOutput();
  if (outcome != Outcome::kLine) return std::nullopt;
  return line.text();
}

LineEditor::Outcome LineEditor::HandleKey(LineBuffer& line) {
  const char key = typed_.front();
  if (key == '\x1b') return HandleEscape(line);
  if (static_cast<unsigned char>(key) >= 0xC2) {
    // The rest of a character may still be on its way.
    const auto first = static_cast<unsigned char>(key);
    const std::size_t size = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
    while (typed_.size() < size && !ended_ && std::all_of(typed_.begin() + 1, typed_.end(), IsContinuation)) {
      const std::size_t before = typed_.size();
      Fill(kEscapeMs, -1);
      if (typed_.size() == before) break;
    }
    std::size_t length = 0;
    if (serve::CharacterAt(typed_, 0, length) != 0xFFFD || length == 3) line.Insert(typed_.substr(0, length));
    typed_.erase(0, length);
    return Outcome::kGoOn;
  }
  typed_.erase(0, 1);
  switch (key) {
    case '\r':
    case '\n':
      return Outcome::kLine;
    case Control('C'):
      line.Set("");
      at_ = history_.size();
      break;
    case Control('D'):
      if (line.text().empty()) return Outcome::kEnd;
      line.EraseRight();
      break;
    case Control('H'):
    case '\x7f':
      line.EraseLeft();
      break;
    case Control('A'):
      line.Home();
      break;
    case Control('E'):
      line.End();
      break;
    case Control('B'):
      line.Left();
      break;
    case Control('F'):
      line.Right();
      break;
    case Control('K'):
      line.EraseToEnd();
      break;
    case Control('U'):
      line.EraseToBegin();
      break;
    case Control('W'):
      line.EraseWordLeft();
      break;
    case Control('P'):
      Browse(line, -1);
      break;
    case Control('N'):
      Browse(line, 1);
      break;
    default:
      if (static_cast<unsigned char>(key) >= 0x20 && static_cast<unsigned char>(key) < 0x7F) line.Insert({&key, 1});
  }
  return Outcome::kGoOn;
}

/// Handles a key that begins with ESC: the cursor's keys, Alt with a key, and pasted text.
LineEditor::Outcome LineEditor::HandleEscape(LineBuffer& line) {
  const auto is_whole = [this] {
    if (typed_.size() < 2) return false;
    if (typed_[1] != '[' && typed_[1] != 'O') return true;
    return std::any_of(typed_.begin() + 2, typed_.end(), [](char c) { return c >= 0x40 && c <= 0x7E; });
  };
  while (!is_whole() && !ended_) {
    const std::size_t before = typed_.size();
    Fill(kEscapeMs, -1);
    if (typed_.size() == before) break;
  }
  if (typed_.starts_with(kPasteBegins)) {
    HandlePaste(line);
    return Outcome::kGoOn;
  }
  std::size_t length = std::min<std::size_t>(2, typed_.size());
  if (length == 2 && (typed_[1] == '[' || typed_[1] == 'O')) {
    while (length < typed_.size() && !(typed_[length] >= 0x40 && typed_[length] <= 0x7E)) ++length;
    length = std::min(length + 1, typed_.size());
  }
  const std::string key = typed_.substr(0, length);
  typed_.erase(0, length);
  if (key == "\x1b\r" || key == "\x1b\n") line.Insert("\n");
  if (key == "\x1b[A" || key == "\x1bOA") Browse(line, -1);
  if (key == "\x1b[B" || key == "\x1bOB") Browse(line, 1);
  if (key == "\x1b[C" || key == "\x1bOC") line.Right();
  if (key == "\x1b[D" || key == "\x1bOD") line.Left();
  if (key == "\x1b[1;5C" || key ==
                                "\x1b"
                                "f")
    line.WordRight();
  if (key == "\x1b[1;5D" || key ==
                                "\x1b"
                                "b")
    line.WordLeft();
  if (key == "\x1b[H" || key == "\x1bOH" || key == "\x1b[1~" || key == "\x1b[7~") line.Home();
  if (key == "\x1b[F" || key == "\x1bOF" || key == "\x1b[4~" || key == "\x1b[8~") line.End();
  if (key == "\x1b[3~") line.EraseRight();
  return Outcome::kGoOn;
}

void LineEditor::HandlePaste(LineBuffer& line) {
  std::size_t end = 0;
  while ((end = typed_.find(kPasteEnds)) == std::string::npos && !ended_ && typed_.size() < kLongestLine) {
    const std::size_t before = typed_.size();
    Fill(10 * kLookMs, -1);
    if (typed_.size() == before) break;  // a terminal that does not end its pastes
  }
  std::string text = typed_.substr(kPasteBegins.size(), std::min(end, typed_.size()) - kPasteBegins.size());
  typed_.erase(0, end == std::string::npos ? end : end + kPasteEnds.size());
  std::ranges::replace(text, '\r', '\n');
  line.Insert(text);
}

void LineEditor::Browse(LineBuffer& line, int step) {
  if (at_ == history_.size()) draft_ = line.text();
  if ((step < 0 && at_ == 0) || (step > 0 && at_ == history_.size())) return;
  at_ += static_cast<std::size_t>(step);
  line.Set(at_ == history_.size() ? draft_ : history_[at_]);
}

void LineEditor::WaitFor(int done, std::stop_token stop, const std::function<void()>& interrupt) {
  std::size_t seen = typed_.size();
  while (!stop.stop_requested() && !Fill(kLookMs, done)) {
    if (std::find(typed_.begin() + static_cast<std::ptrdiff_t>(seen), typed_.end(), Control('C')) != typed_.end()) {
      typed_.clear();  // what was typed before Ctrl-C is given up, as in a shell
      interrupt();
    }
    seen = typed_.size();
  }
}

void LineEditor::Remember(std::string text) {
  if (text.empty() || (!history_.empty() && history_.back() == text)) return;
  history_.push_back(std::move(text));
  if (history_.size() > kHistory) history_.erase(history_.begin());
}

}  // namespace millrace::cli

#include "apps/millrace/chat/line_editor.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "apps/common/output.h"
#include "apps/millrace/watch/terminal.h"
#include "millrace/base/harmless_text.h"
#include "millrace/base/result.h"
#include "millrace/tokenizer/unicode/utf8.h"

namespace millrace::cli {
namespace {

constexpr int kLookMs = 100;        // how soon a stop or another size of the window is noticed
constexpr int kRestMs = 50;         // the rest of a character comes at once
constexpr int kPasteRestMs = 1000;  // the rest of a paste comes soon
constexpr std::size_t kHistory = 1000;
constexpr std::size_t kLongestPaste = 4 * 1024 * 1024;
constexpr int kWholeLine = 1 << 30;
constexpr char kCtrlC = 3;
// Bracketed paste (xterm): pasted line feeds do not send the message.
constexpr std::string_view kPasteOn = "\x1b[?2004h", kPasteOff = "\x1b[?2004l", kPasteEnds = "\x1b[201~";
// In the editor, characters that a terminal would obey are private ones, which a terminal shows as boxes.
constexpr char32_t kBoxes = 0x100000;

/// Keys that libedit binds to something else, or not for all terminals.
constexpr std::array<std::pair<const wchar_t*, const wchar_t*>, 9> kLineKeys = {{
    {L"^U", L"vi-kill-line-prev"},
    {L"^W", L"ed-delete-prev-word"},
    {L"\\e[1;5C", L"em-next-word"},
    {L"\\e[1;5D", L"ed-prev-word"},
    {L"\\e[1~", L"ed-move-to-beg"},
    {L"\\e[7~", L"ed-move-to-beg"},
    {L"\\e[4~", L"ed-move-to-end"},
    {L"\\e[8~", L"ed-move-to-end"},
    {L"\\e[3~", L"ed-delete-next-char"},
}};

bool IsContinuation(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) == 0x80; }

bool NeedsBox(char32_t c) { return c == 0 || IsDeceptive(c); }

wchar_t Edited(char32_t c) { return static_cast<wchar_t>(NeedsBox(c) ? kBoxes + c : c); }

/// Returns a text as it is edited. Invalid bytes are left out.
std::wstring Edited(std::string_view text) {
  std::wstring edited;
  for (std::size_t at = 0, length = 0; at < text.size(); at += length) {
    const char32_t c = CharacterAt(text, at, length);
    if (c != 0xFFFD || length == 3) edited += Edited(c);
  }
  return edited;
}

std::string Sent(std::wstring_view edited) {
  std::string text;
  for (const wchar_t c : edited) {
    const char32_t inner = static_cast<char32_t>(c) - kBoxes;
    tokenizer::AppendUtf8(NeedsBox(inner) ? inner : static_cast<char32_t>(c), text);
  }
  return text;
}

/// While it lives, the calling thread's characters are UTF-8, whatever the user's locale: libedit asks the C library.
class Utf8Thread {
 public:
  explicit Utf8Thread(locale_t utf8) : before_(::uselocale(utf8)) {}
  ~Utf8Thread() { ::uselocale(before_); }
  Utf8Thread(const Utf8Thread&) = delete;
  Utf8Thread& operator=(const Utf8Thread&) = delete;

 private:
  const locale_t before_;
};

}  // namespace

LineEditor& LineEditor::Of(EditLine* editor) {
  void* self = nullptr;
  el_wget(editor, EL_CLIENTDATA, &self);
  return *static_cast<LineEditor*>(self);
}

Result<std::unique_ptr<LineEditor>> LineEditor::Open() {
  const locale_t utf8 = ::newlocale(LC_CTYPE_MASK, "C.UTF-8", nullptr);
  if (utf8 == nullptr) return Fail(Code::kUnavailable, "the C library does not know the locale C.UTF-8");
  std::unique_ptr<LineEditor> made(new LineEditor(utf8));
  MR_TRY(made->Begin());
  return made;
}

Status LineEditor::Begin() {
  const Utf8Thread thread(utf8_);
  FlushOutput();
  editor_ = el_init("millrace", stdin, stdout, stderr);
  if (editor_ == nullptr || ::isatty(STDIN_FILENO) != 1) {
    return Fail(Code::kUnavailable, "standard input cannot be edited: it is no terminal");
  }
  el_wset(editor_, EL_CLIENTDATA, this);
  el_wset(editor_, EL_GETCFN, +[](EditLine* editor, wchar_t* to) { return Of(editor).ReadCharacter(to); });
  el_wset(editor_, EL_PROMPT, +[](EditLine* editor) { return Of(editor).prompt_.data(); });
  el_wset(editor_, EL_EDITOR, L"emacs");
  el_source(editor_, nullptr);
  el_wset(editor_, EL_EDITMODE, 1);
  // Ctrl-C is a key, and what is typed while an answer comes stays unseen.
  el_wset(editor_, EL_SETTY, L"-d", L"-isig", nullptr);
  el_wset(editor_, EL_SETTY, L"-x", L"-isig", L"-icanon", L"-echo", L"-iexten", nullptr);
  BindKeys();
  WriteControls(kPasteOn);
  FlushOutput();
  return {};
}

void LineEditor::BindKeys() {
  for (const auto& [key, action] : kLineKeys) {
    el_wset(editor_, EL_BIND, key, action, nullptr);
  }
  const auto bind = [this](const wchar_t* name, auto* action, std::initializer_list<const wchar_t*> keys) {
    el_wset(editor_, EL_ADDFN, name, L"a key of the chat", action);
    for (const wchar_t* key : keys) el_wset(editor_, EL_BIND, key, name, nullptr);
  };
  // libedit's own history keeps at most 1,023 characters of the line that is left for it.
  bind(L"chat-earlier", &Run<&LineEditor::Earlier>, {L"^P", L"\\e[A", L"\\eOA"});
  bind(L"chat-later", &Run<&LineEditor::Later>, {L"^N", L"\\e[B", L"\\eOB"});
  bind(L"chat-empty", &Run<&LineEditor::Empty>, {L"^C"});
  bind(L"chat-add-line", &Run<&LineEditor::AddLine>, {L"\\e^M", L"\\e^J"});
  bind(L"chat-paste", &Run<&LineEditor::Paste>, {L"\\e[200~"});
}

LineEditor::~LineEditor() {
  if (editor_ != nullptr) {
    const Utf8Thread thread(utf8_);
    WriteControls(kPasteOff);
    FlushOutput();
    el_end(editor_);
  }
  ::freelocale(utf8_);
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

/// Gives libedit the next character. Returns 1, or 0 at the end of the input and when stop_ fires.
int LineEditor::ReadCharacter(wchar_t* to) {
  while (!stop_.stop_requested()) {
    if (typed_.empty()) {
      if (ended_) return 0;
      Fill(kLookMs, -1);
      FollowWidth();
      continue;
    }
    const auto first = static_cast<unsigned char>(typed_.front());
    const std::size_t size = first < 0xC2 ? 1 : first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
    while (typed_.size() < size && !ended_ && std::all_of(typed_.begin() + 1, typed_.end(), IsContinuation)) {
      const std::size_t before = typed_.size();
      Fill(kRestMs, -1);
      if (typed_.size() == before) break;
    }
    std::size_t length = 0;
    const char32_t c = CharacterAt(typed_, 0, length);
    typed_.erase(0, length);
    if (c == 0xFFFD && length != 3) continue;  // no character
    *to = Edited(c);
    return 1;
  }
  return 0;
}

/// Draws the line anew after the window has changed.
void LineEditor::FollowWidth() {
  const int width = Terminal::GetSize().width;
  if (std::exchange(width_, width) == width) return;
  el_resize(editor_);
  WriteControls("\r\x1b[J");
  FlushOutput();
  el_wset(editor_, EL_REFRESH);
}

std::optional<std::string> LineEditor::Read(std::string_view prompt, std::stop_token stop) {
  const Utf8Thread thread(utf8_);
  prompt_ = Edited(prompt);
  stop_ = std::move(stop);
  at_ = history_.size();
  draft_.clear();
  width_ = Terminal::GetSize().width;
  FlushOutput();
  el_resize(editor_);
  int characters = 0;
  const wchar_t* line = el_wgets(editor_, &characters);
  if (line == nullptr || stop_.stop_requested()) {
    WriteOutput("\n");
    FlushOutput();
    return std::nullopt;
  }
  std::wstring_view text(line, static_cast<std::size_t>(characters));
  if (text.ends_with(L'\n')) text.remove_suffix(1);
  return Sent(text);
}

std::wstring LineEditor::Text() const {
  const LineInfoW* line = el_wline(editor_);
  return {line->buffer, line->lastchar};
}

void LineEditor::Replace(const std::wstring& text) {
  el_cursor(editor_, kWholeLine);
  el_deletestr(editor_, static_cast<int>(Text().size()));
  if (!text.empty()) el_winsertstr(editor_, text.c_str());
}

/// Inserts what was pasted. Other keys come again only behind its end.
void LineEditor::Paste() {
  std::size_t end = 0;
  while ((end = typed_.find(kPasteEnds)) == std::string::npos && !ended_ && typed_.size() < kLongestPaste) {
    const std::size_t before = typed_.size();
    Fill(kPasteRestMs, -1);
    if (typed_.size() == before) break;  // a terminal that does not end its pastes
  }
  std::wstring text = Edited(std::string_view(typed_).substr(0, end));
  typed_.erase(0, end == std::string::npos ? end : end + kPasteEnds.size());
  std::ranges::replace(text, L'\r', L'\n');
  if (!text.empty()) el_winsertstr(editor_, text.c_str());
}

void LineEditor::Empty() {
  Replace(L"");
  at_ = history_.size();
}

void LineEditor::AddLine() { el_winsertstr(editor_, L"\n"); }

void LineEditor::Earlier() {
  if (at_ == 0) return;
  if (at_ == history_.size()) draft_ = Text();
  Replace(history_[--at_]);
}

void LineEditor::Later() {
  if (at_ == history_.size()) return;
  ++at_;
  Replace(at_ == history_.size() ? draft_ : history_[at_]);
}

void LineEditor::WaitFor(int done, std::stop_token stop, const std::function<void()>& interrupt) {
  std::size_t seen = typed_.size();
  while (!stop.stop_requested() && !Fill(kLookMs, done)) {
    if (typed_.find(kCtrlC, seen) != std::string::npos) {
      typed_.clear();  // what was typed before Ctrl-C is given up, as in a shell
      interrupt();
    }
    seen = typed_.size();
  }
}

void LineEditor::Remember(const std::string& text) {
  std::wstring edited = Edited(text);
  if (edited.empty() || (!history_.empty() && history_.back() == edited)) return;
  history_.push_back(std::move(edited));
  if (history_.size() > kHistory) history_.erase(history_.begin());
}

}  // namespace millrace::cli

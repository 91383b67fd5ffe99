#include "apps/millrace/watch/terminal.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "apps/common/output.h"

namespace millrace::cli {
namespace {

// xterm's control sequences, which all terminals of today know (ECMA-48; private modes 25 and 1049).
constexpr std::string_view kEnter = "\x1b[?1049h\x1b[?25l", kLeave = "\x1b[?25h\x1b[?1049l";
constexpr std::string_view kHome = "\x1b[H", kClearLine = "\x1b[K", kClearBelow = "\x1b[J";
constexpr auto kLook = std::chrono::milliseconds(100);  // how soon a stop or a new size is noticed

TerminalKey KeyOf(std::string_view typed) {
  if (typed == "q" || typed == "Q" || typed == "\x04") return TerminalKey::kQuit;
  if (typed == "k" || typed == "\x1b[A" || typed == "\x1bOA") return TerminalKey::kUp;
  if (typed == "j" || typed == "\x1b[B" || typed == "\x1bOB") return TerminalKey::kDown;
  if (typed == "\x1b[5~" || typed == "b") return TerminalKey::kPageUp;
  if (typed == "\x1b[6~" || typed == " ") return TerminalKey::kPageDown;
  if (typed == "\x1b[H" || typed == "\x1bOH" || typed == "\x1b[1~" || typed == "g") return TerminalKey::kHome;
  if (typed == "\x1b[F" || typed == "\x1bOF" || typed == "\x1b[4~" || typed == "G") return TerminalKey::kEnd;
  return TerminalKey::kNone;
}

}  // namespace

bool WantsColours() {
  const char* no_colour = std::getenv("NO_COLOR");  // https://no-color.org
  const char* term = std::getenv("TERM");
  return ::isatty(STDOUT_FILENO) == 1 && (no_colour == nullptr || *no_colour == '\0') &&
         (term == nullptr || std::string_view(term) != "dumb");
}

Terminal::Terminal() {
  termios settings{};
  if (::tcgetattr(STDIN_FILENO, &settings) == 0) {
    before_ = settings;
    settings.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
    settings.c_cc[VMIN] = 1;
    settings.c_cc[VTIME] = 0;
    ::tcsetattr(STDIN_FILENO, TCSANOW, &settings);
  }
  WriteControls(kEnter);
  FlushOutput();
}

Terminal::~Terminal() {
  WriteControls(kLeave);
  FlushOutput();
  if (before_) ::tcsetattr(STDIN_FILENO, TCSANOW, &*before_);
}

Terminal::Size Terminal::GetSize() {
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0 || size.ws_row == 0) return {};
  return {.width = size.ws_col, .height = size.ws_row};
}

void Terminal::Draw(const std::vector<std::string>& lines) {
  std::string text(kHome);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    text += lines[i];
    text += kClearLine;
    if (i + 1 < lines.size()) text += "\r\n";
  }
  text += kClearBelow;
  WriteControls(text);
  FlushOutput();
}

TerminalKey Terminal::ReadKey(TimePoint until, std::stop_token stop) {
  const Size before = GetSize();
  while (!stop.stop_requested()) {
    const Duration left = until - SystemClock().Now();
    if (left <= Duration(0)) return TerminalKey::kNone;
    const auto wait = std::chrono::ceil<std::chrono::milliseconds>(std::min<Duration>(left, kLook));
    pollfd input{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
    if (::poll(&input, 1, static_cast<int>(wait.count())) > 0) {
      char typed[16];  // a key is one read: terminals send its sequence at once
      const ssize_t n = ::read(STDIN_FILENO, typed, sizeof typed);
      if (n <= 0) return TerminalKey::kQuit;
      return KeyOf({typed, static_cast<std::size_t>(n)});
    }
    const Size now = GetSize();
    if (now.width != before.width || now.height != before.height) return TerminalKey::kNone;
  }
  return TerminalKey::kNone;
}

}  // namespace millrace::cli

#include "apps/common/output.h"

#include <signal.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>

#include "millrace/base/harmless_text.h"
#include "millrace/base/result.h"

namespace millrace::cli {
namespace {

/// The errno of the first write to standard output that failed; 0: none failed. Global, because the stream is.
std::atomic<int>& FirstFailure() {
  static std::atomic<int> failure = 0;
  return failure;
}

std::atomic<bool>& BrokenPipeIsIgnored() {
  static std::atomic<bool> is_ignored = false;
  return is_ignored;
}

void NoteFailure(int errno_value) {
  int none = 0;
  if (!FirstFailure().compare_exchange_strong(none, errno_value) || errno_value == EPIPE) return;
  WriteErrorOutput("millrace: " + ErrnoError(errno_value, "cannot write to standard output").ToString() + "\n");
}

}  // namespace

void IgnoreBrokenPipe() { BrokenPipeIsIgnored() = true; }

void ExitOnBrokenPipe() {
  if (BrokenPipeIsIgnored()) return;
  signal(SIGPIPE, SIG_DFL);
  sigset_t pipe;
  sigemptyset(&pipe);
  sigaddset(&pipe, SIGPIPE);
  pthread_sigmask(SIG_UNBLOCK, &pipe, nullptr);
  raise(SIGPIPE);
  _exit(128 + SIGPIPE);
}

void WriteOutput(std::string_view text) {
  if (::isatty(STDOUT_FILENO) == 1) return WriteControls(HarmlessText(text));
  WriteControls(text);
}

void WriteControls(std::string_view text) {
  if (FirstFailure() != 0) return;
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size()) NoteFailure(errno);
}

void WriteErrorOutput(std::string_view text) {
  if (::isatty(STDERR_FILENO) == 1) return WriteErrorControls(HarmlessText(text));
  WriteErrorControls(text);
}

void WriteErrorControls(std::string_view text) {
  // Lines of standard output that were printed before come before, where both go to one file.
  FlushOutput();
  // One write per message, so that messages of several processes do not mix. A failure cannot be reported anywhere.
  while (!text.empty()) {
    const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return;
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

void WriteListing(std::string_view text) {
  WriteOutput(text);
  if (FirstFailure() == EPIPE) ExitOnBrokenPipe();
}

int OutputFailure() { return FirstFailure(); }

void FlushOutput() {
  if (FirstFailure() == 0 && std::fflush(stdout) != 0) NoteFailure(errno);
}

bool FinishOutput() {
  FlushOutput();
  return FirstFailure() == 0 || FirstFailure() == EPIPE;
}

int OutputColumns(int descriptor) {
  constexpr int kUsual = 80;
  const char* variable = std::getenv("COLUMNS");
  const std::string_view text = variable != nullptr ? variable : "";
  int columns = 0;
  std::from_chars(text.data(), text.data() + text.size(), columns);
  if (columns > 0) return columns;
  winsize size{};
  return ::ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : kUsual;
}

}  // namespace millrace::cli

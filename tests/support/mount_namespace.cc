#include "tests/support/mount_namespace.h"

#include <unistd.h>

namespace millrace::testing_support {
namespace {

constexpr char kEnd = '\1';  // of an answer

}  // namespace

Result<MountNamespace> MountNamespace::Make() {
  std::vector<std::string> argv = {"unshare", "--mount", "--propagation", "private"};
  if (::geteuid() != 0) argv.insert(argv.end(), {"--user", "--map-root-user"});
  argv.insert(argv.end(),
              {"sh", "-c", R"(printf '\001'; while read -r line; do eval "$line" 2>&1; printf '\001'; done)"});
  MountNamespace made(MR_TRY(
      Subprocess::Start({.argv = std::move(argv), .capture_stdout = true, .null_stdin = false, .pipe_stdin = true})));
  char c = 0;
  if (::read(made.shell_.stdout_fd(), &c, 1) != 1) {
    return Fail(Code::kUnsupported, "this process may not make a mount namespace");
  }
  return made;
}

std::string MountNamespace::Run(const std::string& command) {
  const std::string line = command + "\n";
  if (::write(shell_.stdin_fd(), line.data(), line.size()) < 0) return "the shell has ended";
  std::string answer;
  for (char c = 0; ::read(shell_.stdout_fd(), &c, 1) == 1 && c != kEnd;) answer += c;
  return answer;
}

}  // namespace millrace::testing_support

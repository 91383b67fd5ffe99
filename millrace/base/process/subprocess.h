// Child processes. They are started without a shell and are always reaped.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "millrace/base/clock.h"
#include "millrace/base/files/files.h"
#include "millrace/base/result.h"

namespace millrace {

/// The end of a child: its exit code or signal.
struct ExitState {
  int exit_code = 0;  ///< meaningful when signal == 0
  int signal = 0;
  bool ok() const { return exit_code == 0 && signal == 0; }
  std::string ToString() const;  ///< "exit status 3", "killed by signal 9 (Killed)"
};

/// A running child. The destructor kills it (with its process group, if it has one) and reaps it. One owner, one
/// thread.
class Subprocess {
 public:
  struct Options {
    std::vector<std::string> argv;           ///< argv[0] is looked up in PATH unless it has a slash
    std::map<std::string, std::string> env;  ///< added to this process's environment; these values win
    std::vector<std::string> unset_env;
    std::filesystem::path working_directory;         ///< empty: this process's
    std::filesystem::path stdout_file, stderr_file;  ///< appended to; empty: inherited; equal paths share one file
    bool capture_stdout = false;                     ///< for ReadStdout(); excludes stdout_file
    bool null_stdin = true;
    bool pipe_stdin = false;        ///< for stdin_fd(); excludes null_stdin's /dev/null
    bool own_process_group = true;  ///< signals then reach the child's children too
    /// Signals the child when this process dies (PR_SET_PDEATHSIG). The kernel watches the thread that calls Start: the
    /// signal also comes when that thread ends. Children of the child do not get it; see `inherited_fds`.
    bool die_with_parent = true;
    int death_signal = SIGKILL;  ///< what `die_with_parent` sends
    /// Descriptors of this process that the child inherits under the same numbers. Borrowed until Start returns.
    std::vector<int> inherited_fds;
  };
  static Result<Subprocess> Start(Options options);
  /// Starts a child, waits for it and captures its standard output (at most 64 MiB).
  struct Output {
    ExitState state;
    std::string stdout_text;
  };
  static Result<Output> Run(Options options);

  Subprocess(Subprocess&&) noexcept;
  Subprocess& operator=(Subprocess&&) noexcept;
  ~Subprocess();

  pid_t pid() const { return pid_; }
  /// Returns a pidfd (pidfd_open(2)). It becomes readable when the child ends. Owned by the Subprocess.
  int pidfd() const { return pidfd_.get(); }
  /// Returns the child's exit state, or nothing while it runs. Never blocks.
  std::optional<ExitState> Poll();
  /// Blocks until the child ends and returns its exit state. Returns nothing if `timeout` passes first.
  std::optional<ExitState> Wait(std::optional<Duration> timeout = std::nullopt);
  /// Sends a signal to the child's process group, or to the child if it has none. Does nothing after the child has
  /// ended.
  void Signal(int signal_number);
  /// Leaves the child alone: the destructor neither kills nor reaps it. REQUIRES: not `die_with_parent`.
  void Detach() { pid_ = -1; }
  /// Sends SIGTERM, and SIGKILL if the child still runs after `grace`. Reaps it.
  ExitState Stop(Duration grace);
  /// Reads the child's standard output until it is closed. REQUIRES: capture_stdout.
  Result<std::string> ReadStdout(std::size_t max_bytes);
  /// The ends of the pipes that this process has, for callers that talk with a child while it runs; -1 without
  /// capture_stdout or pipe_stdin. Owned by the Subprocess.
  int stdout_fd() const { return stdout_.get(); }
  int stdin_fd() const { return stdin_.get(); }
  /// The child reads the end of its input.
  void CloseStdin() { stdin_.Reset(); }

 private:
  Subprocess() = default;
  pid_t pid_ = -1;
  bool group_ = false;
  UniqueFd pidfd_, stdin_, stdout_;
  std::optional<ExitState> state_;
};

/// Returns a name with a slash as it is, and the first program of another name in PATH. Errors: kNotFound.
Result<std::string> FindProgram(const std::string& name);
/// Returns the folder of the running program. Its sibling programs (millrace-train) are there.
Result<std::filesystem::path> ProgramDirectory();

}  // namespace millrace

// Child processes: started without a shell, always reaped.
#pragma once

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

/// How a child ended.
struct ExitState {
  int exit_code = 0;  ///< meaningful when signal == 0
  int signal = 0;
  bool ok() const { return exit_code == 0 && signal == 0; }
  std::string ToString() const;  ///< "exit status 3", "killed by signal 9 (Killed)"
};

/// A running child. Destruction kills it (its whole process group when it has one) and reaps it. One owner, one thread.
class Subprocess {
 public:
  struct Options {
    std::vector<std::string> argv;           ///< argv[0] is looked up in PATH unless it has a slash
    std::map<std::string, std::string> env;  ///< added to, and winning over, this process's environment
    std::vector<std::string> unset_env;
    std::filesystem::path working_directory;         ///< empty: this process's
    std::filesystem::path stdout_file, stderr_file;  ///< appended to; empty: inherited; equal paths share one file
    bool capture_stdout = false;                     ///< ReadStdout() gives it; excludes stdout_file
    bool null_stdin = true;
    bool own_process_group = true;  ///< signals then reach the child's children too
    /// SIGKILL when this process dies, however it dies. The system watches the thread that calls Start: the child is
    /// killed when that thread ends. Children of the child are not reached, see `inherited_fds`.
    bool die_with_parent = true;
    /// Descriptors of this process that the child has too, under the same numbers. Borrowed until Start returns.
    std::vector<int> inherited_fds;
  };
  static Result<Subprocess> Start(Options options);
  /// Starts, waits, captures standard output (at most 64 MiB).
  struct Output {
    ExitState state;
    std::string stdout_text;
  };
  static Result<Output> Run(Options options);

  Subprocess(Subprocess&&) noexcept;
  Subprocess& operator=(Subprocess&&) noexcept;
  ~Subprocess();

  pid_t pid() const { return pid_; }
  /// A pidfd: readable once the child has ended; poll it beside other descriptors. Owned by the Subprocess.
  int pidfd() const { return pidfd_.get(); }
  /// Has it ended? Never blocks; the state is remembered.
  std::optional<ExitState> Poll();
  /// Blocks until the child ends, or returns nothing once `timeout` has passed.
  std::optional<ExitState> Wait(std::optional<Duration> timeout = std::nullopt);
  /// To the process group when it has one. Does nothing after the child has ended.
  void Signal(int signal_number);
  /// SIGTERM, then SIGKILL after `grace`; reaps.
  ExitState Stop(Duration grace);
  Result<std::string> ReadStdout(std::size_t max_bytes);

 private:
  Subprocess() = default;
  pid_t pid_ = -1;
  bool group_ = false;
  UniqueFd pidfd_, stdout_;
  std::optional<ExitState> state_;
};

/// The path of the running program's folder, where its sibling programs (millrace-train) are.
Result<std::filesystem::path> ProgramDirectory();

}  // namespace millrace

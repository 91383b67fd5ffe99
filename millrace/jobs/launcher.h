// How the ranks of a job are started, watched and signalled, whatever starts them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <stop_token>
#include <string>

#include "millrace/base/clock.h"
#include "millrace/base/process/subprocess.h"
#include "millrace/base/result.h"

namespace millrace::jobs {

/// What is known of one rank at this moment.
struct RankState {
  std::int64_t pid = 0;               ///< 0 where a launcher has no process to name
  std::optional<ExitState> exit;      ///< nothing: it runs
  std::optional<std::uint64_t> step;  ///< the last one it reported in this attempt; nothing: it is still starting
  std::uint64_t beats = 0;            ///< signs of life seen in this attempt
};

/// Starts all ranks of a job and knows how each is doing. One owner thread, and it must stay alive while ranks run:
/// local ranks die with the thread that started them. Destruction kills and reaps what still runs.
class Launcher {
 public:
  virtual ~Launcher() = default;
  virtual int ranks() const = 0;
  /// Starts every rank, or none: what had been started is gone when this fails. No rank may run when it is called.
  /// `attempt` counts from 1.
  virtual Status Start(int attempt) = 0;
  /// Waits until a rank has ended, has shown a sign of life, `until` has come or `stop` fires; may return sooner.
  /// Returns every rank's state, valid until the next call. Before the first Start there are none.
  virtual std::span<const RankState> Wait(TimePoint until, std::stop_token stop) = 0;
  /// To every rank that still runs.
  virtual void Signal(int signal_number) = 0;
  /// The last lines that a rank wrote to standard error in this attempt, to show with its failure.
  virtual std::string ErrorTail(int rank, int lines) = 0;
};

}  // namespace millrace::jobs

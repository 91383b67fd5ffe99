// Classifies crash loops: the data of a step fail, a machine fails, or no attempt gets started.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace millrace::jobs {

/// The last failures of a job. One owner, no locking.
class CrashLoop {
 public:
  /// A failed attempt.
  struct Attempt {
    std::optional<std::uint64_t> step;  ///< the last one that was made
    std::string node;                   ///< of the rank that failed; empty: unknown, or the only one
    bool fruitless = true;
  };
  /// `sequences_per_step`: 0 if unknown.
  explicit CrashLoop(std::uint64_t sequences_per_step) : sequences_per_step_(sequences_per_step) {}

  void RecordAttempt(Attempt attempt);
  /// Returns the node on which the last two attempts failed without progress between, or the last three with; "" if
  /// there is none.
  std::string Suspect() const;
  /// Forgets what pointed at a node that is now left out.
  void ForgetNodes();
  /// Returns what the last fruitless attempts have in common, and what to do: sentences.
  /// REQUIRES: Note() was called.
  std::string Explain() const;

 private:
  const std::uint64_t sequences_per_step_;
  std::vector<Attempt> streak_;     ///< the fruitless attempts at the end, and the one before
  std::vector<std::string> nodes_;  ///< of the last failures
};

}  // namespace millrace::jobs

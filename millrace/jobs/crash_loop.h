// Tells crash loops apart: does a step's data fail, or a machine, or does nothing get started?
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace millrace::jobs {

/// The last failures of a job. One owner, no locking.
class CrashLoop {
 public:
  /// How an attempt failed.
  struct Attempt {
    std::optional<std::uint64_t> step;  ///< the last one that was made
    std::string node;                   ///< of the rank that failed; empty: unknown, or the only one
    bool fruitless = true;
  };
  /// `sequences_per_step`: 0 if unknown.
  explicit CrashLoop(std::uint64_t sequences_per_step) : sequences_per_step_(sequences_per_step) {}

  void Note(Attempt attempt);
  /// Returns the node on which the last two attempts failed without progress between, or the last three with; "" if
  /// there is none.
  std::string Suspect() const;
  /// Forgets what pointed at a node that is now left out.
  void Forgive();
  /// Returns what the last fruitless attempts have in common, and what to do: sentences.
  /// REQUIRES: Note() was called.
  std::string Explain() const;

 private:
  const std::uint64_t sequences_per_step_;
  std::vector<Attempt> streak_;     ///< the fruitless attempts at the end, and the one before
  std::vector<std::string> nodes_;  ///< of the last failures
};

}  // namespace millrace::jobs

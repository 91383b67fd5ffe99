// Predicts which parameters are used next.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace millrace::engine {

/// Records the order in which groups are used, and expects the same order the next time. A value type.
class UseOrder {
 public:
  /// Begins from the start: what was recorded since the last call is expected from now on, if it is anything.
  void Restart();
  /// Records a use. A use that was not expected ends the expectations until the next Restart().
  void Add(std::size_t group);
  /// Returns the group that is expected to be used after `ahead` others; nothing if that is not known.
  std::optional<std::size_t> Next(std::size_t ahead = 0) const;

 private:
  std::vector<std::size_t> expected_, recorded_;
  bool as_expected_ = true;
};

}  // namespace millrace::engine

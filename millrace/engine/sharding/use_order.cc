#include "millrace/engine/sharding/use_order.h"

#include <utility>

namespace millrace::engine {

void UseOrder::Restart() {
  if (!recorded_.empty()) expected_ = std::exchange(recorded_, {});
  as_expected_ = true;
}

void UseOrder::Add(std::size_t group) {
  as_expected_ = as_expected_ && recorded_.size() < expected_.size() && expected_[recorded_.size()] == group;
  recorded_.push_back(group);
}

std::optional<std::size_t> UseOrder::Next(std::size_t ahead) const {
  const std::size_t at = recorded_.size() + ahead;
  if (!as_expected_ || at >= expected_.size()) return std::nullopt;
  return expected_[at];
}

}  // namespace millrace::engine

// Numbers that tests exchange, held as a library of tensors holds them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "millrace/collectives/elements.h"

namespace millrace::collectives {

/// Numbers in memory that copies, and their Elements, share and keep.
template <class T>
class Array {
 public:
  explicit Array(std::vector<T> values) : values_(std::make_shared<std::vector<T>>(std::move(values))) {}
  explicit Array(std::int64_t count, T value = {}) : Array(std::vector<T>(static_cast<std::size_t>(count), value)) {}

  std::vector<T>& values() const { return *values_; }
  /// Returns a view of some of them.
  Elements Part(std::int64_t begin, std::int64_t count) const {
    Elements part(values_->data() + begin, kTypeOf<T>, count);
    part.owner = values_;
    return part;
  }
  bool IsFilledWith(T value) const {
    return std::ranges::all_of(*values_, [&](const T& each) { return each == value; });
  }

 private:
  std::shared_ptr<std::vector<T>> values_;
};

template <class T>
struct ElementsOf<Array<T>> {
  static Elements View(const Array<T>& array) {
    return array.Part(0, static_cast<std::int64_t>(array.values().size()));
  }
};

}  // namespace millrace::collectives

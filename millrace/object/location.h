// A key or prefix together with its store.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "millrace/object/store.h"

namespace millrace::object {

/// A place that most commands and modules read or write. Each user says whether `key` is a key or a prefix.
struct Location {
  std::shared_ptr<Store> store;  ///< the bucket
  std::string key;               ///< a key or a prefix
};

/// A Location that is only read from.
struct ReadLocation {
  std::shared_ptr<ReadStore> store;  ///< the bucket
  std::string key;                   ///< a key or a prefix

  /// No location: null.
  ReadLocation() = default;
  /// A key or prefix of a store.
  ReadLocation(std::shared_ptr<ReadStore> s, std::string k) : store(std::move(s)), key(std::move(k)) {}
  /// The same place.
  ReadLocation(const Location& location)  // NOLINT(google-explicit-constructor): who may write may read
      : store(location.store), key(location.key) {}
};

}  // namespace millrace::object

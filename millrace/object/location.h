// A key or prefix together with its store.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "millrace/object/store.h"

namespace millrace::object {

/// Where most commands and modules read and write. Each user says whether `key` is a key or a prefix.
struct Location {
  std::shared_ptr<Store> store;
  std::string key;
};

/// A Location that is only read from.
struct ReadLocation {
  std::shared_ptr<ReadStore> store;
  std::string key;

  ReadLocation() = default;
  ReadLocation(std::shared_ptr<ReadStore> s, std::string k) : store(std::move(s)), key(std::move(k)) {}
  ReadLocation(const Location& location)  // NOLINT(google-explicit-constructor): who may write may read
      : store(location.store), key(location.key) {}
};

}  // namespace millrace::object

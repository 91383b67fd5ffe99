// Tells the user of metadata that a store accepts and does not keep.
#pragma once

#include <atomic>
#include <string>

#include "millrace/object/store.h"

namespace millrace::cli {

/// Looks at the first object that a command has written with metadata or headers, and warns the user of those that the
/// store has not kept. Thread-safe.
class MetadataCheck {
 public:
  /// Asks the store for `key`, which was just written with `sent`, unless a call before this one did. `name`: the
  /// object's name for the user. Blocks. Without an answer, as without the permission to read, says nothing.
  void Look(object::Store& store, const std::string& key, const std::string& name, const object::PutOptions& sent,
            const object::Call& call);

 private:
  std::atomic<bool> looked_ = false;
};

}  // namespace millrace::cli

// Connections of the controller: its own, and those with the keys of a StorageClass's secrets.
#pragma once

#include <deque>
#include <memory>
#include <string>

#include "millrace/base/result.h"
#include "millrace/base/threads/sync.h"
#include "millrace/csi/volume/secrets.h"
#include "millrace/object/connect_options.h"
#include "millrace/object/connection.h"

namespace millrace::csi {

/// Opens a connection for each identity and keeps the last few. Thread-safe.
class Connections {
 public:
  /// `own`: how the driver reaches the endpoint with its own identity.
  explicit Connections(object::ConnectOptions own) : own_(std::move(own)) {}
  /// Without secrets: the driver's own identity. Errors: kInvalidArgument if the secrets are incomplete.
  Result<std::shared_ptr<object::Connection>> Get(const Secrets& secrets) MR_EXCLUDES(mutex_);

 private:
  struct Entry {
    Secrets secrets;
    std::shared_ptr<object::Connection> connection;
  };
  const object::ConnectOptions own_;
  Mutex mutex_;
  std::deque<Entry> entries_ MR_GUARDED_BY(mutex_);  ///< the last used first
};

}  // namespace millrace::csi

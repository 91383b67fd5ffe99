// The buckets of one endpoint: list, make and remove them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/clock.h"
#include "millrace/base/result.h"
#include "millrace/object/requests.h"

namespace millrace::object {

/// Manages the buckets of one endpoint. Thread-safe. Calls block.
class Service {
 public:
  struct Bucket {
    std::string name;
    WallTime created;
  };
  virtual ~Service() = default;
  /// As ReadStore::Identity.
  virtual std::string Identity() const = 0;
  virtual Result<std::vector<Bucket>> ListBuckets(Call call) = 0;
  virtual Status MakeBucket(std::string_view name, Call call) = 0;
  /// Errors: kNotEmpty if the bucket still has objects.
  virtual Status RemoveBucket(std::string_view name, Call call) = 0;
};

}  // namespace millrace::object
